# SPDX-License-Identifier: Apache-2.0
"""The layer in PyTorch as one would write it for speed: a fair peer for `slmoe bench`.

    slmoe bench -b cpu --vs "cmd:python3 -m slm.serve slm.torch_peer:TorchPeer"

Tokens are grouped by expert, gate and up are one product, nothing is tapped, functions are those
of binary32. Of equal keys any may win: torch.topk promises no order.
"""
from __future__ import annotations

import torch
from torch import Tensor

from slm.backend import Arithmetic, Backend
from slm.torch_arrays import give, take


class TorchPeer(Backend):
    """layer_forward in binary32, with situ or swiglu experts and sigmoid scores."""

    name, version = "torch-peer", torch.__version__

    arithmetic = Arithmetic(sigmoid_ulp=4, tanh_ulp=4, rsqrt_ulp=4)

    def supports(self, config, op, n_tokens):
        if config.dtype != "f32":
            return "binary32 only"
        return config.expert in ("situ", "swiglu") and config.score == "sigmoid" or \
            "situ or swiglu experts with sigmoid scores only"

    def prepare(self, config, weights):
        w = {name: take(value) for name, value in weights.items()}
        super().prepare(config, w)
        self.w_in = torch.cat((w["w_gate"], w["w_up"]), 1)
        self.shared_in = torch.cat((w["w_shared_gate"], w["w_shared_up"])) \
            if "w_shared_up" in w else None

    def activation(self, gate_up: Tensor) -> Tensor:
        a, b = gate_up.chunk(2, -1)
        if self.config.expert == "swiglu":
            return torch.nn.functional.silu(a) * b
        first, second = self.config.beta_gate, self.config.beta_up
        return (a / first).tanh_().mul_(a.sigmoid()).mul_((b / second).tanh_()).mul_(
            first * second)

    def experts(self, z: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
        """u: sum over the chosen experts of weight times their outputs."""
        order = ids.flatten().argsort(stable=True)
        tokens = order // self.config.k
        counts = ids.flatten().bincount(minlength=self.config.n).tolist()
        o = z.new_empty(ids.numel(), self.config.l)
        first = 0
        for e, count in enumerate(counts):
            if count:
                rows = slice(first, first + count)
                h = self.activation(z[tokens[rows]] @ self.w_in[e].T)
                o[order[rows]] = h @ self.weights["w_out"][e].T
                first += count
        return torch.einsum("tkl,tk->tl", o.view(*ids.shape, self.config.l), weight)

    def layer_forward(self, *, x, bias):
        with torch.inference_mode():
            x, bias, w, c = take(x), take(bias), self.weights, self.config
            score = (x @ w["w_router"].T).sigmoid_()
            ids = (score + bias).topk(c.k, dim=1).indices
            chosen = score.gather(1, ids)
            weight = chosen if c.k == 1 and c.weighting == "release" else \
                chosen / chosen.sum(1, keepdim=True)
            u = self.experts(x @ w["w_down"].T, ids, weight)
            if c.norm == "rms":
                u *= (u.square().mean(-1, keepdim=True) + c.eps).rsqrt_()
                u = u * w["gamma"] if "gamma" in w else u
            y = u @ w["w_lift"].T
            if self.shared_in is not None:
                y += self.activation(x @ self.shared_in.T) @ w["w_shared_out"].T
            return give({"y": y, "ids": ids.int(), "weight": weight})
