# SPDX-License-Identifier: Apache-2.0
"""PyTorch backends with one planted mistake each; conformance/test/python.sh has them judged."""
from __future__ import annotations

from slm.backend import Arithmetic
from slm.torch_backend import TorchBackend


class BiasLeak(TorchBackend):
    """The mixture is weighted by the keys, not by the raw scores: R3."""

    def weigh(self, score, bias, ids):
        return super().weigh(score + bias, bias, ids)


class NoUpCap(TorchBackend):
    """The up branch stays linear: L1."""

    def activation(self, gate, up):
        a, b = gate.float(), up.float()
        beta = self.config.beta_gate
        return (beta * (a / beta).tanh() * a.sigmoid() * b).to(self.dtype)


class EpsOnSum(TorchBackend):
    """eps is added to the sum of squares, not to their mean: L2."""

    def norm(self, u, gamma):
        total = u.float().square().sum(-1, keepdim=True) + self.config.eps
        r = u.float() * (total / u.shape[-1]).rsqrt()
        return (r if gamma is None else r * gamma).to(self.dtype)


class Undeclared(TorchBackend):
    """bf16 where nobody was told: A1."""

    def __init__(self) -> None:
        super().__init__(dtype="bf16")
        self.arithmetic = Arithmetic()  # binary32


class Raises(TorchBackend):
    """A mistake that Python itself finds."""

    def norm(self, u, gamma):
        return u / self.no_such_thing
