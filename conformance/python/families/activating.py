# SPDX-License-Identifier: Apache-2.0
"""situ_glu and dense_ffn (L1, L3, L4)."""

import math

from golden.cases import Family, empty, gen

GITHUB = "https://github.com/"
MAX = float.fromhex("0x1.fffffep+127")


def pairs(*values):
    """One token a pair: [gate, up]."""
    return {"gate_up": [[float(a), float(b)] for a, b in values]}


def packed(*values):
    """One token: all gates, then all ups."""
    return {"gate_up": [[float(a) for a, _ in values] + [float(b) for _, b in values]]}


def one(value):
    return [[v] for v in value]


def values() -> Family:
    f = Family("situ/values",
               "sigma acts on the uncapped gate; both caps are smooth, 4 and 25. An exact "
               "result other than 0 is transcendental, so a midpoint never occurs.",
               ["L1"], ["sigma-of-capped-gate", "up-cap-missing", "gate-cap-missing",
                        "hard-clamp", "halves-swapped", "betas-swapped", "swiglu-for-situ",
                        "tanh-in-bf16", "betas-fixed"])
    source = GITHUB + "sgl-project/sglang/pull/32430"
    f.add("moderate", "situ_glu", {"f": 1},
          pairs((1, 1), (-1, 1), (4, 25), (-4, 25), (2, -3), (10, 100), (0.5, 0.25), (-2, -3)))
    f.add("packed-gate-first", "situ_glu", {"f": 4},
          packed((1, -1), (2, -2), (3, -3), (4, -4)), source=source,
          kills=["halves-swapped", "interleaved-halves"], tags=["probe"],
          note="the packed buffer is [gate | up]")
    f.add("swapped-would-differ", "situ_glu", {"f": 1}, pairs((2, -3), (-3, 2)),
          source=source)
    f.add("up-cap", "situ_glu", {"f": 1},
          pairs(*((90, b) for b in (1, 5, 10, 20, 25, 50, 100))),
          source=GITHUB + "NVIDIA/cudnn-frontend/pull/645",
          kills=["up-cap-missing", "tanh-in-bf16", "betas-swapped"])
    f.add("gate-cap", "situ_glu", {"f": 1},
          pairs(*((a, 1) for a in (2, 3, 4, 5, 6, 8, 12, -2, -3, -5, -8, -12))),
          kills=["gate-cap-missing", "sigma-of-capped-gate", "hard-clamp"], tags=["probe"],
          note="sigma sees the uncapped gate, the cap is a tanh")
    f.add("steepest", "situ_glu", {"f": 1},
          pairs((1.490234375, 1), (1.490234375, 0.5), (-1.490234375, 1)))
    f.add("other-betas", "situ_glu", {"f": 1, "beta_gate": 1.0, "beta_up": 2.0},
          pairs((1, 1), (2, 3), (-3, 0.5), (20, 20)))
    f.add("huge-betas", "situ_glu", {"f": 1, "beta_gate": 2.0**20, "beta_up": 2.0**20},
          pairs((1, 1), (3, -2)), note="close to SwiGLU and yet not equal to it")
    f.add("bf16-inputs", "situ_glu", {"f": 3, "dtype": "bf16"},
          {"gate_up": [[1.5, -2.0, 0.0078125, 3.0, 30.0, -0.25]]})
    f.add("seeded", "situ_glu", {"f": 17}, {"gate_up": gen((3, 34), 31, 20, 2.0**-17)})
    return f


def small() -> Family:
    f = Family("situ/tiny", "Near 0 the activation is a b / 2, with full relative accuracy.",
               ["L1", "A1"], ["flushes-undeclared", "tanh-by-cancelling-exp",
                              "flushed-too-early"])
    f.add("thousandths", "situ_glu", {"f": 1},
          pairs((2.0**-10, 2.0**-10), (-(2.0**-10), 2.0**-10), (2.0**-13, 1), (1, 2.0**-13)))
    f.add("twenty-decades", "situ_glu", {"f": 1},
          pairs((2.0**-66, 1), (2.0**-66, 2.0**-40), (1, -(2.0**-66)), (20, 2.0**-66)))
    f.add("below-normal", "situ_glu", {"f": 1},
          pairs((2.0**-149, 1), (1, 2.0**-149), (2.0**-130, 64), (2.0**-126, 2)))
    f.add("product-underflows", "situ_glu", {"f": 1},
          pairs((2.0**-100, 2.0**-100), (2.0**-149, 2.0**-149)))
    f.add("zeros", "situ_glu", {"f": 1}, pairs((0, 0), (0, 5), (5, 0), (-5, 0)),
          out={"h": one([0.0] * 4)})
    return f


