#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's autograd in binary64 against the exact reference: the layer, both ways.

    autograd.py [T]     T tokens of the configuration `mini` (default 5; 0 leaves mini out)

The layer is built from plain operations, experts in a loop, and differentiated by PyTorch;
ref gives every value and every gradient as the real number rounded once to binary64
(`slm.library`). Prints the largest |difference| / gauge of each tensor; exits 1 above 1e-12.
The gauge is the largest value of the element's row, of a weight's gradient that of its matrix;
where terms may cancel (dweight, dlogit, dw_router) the sum of their absolute values.
Needs torch and libslm.so.
"""
from __future__ import annotations

import sys
from typing import Dict, Mapping, Sequence

import numpy as np
import torch

from slm.config import Config
from slm.library import Library

LIMIT = 1e-12
SMALL = dict(d=9, l=5, n=6, k=2, f=4, S=2, fs=3)
MINI = dict(d=640, l=320, n=64, k=2, f=320, S=2, fs=320)
#: Sizes beside those of SMALL: what a case has that others do not.
VARIANTS: Mapping[str, Mapping[str, int]] = {
    "small": {}, "k = 1": {"k": 1}, "k = n": {"k": 6}, "S = 0": {"S": 0, "fs": 0},
    "l > d": {"l": 14}, "square": dict(d=8, l=8, n=8, f=8, S=1, fs=8),
}
PROFILES = ("paper", "release", "vanilla", "linear")

Arrays = Dict[str, np.ndarray]


# ---- inputs ----


def weights_of(c: Config, rng: np.random.Generator) -> Arrays:
    """Random weights, scaled so that every product is near unit size."""
    shapes = {"w_router": (c.n, c.d), "w_down": (c.l, c.d), "w_lift": (c.d, c.l)}
    inner = c.S * c.fs
    if c.expert == "linear":
        shapes["w_expert"] = (c.n, c.l, c.l)
        shapes["w_shared"] = (c.S, c.d, c.d)
    else:
        shapes |= {"w_gate": (c.n, c.f, c.l), "w_up": (c.n, c.f, c.l), "w_out": (c.n, c.l, c.f),
                   "w_shared_gate": (inner, c.d), "w_shared_up": (inner, c.d),
                   "w_shared_out": (c.d, inner)}
    made = {name: (rng.standard_normal(shape) / np.sqrt(max(shape[-1], 1))).astype(np.float32)
            for name, shape in shapes.items() if 0 not in shape}
    if c.norm == "rms":
        made["gamma"] = (1 + rng.standard_normal(c.l) / 4).astype(np.float32)
    return made


# ---- the layer in PyTorch ----


class Layer:
    """Forward by plain operations; every value is kept, with its gradient after backward."""

    def __init__(self, config: Config, weights: Arrays) -> None:
        self.c, self.value = config, {}
        self.w = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True)
                  for name, w in weights.items()}

    def keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if value.requires_grad:
            value.retain_grad()
        self.value[name] = value
        return value

    def act(self, gate_up: torch.Tensor) -> torch.Tensor:
        a, b = gate_up.chunk(2, -1)
        if self.c.expert == "swiglu":
            return a * a.sigmoid() * b
        gate = self.c.beta_gate * (a / self.c.beta_gate).tanh() * a.sigmoid()
        return gate * self.c.beta_up * (b / self.c.beta_up).tanh()

    def weigh(self, logit: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        s = logit.sigmoid().gather(1, ids)
        if self.c.weighting == "ratio":
            return s / s.sum(1, keepdim=True)
        return s if self.c.k == 1 else s / (s.sum(1, keepdim=True) + 1e-20)

    def experts(self, z: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[T, k, l]: the tokens of each expert at once."""
        rows, places = [], []
        for e in range(self.c.n):
            t, q = (ids == e).nonzero(as_tuple=True)
            if not len(t):
                continue
            if self.c.expert == "linear":
                rows.append(z[t] @ self.w["w_expert"][e].T)
            else:
                both = torch.cat((self.w["w_gate"][e], self.w["w_up"][e]))
                rows.append(self.act(z[t] @ both.T) @ self.w["w_out"][e].T)
            places.append(t * self.c.k + q)
        order = torch.cat(places).argsort()
        return torch.cat(rows)[order].reshape(len(z), self.c.k, self.c.l)

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        if not self.c.S:
            return torch.zeros_like(x)
        if self.c.expert == "linear":
            return sum(x @ w.T for w in self.w["w_shared"])
        both = torch.cat((self.w["w_shared_gate"], self.w["w_shared_up"]))
        hs = self.keep("hs", self.act(x @ both.T))
        return hs @ self.w["w_shared_out"].T

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logit = self.keep("logit", x @ self.w["w_router"].T)
        p = self.keep("weight", self.weigh(logit, ids))
        z = self.keep("z", x @ self.w["w_down"].T)
        o = self.keep("o", self.experts(z, ids))
        u = self.keep("u", (p[:, :, None] * o).sum(1))
        r = u
        if self.c.norm == "rms":
            r = u / (u.square().mean(1, keepdim=True) + self.c.eps).sqrt() * self.w["gamma"]
        r = self.keep("r", r)
        return self.keep("y", r @ self.w["w_lift"].T + self.shared(x))

    def results(self, x: torch.Tensor) -> Arrays:
        """Values, and gradients named as the operation names them."""
        out = {name: v.detach().numpy() for name, v in self.value.items()}
        leaves = {**self.w, "x": x, **{n: self.value[n] for n in self.value if n not in "yo"}}
        for name, v in leaves.items():
            out[f"d{name}"] = (torch.zeros_like(v) if v.grad is None else v.grad).numpy()
        return out


