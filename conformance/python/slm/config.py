# SPDX-License-Identifier: Apache-2.0
"""The configuration of a layer: what is not a tensor."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping

#: Words of the enumerations, in the order of slm/slm.h.
ENUMERATIONS = {
    "dtype": ("f32", "bf16"),
    "score": ("sigmoid", "softmax"),
    "weighting": ("ratio", "release"),
    "expert": ("situ", "swiglu", "relu", "linear"),
    "norm": ("rms", "none"),
    "balance": ("strict", "relaxed"),
    "tie_test": ("note", "equal"),
}

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "release": {"weighting": "release", "eps": 1e-5},
    "vanilla": {"expert": "swiglu", "norm": "none"},
    "linear": {"expert": "linear"},
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes, modes and constants; the defaults are those of the profile `paper`.

    The letters are the specification's: see `slm_config` in spec/include/slm/slm.h.
    """

    d: int = 0  #: model width
    l: int = 0  #: latent width
    n: int = 0  #: routed experts
    k: int = 0  #: chosen per token
    f: int = 0  #: inner width of an expert
    S: int = 0  #: shared experts
    fs: int = 0  #: inner width of one of them
    B: int = 1000  #: bins of the histogram
    dtype: str = "f32"  #: of x, y and the weights: f32 or bf16
    score: str = "sigmoid"  #: sigmoid or softmax
    weighting: str = "ratio"  #: ratio or release
    expert: str = "situ"  #: situ, swiglu, relu or linear
    norm: str = "rms"  #: rms or none
    balance: str = "strict"  #: strict or relaxed
    tie_test: str = "note"  #: note or equal
    eps: float = 1e-6
    beta_gate: float = 4.0
    beta_up: float = 25.0
    rate: float = 2.0**-10  #: of the sign step

    def __post_init__(self) -> None:
        for name, words in ENUMERATIONS.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name}: {getattr(self, name)!r}, must be one of {words}")

    @classmethod
    def profile(cls, name: str, **members: Any) -> Config:
        """The profile `paper`, `release`, `vanilla` or `linear`, with members of one's own."""
        return cls(**{**PROFILES[name], **members})

    @classmethod
    def from_wire(cls, members: Mapping[str, Any]) -> Config:
        """A config of the host protocol: enumerations are numbers, an infinity is a string."""
        known = {}
        for field in dataclasses.fields(cls):
            if field.name not in members:
                continue
            value = members[field.name]
            if field.name in ENUMERATIONS:
                value = ENUMERATIONS[field.name][value]
            known[field.name] = float(value) if isinstance(field.default, float) else value
        return cls(**known)
