# SPDX-License-Identifier: Apache-2.0
"""Between the arrays of a call and PyTorch: for any backend that computes in PyTorch."""
from __future__ import annotations

from typing import Mapping, Optional

import numpy as np
import torch

from slm import bf16
from slm.backend import Outputs, Refusal


def take(array: Optional[np.ndarray], device: str = "cpu") -> Optional[torch.Tensor]:
    """A tensor of one's own with the array's values: bf16 as binary32, None as None."""
    if array is None:
        return None
    packed = bf16.to_float32(array) if array.dtype == np.uint16 else np.array(array)
    return torch.from_numpy(packed).to(device)


def give(outputs: Mapping[str, Optional[torch.Tensor]]) -> Outputs:
    """What a method returns: every tensor as an array, bf16 as binary32; None is left out."""
    return {name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
            for name, value in outputs.items() if value is not None}


def refuse_not_finite(field: str, bad: torch.Tensor) -> None:
    """Refuse the call when any element of that argument is marked as bad."""
    if bad.any():
        raise Refusal("SLM_ERR_NONFINITE", field, int(bad.flatten().nonzero()[0]), "finite")
