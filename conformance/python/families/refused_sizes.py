# SPDX-License-Identifier: Apache-2.0
"""What must be refused in inputs of many elements (X1)."""

import math

from golden.cases import Family, Tensor, fill

from . import gradients_layer, layers
from .routing import seeded_ids

LAYER = {**layers.SMALL, "S": 0}
ROWS = (3, 70)
# (operation, configuration, shapes of what is searched, of what is not).
CALLS = (
    ("situ_glu_backward", {"f": 35}, {"gate_up": ROWS, "dh": (3, 35)}, {}),
    ("rmsnorm_backward", {"l": 70}, {"u": ROWS, "gamma": (70,), "dr": ROWS}, {}),
    ("select_backward", {"n": 70, "k": 2}, {"logit": ROWS}, {"dweight": (3, 2)}),
    ("select_backward", {"n": 3, "k": 2}, {"dweight": (40, 2)}, {"logit": (40, 3)}),
    ("dense_ffn_backward", {"d": 13, "f": 7}, {"x": (8, 13), "dy": (8, 13), "w_gate": (7, 13),
                                               "w_up": (7, 13), "w_out": (13, 7)}, {}),
    ("qb_exact", {"n": 70, "k": 2}, {"score": ROWS, "bias": (70,)}, {}),
    ("qb_hist_accumulate", {"n": 70, "k": 2, "B": 4}, {"score": ROWS, "bias": (70,)},
     {"hist": (70, 4)}),
    ("sign_step", {"n": 70}, {"bias": (70,)}, {"load": (70,)}),
    ("select", {"n": 70, "k": 2}, {"bias": (70,)}, {"score": ROWS}),
    ("route", {"d": 2, "n": 70, "k": 2}, {"bias": (70,)}, {"x": (2, 2), "w_router": (70, 2)}),
)


def spoilt(shape, at):
    """Halves, but no number at one place."""
    data = [0.5] * math.prod(shape)
    data[at] = math.nan
    return Tensor(shape, data=data)


def nonfinite() -> Family:
    """A search that ends too early, or leaves out the rest of a row, misses the NaN."""
    f = Family("reject/nonfinite-sizes",
               "A NaN near the end of an input of more elements than a block, and at its end.",
               ["X1", "R5", "G1", "G2", "G3", "G4", "Q1", "Q3", "Q6"], ["nonfinite-past-a-block"])

    def refuse(op, config, given, name, shape):
        for word, at in (("near", math.prod(shape) - 5), ("last", math.prod(shape) - 1)):
            f.add(f"{op}-{name}-{word}".replace("_", "-"), op, config,
                  {**given, name: spoilt(shape, at)}, status="SLM_ERR_NONFINITE", field=name,
                  index=at)

    for op, config, searched, rest in CALLS:
        given = {name: fill(shape, 0 if name in ("hist", "load") else 0.5)
                 for name, shape in {**searched, **rest}.items()}
        if op == "select_backward":
            given["ids"] = seeded_ids(given["dweight"].shape[0], config["n"], config["k"])
        for name, shape in searched.items():
            refuse(op, config, given, name, shape)
    made = gradients_layer.inputs(LAYER, 16, 690)
    for name in ("x", "dy"):
        refuse("layer_backward", LAYER, made, name, (16, LAYER["d"]))
    return f


def families() -> list[Family]:
    return [nonfinite()]
