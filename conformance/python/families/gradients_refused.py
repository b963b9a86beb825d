# SPDX-License-Identifier: Apache-2.0
"""What the backward operations must refuse (X1, G1-G4), and the lawful side of it."""

import math

from golden.cases import Family, empty, fill, tensor

from .gradients_layer import inputs
from .layers import SMALL

NAN, INF = math.nan, math.inf
# One lawful call of each operation: (config, inputs).
CALLS = {
    "situ_glu_backward": ({"f": 2}, {"gate_up": [[1.0, 2.0, 3.0, 4.0]], "dh": [[1.0, -1.0]]}),
    "rmsnorm_backward": ({"l": 3}, {"u": [[1.0, 2.0, 3.0]], "gamma": [1.0, 2.0, 3.0],
                                    "dr": [[1.0, 0.0, -1.0]]}),
    "select_backward": ({"n": 4, "k": 2},
                        {"logit": [[0.5, 0.25, -0.75, 1.0], [0.0, 1.0, 2.0, 3.0]],
                         "ids": [[3, 0], [2, 3]], "dweight": [[1.0, -1.0], [0.5, 2.0]]}),
    "dense_ffn_backward": ({"d": 3, "f": 2},
                           {"x": [[1.0, 2.0, 3.0]], "w_gate": fill((2, 3), 0.5),
                            "w_up": fill((2, 3), 0.5), "w_out": fill((3, 2), 0.5),
                            "dy": [[1.0, -1.0, 0.5]]}),
    "layer_backward": (SMALL, inputs(SMALL, 2, 599, ids=[[0, 1], [3, 2]])),
}
SHORT = {"situ_glu_backward": "situ", "rmsnorm_backward": "rmsnorm",
         "select_backward": "select", "dense_ffn_backward": "ffn", "layer_backward": "layer"}


def refuse(f, id, op, field, status, change=None, index=None, note=None, without=(),
           **config):
    base, given = CALLS[op]
    given = {n: v for n, v in given.items() if n not in without}
    f.add(f"{SHORT[op]}-{id}", op, {**base, **config}, {**given, **(change or {})},
          status=f"SLM_ERR_{status}", field=field, index=index, note=note)


def with_element(op, name, at, value):
    """That input of the lawful call with one element replaced."""
    t = tensor(CALLS[op][1][name])
    data = list(t.values(name))
    data[at] = value
    changed = tensor(data)
    changed.shape = t.shape
    return {name: changed}


def door() -> Family:
    f = Family("reject/gradients",
               "Shapes, aliases, modes without a gradient, a choice that is none.",
               ["X1", "X2", "G1", "G2", "G3", "G4"], ["gradient-in-place-accepted"])
    for op, (_, given) in CALLS.items():
        for name, value in given.items():
            shape = list(tensor(value).shape)
            last = len(shape) - 1
            shape[last] += 1 if last else -1
            refuse(f, f"{name.replace('_', '-')}-shape", op, name, "SHAPE",
                   {name: fill(tuple(shape), 0 if name == "ids" else 0.5)})
    for op, output, other in (("situ_glu_backward", "dgate_up", "gate_up"),
                              ("rmsnorm_backward", "du", "dr"),
                              ("rmsnorm_backward", "dgamma", "gamma"),
                              ("select_backward", "dlogit", "logit"),
                              ("dense_ffn_backward", "dx", "dy"),
                              ("dense_ffn_backward", "dw_gate", "w_gate"),
                              ("layer_backward", "dx", "dy"),
                              ("layer_backward", "dgamma", "x")):
        base, given = CALLS[op]
        f.add(f"{SHORT[op]}-{output.replace('_', '-')}-in-place", op, base, given,
              status="SLM_ERR_ALIAS", field=output, alias=(output, other))
    for op in ("select_backward", "layer_backward"):
        refuse(f, "softmax", op, "score", "DOMAIN", index=0, score="softmax")
        for name, ids, index in (("repeated", [[2, 2], [0, 1]], 1),
                                 ("negative", [[-1, 1], [0, 3]], 0),
                                 ("past-the-end", [[3, 1], [0, 4]], 3),
                                 ("twice-at-fault", [[0, 1], [3, 3]], 3)):
            refuse(f, f"ids-{name}", op, "ids", "DOMAIN", {"ids": ids}, index=index)
    refuse(f, "relu", "layer_backward", "expert", "DOMAIN", index=0, expert="relu",
           without=("w_gate", "w_shared_gate"))
    for op in ("situ_glu_backward", "dense_ffn_backward", "layer_backward"):
        refuse(f, "beta-gate-zero", op, "beta_gate", "DOMAIN", index=0, beta_gate=0.0)
        refuse(f, "beta-up-negative", op, "beta_up", "DOMAIN", index=0, beta_up=-25.0)
    for op in ("rmsnorm_backward", "layer_backward"):
        refuse(f, "eps-zero", op, "eps", "DOMAIN", index=0, eps="0")
    refuse(f, "k-above-n", "select_backward", "top_k", "DOMAIN",
           {"ids": fill((2, 5), 0), "dweight": fill((2, 5), 1.0)}, index=0, k=5)
    refuse(f, "k-zero", "select_backward", "top_k", "DOMAIN",
           {"ids": empty(2, 0), "dweight": empty(2, 0)}, index=0, k=0)
    refuse(f, "domain-before-nonfinite", "select_backward", "ids", "DOMAIN",
           {"ids": [[3, 0], [2, 2]], "dweight": [[NAN, 1.0], [1.0, 1.0]]}, index=3)
    refuse(f, "shape-before-domain", "layer_backward", "ids", "SHAPE",
           {"ids": fill((2, 3), 9)})
    return f


def nonfinite() -> Family:
    f = Family("reject/gradients-nonfinite",
               "An input that is not finite is refused, and names its lowest bad element; an "
               "infinite gate or up value alone is lawful: the slopes have limits.",
               ["X1", "G1", "G2", "G3", "G4"], ["gradient-infinity-accepted"])
    refuse(f, "gate-up-nan", "situ_glu_backward", "gate_up", "NONFINITE",
           {"gate_up": [[1.0, INF, NAN, 4.0]]}, index=2, note="the infinity before it is lawful")
    for op, (_, given) in CALLS.items():
        for name in given:
            lawful = name.startswith("w_") and op == "layer_backward"
            if name in ("gate_up", "ids") or lawful or (op, name) == ("layer_backward", "gamma"):
                continue
            last = tensor(given[name]).count - 1
            for word, bad in (("nan", NAN), ("infinity", INF)):
                refuse(f, f"{name.replace('_', '-')}-{word}", op, name, "NONFINITE",
                       with_element(op, name, last, bad), index=last)
    refuse(f, "two-at-fault", "rmsnorm_backward", "dr", "NONFINITE",
           {"dr": [[1.0, -INF, NAN]]}, index=1, note="the lower of the two")
    refuse(f, "x-before-dy", "layer_backward", "x", "NONFINITE",
           {**with_element("layer_backward", "x", 7, NAN),
            **with_element("layer_backward", "dy", 0, NAN)}, index=7,
           note="the first argument that is at fault")
    f.add("largest-numbers-are-finite", "situ_glu_backward", {"f": 1},
          {"gate_up": [[0.0, 0.0]], "dh": [[float.fromhex("0x1.fffffep+127")]]},
          out={"dgate_up": [[0.0, 0.0]]})
    return f


def families() -> list[Family]:
    return [door(), nonfinite()]
