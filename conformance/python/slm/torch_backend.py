# SPDX-License-Identifier: Apache-2.0
"""The layer in PyTorch: binary32 or bf16, naive or grouped by expert, on a CPU or a GPU.

    slmoe run -b "cmd:python3 -m slm.serve slm.torch_backend:TorchBackend dtype=bf16 mode=naive"
"""
from __future__ import annotations

from typing import Dict, Iterator, Optional, Tuple

import torch
from torch import Tensor

from slm.backend import STRIDED, Arithmetic, Backend
from slm.torch_arrays import give, refuse_not_finite, take


class TorchBackend(Backend):
    """dtype f32 or bf16: of weights and activations; routing is binary32 in both (R1)."""

    version, flags = torch.__version__, STRIDED

    def __init__(self, dtype: str = "f32", mode: str = "grouped", device: str = "") -> None:
        self.name, self.grouped = f"torch-{mode}-{dtype}", {"grouped": True, "naive": False}[mode]
        self.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        stored = dict.fromkeys("z h o u r hs y".split(), 2.0**-8)
        coarse = {"input": 2.0**-8, "store": stored} if dtype == "bf16" else {}
        self.arithmetic = Arithmetic(sigmoid_ulp=1, tanh_ulp=1, rsqrt_ulp=2, **coarse)

    def supports(self, config, op, n_tokens):
        return config.dtype == "f32" or self.dtype == torch.bfloat16 or "binary32 only"

    def prepare(self, config, weights):
        super().prepare(config, {name: take(w, self.device) for name, w in weights.items()})

    def linear(self, x: Tensor, w: Tensor) -> Tensor:
        """x [.., in], w [out, in]: factors and result in dtype, summed in binary32."""
        return (x.to(self.dtype).float() @ w.to(self.dtype).float().T).to(self.dtype)

    # ---- routing: R1-R4 ----

    def score(self, logit: Tensor) -> Tensor:
        """[T, n] -> [T, n]; in binary64, so that the one rounding is the last."""
        wide = logit.double()
        return (wide.sigmoid() if self.config.score == "sigmoid" else wide.softmax(-1)).float()

    def weigh(self, score: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
        """Weights [T, k] of the chosen: from the raw scores alone."""
        chosen = score.gather(1, ids).double()
        total = chosen.sum(1, keepdim=True)
        if self.config.weighting == "release":
            return (chosen if self.config.k == 1 else chosen / (total + 1e-20)).float()
        return torch.where(total > 0, chosen / total, 1 / self.config.k).float()

    def choose(self, score: Tensor, bias: Tensor, field: str) -> Dict[str, Tensor]:
        """Best k keys, of equal ones the lower id: torch.topk would promise no order."""
        refuse_not_finite("bias", ~bias.isfinite())
        refuse_not_finite(field, score.isnan())
        best, order = (score + bias).sort(dim=1, descending=True, stable=True)
        ids, cutoff = order[:, :self.config.k], (*best.unbind(1), None)[self.config.k]
        return {"ids": ids.int(), "weight": self.weigh(score, bias, ids), "cutoff": cutoff}

    def routing(self, x: Tensor, w_router: Tensor, bias: Tensor) -> Dict[str, Tensor]:
        logit = x @ w_router.T
        given = x.isfinite().all(1, keepdim=True) & w_router.isfinite().all(1)
        refuse_not_finite("logit", ~given)
        score = self.score(logit)
        return {**self.choose(score, bias, "logit"), "logit": logit, "score": score}

    def route(self, *, x, w_router, bias):
        return give(self.routing(*(take(a, self.device) for a in (x, w_router, bias))))

    def select(self, *, bias, score=None, logit=None):
        field = "logit" if score is None else "score"
        score = self.score(take(logit, self.device)) if score is None else take(score, self.device)
        return give(self.choose(score, take(bias, self.device), field))

    # ---- the layer: L1-L6 ----

    def activation(self, gate: Optional[Tensor], up: Tensor) -> Tensor:
        """h of gate and up, computed in binary64, stored in dtype."""
        if self.config.expert == "relu":
            return up.relu()
        a, b, c = gate.double(), up.double(), self.config
        gated = a if c.expert == "swiglu" else c.beta_gate * (a / c.beta_gate).tanh()
        capped = b if c.expert == "swiglu" else c.beta_up * (b / c.beta_up).tanh()
        return (gated * a.sigmoid() * capped).to(self.dtype)

    def ffn(self, x: Tensor, w_gate: Optional[Tensor], w_up: Tensor, w_out: Tensor):
        """h and what the network makes of it."""
        gate = None if w_gate is None else self.linear(x, w_gate)
        h = self.activation(gate, self.linear(x, w_up))
        return h, self.linear(h, w_out)

    def norm(self, u: Tensor, gamma: Optional[Tensor]) -> Tensor:
        scale = (u.float().square().mean(-1, keepdim=True) + self.config.eps).rsqrt()
        r = (u.float() * scale).to(self.dtype)
        return r if gamma is None else (r.float() * gamma).to(self.dtype)

    def expert(self, z: Tensor, e: int) -> Tuple[Optional[Tensor], Tensor]:
        """h (None of a linear expert) and o of expert e for rows of z."""
        if self.config.expert == "linear":
            return None, self.linear(z, self.weights["w_expert"][e])
        w = (self.weights.get(name) for name in ("w_gate", "w_up", "w_out"))
        return self.ffn(z, *(None if one is None else one[e] for one in w))

    def places(self, ids: Tensor) -> Iterator[Tuple[Tensor, Tensor]]:
        """(token, slot) pairs that share an expert: all of them at once, or one at a time."""
        for pairs in ((ids == e).nonzero(as_tuple=True) for e in ids.unique()):
            yield from (pairs,) if self.grouped else zip(*(p.split(1) for p in pairs))

    def experts(self, z: Tensor, ids: Tensor) -> Tuple[Optional[Tensor], Tensor]:
        h, o = (z.new_zeros(*ids.shape, width) for width in (self.config.f, self.config.l))
        for t, q in self.places(ids):
            inner, o[t, q] = self.expert(z[t], int(ids[t[0], q[0]]))
            h[t, q] = 0 if inner is None else inner
        return (None if self.config.expert == "linear" else h), o

    def shared(self, x: Tensor) -> Tuple[Optional[Tensor], Tensor]:
        """hs (None: there is none) and what the shared experts add to y."""
        w, S = self.weights, self.config.S
        if S and "w_shared" in w:
            return None, self.linear(x.repeat(1, S), torch.cat(tuple(w["w_shared"]), 1))
        if "w_shared_out" not in w:
            return None, x.new_zeros(())
        return self.ffn(x, w.get("w_shared_gate"), w["w_shared_up"], w["w_shared_out"])

    def layer_forward(self, *, x, bias):
        x, bias, w = take(x, self.device), take(bias, self.device), self.weights
        out = self.routing(x, w["w_router"], bias)
        z = self.linear(x, w["w_down"])
        h, o = self.experts(z, out["ids"])
        parts = (out["weight"][:, q, None] * o[:, q] for q in range(self.config.k))
        u = sum(parts).to(self.dtype)
        r = u if self.config.norm == "none" else self.norm(u, w.get("gamma"))
        hs, shared = self.shared(x)
        y = (self.linear(r, w["w_lift"]) + shared).to(self.dtype)
        return give({**out, "z": z, "h": h, "o": o, "u": u, "r": r, "hs": hs, "y": y})

    def situ_glu(self, *, gate_up):
        return give({"h": self.activation(*take(gate_up, self.device).chunk(2, -1))})

    def dense_ffn(self, *, x, w_up, w_out, w_gate=None):
        given = [take(a, self.device) for a in (x, w_gate, w_up, w_out)]
        refuse_not_finite("x", ~given[0].isfinite())
        return give(dict(zip("hy", self.ffn(*given))))

    def rmsnorm(self, *, u, gamma=None):
        u = take(u, self.device)
        refuse_not_finite("u", ~u.isfinite())
        return give({"r": self.norm(u, take(gamma, self.device))})
