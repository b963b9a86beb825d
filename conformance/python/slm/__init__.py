# SPDX-License-Identifier: Apache-2.0
"""Python client of the Stable LatentMoE conformance suite.

Write a class whose methods are named like the operations, and have it judged:

    slmoe run -b "cmd:python3 -m slm.serve mymodule:MyBackend"

`slm.library` calls the exact reference and the OpenBLAS backend from Python.
"""
from slm import bf16
from slm.backend import (BATCH_INVARIANT, DETERMINISTIC, OPERATIONS, STRIDED, Arithmetic, Array,
                         Backend, Outputs, Refusal)
from slm.config import Config

__all__ = ["Arithmetic", "Array", "BATCH_INVARIANT", "Backend", "Config", "DETERMINISTIC",
           "OPERATIONS", "Outputs", "Refusal", "STRIDED", "bf16"]
