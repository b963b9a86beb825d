# SPDX-License-Identifier: Apache-2.0
"""bfloat16, which numpy does not have: the upper 16 bits of a binary32, kept as uint16."""
from __future__ import annotations

import numpy as np


def to_float32(words: np.ndarray) -> np.ndarray:
    """The numbers that uint16 words stand for; exact, of the same shape, packed."""
    return (np.asarray(words, np.uint16).astype(np.uint32) << 16).view(np.float32)


def from_float32(values: np.ndarray) -> np.ndarray:
    """Words of the nearest bfloat16 numbers, ties to even; a NaN stays one.

    Values of another type must be exact in binary32: rounding twice is not rounding.
    """
    given = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = np.array(given, np.float32)
    if given.dtype != np.float32 and not np.array_equal(floats, given, equal_nan=True):
        raise ValueError("not exact in binary32: round to bfloat16 yourself, once")
    bits = floats.view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    quiet = (bits >> 16 | 0x40).astype(np.uint16)
    return np.where(np.isnan(floats), quiet, rounded)


def is_exact(values: np.ndarray) -> bool:
    """Whether every value is a bfloat16 number (or NaN)."""
    values = np.asarray(values)
    words = from_float32(values.astype(np.float32))
    return bool(np.array_equal(to_float32(words), values, equal_nan=True))
