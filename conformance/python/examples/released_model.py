# SPDX-License-Identifier: Apache-2.0
"""Any PyTorch module with the parameter names of the released model, judged as a backend.

    slmoe run -b "cmd:python3 -m slm.serve conformance/python/examples/released_model.py:SmallModel"

To judge a module of your own, subclass `ReleasedModel` and build the module in `make()`: a
function of x [T, d] with these parameters, and a submodule `gate` that returns (ids, weight):

    gate.weight [n, d]                      gate.e_score_correction_bias [n]
    routed_expert_down_proj.weight [l, d]   routed_expert_up_proj.weight [d, l]
    routed_expert_norm.weight [l]           experts.E.w1 (gate), w3 (up) [f, l], w2 [l, f]
    shared_experts.gate_proj, up_proj [S fs, d], down_proj [d, S fs]

`SmallModel` is a small module of that kind, written here from the specification.
"""
from __future__ import annotations

from typing import Dict, Mapping

import torch
from torch import Tensor, nn

from slm.backend import Arithmetic, Backend
from slm.torch_arrays import give, refuse_not_finite, take

#: Parameter of the model: weight of the layer. Those of the experts are cut up.
NAMES = {
    "gate.weight": "w_router",
    "routed_expert_down_proj.weight": "w_down",
    "routed_expert_norm.weight": "gamma",
    "routed_expert_up_proj.weight": "w_lift",
    "shared_experts.gate_proj.weight": "w_shared_gate",
    "shared_experts.up_proj.weight": "w_shared_up",
    "shared_experts.down_proj.weight": "w_shared_out",
}
EXPERT_NAMES = {"w1": "w_gate", "w3": "w_up", "w2": "w_out"}


def parameters_of(config, weights: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """The layer's weights under the model's names."""
    named = {name: weights[ours] for name, ours in NAMES.items() if ours in weights}
    named.setdefault("routed_expert_norm.weight", torch.ones(config.l))
    for e in range(config.n):
        for name, ours in EXPERT_NAMES.items():
            named[f"experts.{e}.{name}.weight"] = weights[ours][e]
    return named


class ReleasedModel(Backend):
    """The adapter: y comes from the module, the taps from hooks on its submodules."""

    name, version = "released-model", torch.__version__

    def make(self, config) -> nn.Module:
        """A module of that configuration; its parameters are loaded afterwards."""
        raise NotImplementedError

    def supports(self, config, op, n_tokens):
        if (config.weighting, config.expert, config.norm) != ("release", "situ", "rms"):
            return "profile release only"
        return config.score == "sigmoid" or "sigmoid scores only"

    def prepare(self, config, weights):
        super().prepare(config, {name: take(array) for name, array in weights.items()})
        self.dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
        self.module, self.seen = self.make(config), {}
        named = parameters_of(config, self.weights)
        wanted = set(self.module.state_dict()) - {"gate.e_score_correction_bias"}
        if wanted != set(named):
            raise KeyError(f"parameters that only one side has: {sorted(wanted ^ set(named))}")
        self.module.load_state_dict(named, strict=False)
        self.module.to(self.dtype).requires_grad_(False)
        self.module.gate.float()  # routing is binary32: R1
        self.hook("gate", output="routed")
        self.hook("routed_expert_down_proj", output="z")
        self.hook("routed_expert_norm", given="u", output="r")
        if config.S:
            self.hook("shared_experts.down_proj", given="hs")

    def hook(self, submodule: str, given: str = "", output: str = "") -> None:
        """Keep what goes into and comes out of a submodule."""
        def keep(_, arguments, result):
            self.seen.update({given: arguments[0], output: result})
        self.module.get_submodule(submodule).register_forward_hook(keep)

    def in_order(self, x: Tensor, bias: Tensor, ids: Tensor, weight: Tensor) -> Dict[str, Tensor]:
        """Slots best first, which the released gate does not promise (torch.topk unsorted)."""
        key = (x.float() @ self.weights["w_router"].float().T).double().sigmoid().float() + bias
        ids, by_id = ids.sort(dim=1)
        order = key.gather(1, ids).sort(dim=1, descending=True, stable=True)[1]
        return {"ids": ids.gather(1, order).int(),
                "weight": weight.gather(1, by_id).gather(1, order).float()}

    def layer_forward(self, *, x, bias):
        x, bias = take(x), take(bias)
        refuse_not_finite("bias", ~bias.isfinite())
        router = self.weights["w_router"]
        refuse_not_finite("logit", ~(x.isfinite().all(1, keepdim=True) & router.isfinite().all(1)))
        self.module.gate.e_score_correction_bias.copy_(bias)
        self.seen.clear()
        y = self.module(x.to(self.dtype))
        ids, weight = self.seen.pop("routed")
        self.seen.pop("", None)
        return give({"y": y, **self.in_order(x, bias, ids, weight), **self.seen})


# ---- a small module with those names ----


class Gate(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.top_k = config.k
        self.weight = nn.Parameter(torch.empty(config.n, config.d))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n))

    def forward(self, x: Tensor):
        score = nn.functional.linear(x.float(), self.weight).sigmoid()
        key = score + self.e_score_correction_bias
        ids = key.sort(dim=1, descending=True, stable=True)[1][:, :self.top_k]
        weight = score.gather(1, ids)
        if self.top_k > 1:
            weight = weight / (weight.sum(1, keepdim=True) + 1e-20)
        return ids, weight


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, u: Tensor) -> Tensor:
        wide = u.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(u.dtype)


def situ_glu(gate: Tensor, up: Tensor, config) -> Tensor:
    a, b = gate.float(), up.float()
    gated = config.beta_gate * torch.tanh(a / config.beta_gate) * torch.sigmoid(a)
    return (gated * (config.beta_up * torch.tanh(b / config.beta_up))).to(gate.dtype)


class Expert(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.config = config
        self.w1 = nn.Linear(config.l, config.f, bias=False)
        self.w3 = nn.Linear(config.l, config.f, bias=False)
        self.w2 = nn.Linear(config.f, config.l, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.w2(situ_glu(self.w1(z), self.w3(z), self.config))


class Shared(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.config, inner = config, config.S * config.fs
        self.gate_proj = nn.Linear(config.d, inner, bias=False)
        self.up_proj = nn.Linear(config.d, inner, bias=False)
        self.down_proj = nn.Linear(inner, config.d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(situ_glu(self.gate_proj(x), self.up_proj(x), self.config))


class SmallMoE(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.gate = Gate(config)
        self.routed_expert_down_proj = nn.Linear(config.d, config.l, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.n))
        self.routed_expert_norm = Norm(config.l, config.eps)
        self.routed_expert_up_proj = nn.Linear(config.l, config.d, bias=False)
        self.shared_experts = Shared(config) if config.S else None

    def forward(self, x: Tensor) -> Tensor:
        ids, weight = self.gate(x)
        z = self.routed_expert_down_proj(x)
        out = z.new_zeros(*ids.shape, z.shape[1])
        for e, expert in enumerate(self.experts):
            token, slot = (ids == e).nonzero(as_tuple=True)
            if len(token):
                out[token, slot] = expert(z[token])
        u = (out.float() * weight[..., None]).sum(1).to(x.dtype)
        y = self.routed_expert_up_proj(self.routed_expert_norm(u))
        return y if self.shared_experts is None else y + self.shared_experts(x)


class SmallModel(ReleasedModel):
    """`SmallMoE` under test. Products are summed in binary32 and stored in dtype."""

    name, arithmetic = "released-small", Arithmetic()

    def make(self, config):
        return SmallMoE(config)