def saturated() -> Family:
    f = Family("situ/saturated", "Far out: 0, 4, 25 and 100, never NaN, never beyond 100.",
               ["L1"], ["exp-overflow", "nan-at-infinity", "nan-poisons-other-elements",
                        "hard-clamp"])
    source = GITHUB + "antirez/ds4/pull/498"
    f.add("bound", "situ_glu", {"f": 1},
          pairs((1e4, 131072), (1e4, -131072), (1000, 1000), (MAX, MAX), (MAX, -MAX)),
          out={"h": one([100.0, -100.0, 100.0, 100.0, -100.0])}, provenance="document",
          source="note, SiTU-GLU; the bound beta_1 beta_2 = 100")
    f.add("hundred-hundred", "situ_glu", {"f": 1}, pairs((100, 100), (-100, 100), (100, -100)))
    f.add("deep-gate", "situ_glu", {"f": 1},
          pairs(*((a, 1) for a in (-80, -87, -87.5, -88.5, -89, -100, -104, -120))),
          source=source, kills=["exp-overflow", "flushed-too-early"])
    f.add("out-of-reach", "situ_glu", {"f": 1},
          pairs((-10000, 1), (-10000, 131072), (-MAX, MAX)),
          out={"h": one([0.0, 0.0, 0.0])}, kills=["exp-overflow"])
    inf = math.inf
    f.add("infinite-gate", "situ_glu", {"f": 1}, pairs((-inf, 1), (inf, inf), (inf, -inf),
                                                      (-inf, inf), (inf, 0)),
          out={"h": one([0.0, 100.0, -100.0, 0.0, 0.0])}, source=source,
          kills=["nan-at-infinity"])
    f.add("infinite-up", "situ_glu", {"f": 1}, pairs((1, inf), (-1, -inf), (0, inf)))
    f.add("nan-stays-alone", "situ_glu", {"f": 3},
          {"gate_up": [[math.nan, 0.0, 1000.0, 1.0, math.nan, 1000.0]]},
          out={"h": [[math.nan, math.nan, 100.0]]}, kills=["nan-poisons-other-elements"])
    f.add("no-tokens", "situ_glu", {"f": 3}, {"gate_up": empty(0, 6)},
          out={"h": empty(0, 3)}, clause=["R5"], kills=["empty-batch-fails"])
    return f


