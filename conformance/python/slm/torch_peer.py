# SPDX-License-Identifier: Apache-2.0
"""The layer in PyTorch as one would write it for speed: a fair peer for `slmoe bench`.

    slmoe bench -b cpu --vs "cmd:python3 -m slm.serve slm.torch_peer:TorchPeer"
    slmoe bench -b gpu --vs "cmd:python3 -m slm.serve slm.torch_peer:TorchPeer device=cuda dtype=bf16"

Tokens are grouped by expert, gate and up are one product, nothing is tapped, functions are those
of binary32. Of equal keys any may win: torch.topk promises no order. A call on a GPU is timed
from a device that is idle to one that is idle again, without the copies from and to the host.
"""
from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from torch import Tensor

from slm.backend import Arithmetic, Backend
from slm.torch_arrays import give


class TorchPeer(Backend):
    """layer_forward in binary32 or bf16, with situ or swiglu experts and sigmoid scores."""

    name, version = "torch-peer", torch.__version__

    def __init__(self, dtype: str = "f32", device: str = "cpu") -> None:
        self.element, self.device = dtype, device
        self.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.on_gpu = device != "cpu"
        stored = dict.fromkeys("z h o u r hs y".split(), 2.0**-8) if dtype == "bf16" else {}
        self.arithmetic = Arithmetic(sigmoid_ulp=4, tanh_ulp=4, rsqrt_ulp=4, store=stored,
                                     accumulator=2.0**-23 if self.on_gpu else 2.0**-24)
        if self.on_gpu:  # "device: " tells slmoe bench which roof is its own
            self.note = f"device: {torch.cuda.get_device_name(device)}"
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def supports(self, config, op, n_tokens):
        if config.dtype != self.element:
            return f"{self.element} only; it takes dtype=f32 or dtype=bf16"
        return config.expert in ("situ", "swiglu") and config.score == "sigmoid" or \
            "situ or swiglu experts with sigmoid scores only"

    def take(self, array):
        """A tensor of its own in dtype, where the work is: of bf16 without a way through binary32."""
        bits = array.view(np.int16) if array.dtype == np.uint16 else array
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the array cannot be written to; nor is it
            held = torch.from_numpy(bits)
        return (held.view(torch.bfloat16) if bits is not array else held).to(
            self.device, self.dtype, copy=True)

    def prepare(self, config, weights):
        w = {name: self.take(value) for name, value in weights.items()}
        super().prepare(config, w)
        self.router = w["w_router"].float()
        self.w_in = torch.cat((w.pop("w_gate"), w.pop("w_up")), 1)
        self.shared_in = torch.cat((w["w_shared_gate"], w["w_shared_up"])) \
            if "w_shared_up" in w else None

    def close(self):
        self.router = self.w_in = self.shared_in = None
        super().close()

    def activation(self, gate_up: Tensor) -> Tensor:
        a, b = gate_up.float().chunk(2, -1)
        if self.config.expert == "swiglu":
            return (torch.nn.functional.silu(a) * b).to(self.dtype)
        first, second = self.config.beta_gate, self.config.beta_up
        return (a / first).tanh_().mul_(a.sigmoid()).mul_((b / second).tanh_()).mul_(
            first * second).to(self.dtype)

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
        return torch.einsum("tkl,tk->tl", o.view(*ids.shape, self.config.l).float(), weight)

    def norm(self, u: Tensor) -> Tensor:
        """r of u, which is binary32 and is stored in dtype first, as in every backend."""
        u = u.to(self.dtype)
        if self.config.norm == "rms":
            wide = u.float()
            u = (wide * (wide.square().mean(-1, keepdim=True) + self.config.eps).rsqrt_()).to(
                self.dtype)
            u = u * self.weights["gamma"] if "gamma" in self.weights else u
        return u

    def layer(self, x: Tensor, bias: Tensor):
        w, c = self.weights, self.config
        score = (x.float() @ self.router.T).sigmoid_()
        ids = (score + bias).topk(c.k, dim=1).indices
        chosen = score.gather(1, ids)
        weight = chosen if c.k == 1 and c.weighting == "release" else \
            chosen / chosen.sum(1, keepdim=True)
        y = self.norm(self.experts(x @ w["w_down"].T, ids, weight)) @ w["w_lift"].T
        if self.shared_in is not None:
            y += self.activation(x @ self.shared_in.T) @ w["w_shared_out"].T
        return y, ids, weight

    def layer_forward(self, *, x, bias):
        wait = torch.cuda.synchronize if self.on_gpu else lambda: None
        with torch.inference_mode():
            given = self.take(x), torch.from_numpy(np.array(bias)).to(self.device)
            wait()
            start = time.perf_counter()
            y, ids, weight = self.layer(*given)
            wait()
            self.seconds = time.perf_counter() - start
            return give({"y": y, "ids": ids.int(), "weight": weight})