# ---- the gauge: how large an error of one unit would be ----


def routing_gauges(x: np.ndarray, exact: Arrays) -> Arrays:
    """Sums of the absolute values of all terms, for what may cancel to 0 (k = 1)."""
    size = {name: abs(exact[name]) for name in ("du", "o", "weight")}
    dp = np.einsum("tl,tkl->tk", size["du"], size["o"])
    spread = dp + (size["weight"] * dp).sum(1, keepdims=True)
    ids = exact["ids"].astype(np.int64)
    rest = 1 / (1 + np.exp(np.take_along_axis(exact["logit"], ids, 1)))
    dlogit = np.zeros_like(exact["logit"])
    np.put_along_axis(dlogit, ids, size["weight"] * rest * spread, 1)
    return {"dweight": dp, "dlogit": dlogit, "dw_router": dlogit.T @ abs(x)}


def gauge_of(name: str, value: np.ndarray) -> np.ndarray:
    """The largest size in the same row; of a weight, in the same matrix."""
    axes = (-2, -1) if name.startswith("dw_") else -1
    return abs(value).max(axis=axes, keepdims=True)


# ---- the comparison ----


def exact_layer(c: Config, weights: Arrays, x: np.ndarray, bias: np.ndarray,
                dy: np.ndarray) -> Arrays:
    """Every value and gradient by ref, at the choice of its own forward."""
    ref = Library("ref", exact=True)
    ref.prepare(c, weights)
    forward = ref.layer_forward(x=x, bias=bias)
    exact = {**forward, **ref.layer_backward(x=x, ids=forward["ids"], dy=dy)}
    ref.close()
    return exact


def compare(c: Config, n_tokens: int, seed: int) -> Dict[str, float]:
    """Largest |difference| / gauge of each tensor."""
    rng = np.random.default_rng(seed)
    weights = weights_of(c, rng)
    x, dy = (rng.standard_normal((n_tokens, c.d)).astype(np.float32) for _ in range(2))
    bias = (rng.standard_normal(c.n) / 64).astype(np.float32)
    exact = exact_layer(c, weights, x, bias, dy)
    if np.any(exact["dbias"]):
        raise SystemExit("autograd: the bias has a gradient")
    layer = Layer(c, weights)
    tokens = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = layer.forward(tokens, torch.tensor(exact["ids"], dtype=torch.int64))
    y.backward(torch.tensor(dy, dtype=torch.float64))
    cancelling, worst = routing_gauges(x, exact), {}
    for name, found in layer.results(tokens).items():
        if name in exact:
            gauge = cancelling.get(name, gauge_of(name, exact[name]))
            off = abs(found - exact[name])
            with np.errstate(invalid="ignore", divide="ignore"):
                worst[name] = float(np.where(off == 0, 0, off / gauge).max())
    return worst


def main(arguments: Sequence[str]) -> int:
    n_tokens = int(arguments[0]) if arguments else 5
    torch.set_num_threads(1)
    failed = 0
    print(f"{'profile':8} {'tensor':15} {'small':>9} {'mini':>9}   |difference| / gauge")
    for profile in PROFILES:
        small: Dict[str, float] = {}
        for sizes in VARIANTS.values():
            found = compare(Config.profile(profile, **{**SMALL, **sizes}), 7, 601)
            small.update({name: max(v, small.get(name, 0)) for name, v in found.items()})
        mini = compare(Config.profile(profile, **MINI), n_tokens, 602) if n_tokens else {}
        for name, worst in small.items():
            both = [worst, mini[name]] if name in mini else [worst]
            bad = not all(v <= LIMIT for v in both)
            failed += bad
            print(f"{profile:8} {name:15} {' '.join(f'{v:9.1e}' for v in both)}"
                  f"{'   FAIL' if bad else ''}")
    print(f"autograd: {failed} tensors further than {LIMIT} of their gauge from ref")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