def ffn() -> Family:
    f = Family("ffn/values", "A gated feed-forward network at full width.", ["L1", "L3"],
               ["halves-swapped", "up-cap-missing", "gate-cap-missing", "out-transposed"])
    source = GITHUB + "MooreThreads/torchada/pull/84"
    x = [[1.0, -0.5]]
    a = {"w_gate": [[1.0, 1.0]], "w_up": [[2.0, 0.0]], "w_out": [[1.0], [2.0]]}
    b = {"w_gate": [[0.0, 1.0]], "w_up": [[1.0, 0.0]], "w_out": [[3.0], [-1.0]]}
    both = {"w_gate": [[1.0, 1.0], [0.0, 1.0]], "w_up": [[2.0, 0.0], [1.0, 0.0]],
            "w_out": [[1.0, 3.0], [2.0, -1.0]]}
    f.add("first", "dense_ffn", {"d": 2, "f": 1}, {"x": x, **a}, source=source)
    f.add("second", "dense_ffn", {"d": 2, "f": 1}, {"x": x, **b}, source=source)
    f.add("sum-is-one-wider", "dense_ffn", {"d": 2, "f": 2}, {"x": x, **both}, source=source,
          note="the sum of the two cases above, not their mean")
    f.add("swiglu", "dense_ffn", {"profile": "vanilla", "d": 2, "f": 2}, {"x": x, **both},
          clause=["L4"], kills=["situ-for-swiglu"])
    relu = {"profile": "vanilla", "expert": "relu", "d": 2, "f": 3}
    f.add("relu", "dense_ffn", relu,
          {"x": [[1.0, -0.5], [0.0, 0.0]], "w_up": [[1.0, 1.0], [-1.0, 1.0], [2.0, 4.0]],
           "w_out": [[1.0, 1.0, 1.0], [4.0, 2.0, -1.0]]},
          out={"h": [[0.5, 0.0, 0.0], [0.0] * 3], "y": [[0.5, 2.0], [0.0, 0.0]]},
          clause=["L4"], kills=["relu-missing"])
    f.add("saturated", "dense_ffn", {"d": 1, "f": 2},
          {"x": [[1000.0]], "w_gate": [[1.0], [-1.0]], "w_up": [[32.0], [32.0]],
           "w_out": [[0.5, 1.0]]}, want=("y", "h"), kills=["exp-overflow"])
    f.add("seeded", "dense_ffn", {"d": 12, "f": 20},
          {"x": gen((3, 12), 41, 12, 2.0**-11), "w_gate": gen((20, 12), 41, 12, 2.0**-12),
           "w_up": gen((20, 12), 41, 12, 2.0**-12), "w_out": gen((12, 20), 41, 12, 2.0**-12)})
    f.add("odd-widths", "dense_ffn", {"d": 33, "f": 7},
          {"x": gen((2, 33), 42, 12, 2.0**-11), "w_gate": gen((7, 33), 42, 12, 2.0**-12),
           "w_up": gen((7, 33), 42, 12, 2.0**-12), "w_out": gen((33, 7), 42, 12, 2.0**-12)},
          source=GITHUB + "ml-explore/mlx/pull/4009", kills=["tail-dropped"])
    f.add("bf16", "dense_ffn", {"dtype": "bf16", "d": 24, "f": 16},
          {"x": gen((2, 24), 43, 8, 2.0**-7), "w_gate": gen((16, 24), 43, 8, 2.0**-9),
           "w_up": gen((16, 24), 43, 8, 2.0**-9), "w_out": gen((24, 16), 43, 8, 2.0**-9)})
    f.add("large-inner", "dense_ffn", {"d": 8, "f": 8},
          {"x": gen((2, 8), 44, 12, 2.0**-5), "w_gate": gen((8, 8), 44, 12, 2.0**-10),
           "w_up": gen((8, 8), 44, 12, 2.0**-8), "w_out": gen((8, 8), 44, 12, 2.0**-12)},
          kills=["up-cap-missing", "gate-cap-missing", "hard-clamp", "sigma-of-capped-gate"],
          note="inner values reach both caps")
    f.add("no-tokens", "dense_ffn", {"d": 2, "f": 1}, {"x": empty(0, 2), **a},
          out={"y": empty(0, 2), "h": empty(0, 1)}, clause=["R5"],
          kills=["empty-batch-fails"])
    nan = math.nan
    f.add("nan-row", "dense_ffn", {**relu, "f": 1},
          {"x": [[1.0, 0.0], [nan, 0.0], [0.0, 2.0]], "w_up": [[1.0, 1.0]],
           "w_out": [[1.0], [-1.0]]},
          either=[{"status": "SLM_ERR_NONFINITE", "field": "x", "index": 2},
                  {"out": {"y": [[1.0, -1.0], [nan, nan], [2.0, -2.0]]}}],
          provenance="hand", clause=["R4"], kills=["relu-hides-nan", "nan-poisons-other-rows"])
    good = {"x": [[1.0, 0.0], [0.0, 2.0]], "w_up": [[1.0, 1.0]], "w_out": [[1.0], [-1.0]]}
    for name, bad, y in (("w_up", [[1.0, nan]], [[nan, nan], [nan, nan]]),
                         ("w_out", [[1.0], [nan]], [[1.0, nan], [2.0, nan]])):
        whole = [{"out": {"y": [[nan, nan], [nan, nan]]}}] if name == "w_out" else []
        f.add(f"nan-in-{name.replace('_', '-')}", "dense_ffn", {**relu, "f": 1},
              {**good, name: bad},
              either=[{"status": "SLM_ERR_NONFINITE", "field": name, "index": 1},
                      {"out": {"y": y}}, *whole],
              provenance="hand", clause=["R4"], kills=["relu-hides-nan", "nan-hidden"])
    return f


def families() -> list[Family]:
    return [values(), small(), saturated(), ffn()]
