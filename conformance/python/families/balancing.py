# SPDX-License-Identifier: Apache-2.0
"""qb_exact (Q1, Q2, Q5) and sign_step (Q6)."""

import math
from fractions import Fraction as F

from golden.cases import Family, empty, fill, gen
from golden.real import f32

GITHUB = "https://github.com/"
FLT_MAX = float.fromhex("0x1.fffffep+127")
RELAXED = {"balance": "relaxed"}


def centred(*candidate):
    mean = sum(candidate) / F(len(candidate))
    return [c - mean for c in candidate]


def sixteenths(*table):
    return [[v / 16 for v in row] for row in table]


def relaxed() -> Family:
    f = Family("qb/relaxed",
               "The order statistic at i*, in integers, whatever ties there are; by hand and on "
               "seeded batches.",
               ["Q1", "Q2"], ["quantile-floor-of-q", "quantile-off-by-one",
                              "quantile-interpolated", "no-centring", "bias-sign-flipped",
                              "required-bias-from-key", "cutoff-is-kth-key"])

    def case(id, n, k, score, candidate, bias=None, **rest):
        out = {"new_bias": centred(*candidate), "candidate": candidate}
        f.add(id, "qb_exact", {"n": n, "k": k, **RELAXED},
              {"score": score, "bias": bias or [0.0] * n}, out=out, **rest)

    case("dual-rises", 3, 1, sixteenths([12, 15, 11], [5, 2, 14]),
         [F(0), F(3, 16), F(1, 16)], clause=["Q1", "Q6"],
         kills=["quantile-floor-of-q"], tags=["probe"],
         note="order statistic i* = 1, neither floor(m k / n) = 0 nor an interpolated quantile")
    half, rest = F(f32("0.5")), [[f32(v), 0.5] for v in ("0.9", "0.8", "0.7", "0.6")]
    source = GITHUB + "NVIDIA/Megatron-LM/pull/5349"
    case("without-padding", 2, 1, rest, [half - F(f32("0.7")), F(0)], clause=["Q1", "Q5"],
         provenance="public-report", source=source)
    case("padding-shifts-it", 2, 1, rest + [[0.5, 0.5]] * 4, [F(0), F(0)],
         clause=["Q1", "Q5"], provenance="public-report", source=source,
         note="what happens when a caller does not leave padding out")
    rows = [f32(r.split()) for r in ("0.9 0.5 0.4", "0.8 0.5 0.3", "0.7 0.6 0.2")]
    case("common-offset", 3, 1, rows,
         [half - F(f32("0.8")), F(0), half - F(f32("0.3"))], provenance="public-report",
         source=GITHUB + "pytorch/torchtitan/issues/1506", kills=["no-centring"],
         note="the new bias is centred: minus the mean over experts", tags=["probe"])
    case("plateau", 2, 1, [[0.5, 0.25], [0.75, 0.25], [0.25, 0.5], [0.625, 0.375]],
         [F(-1, 4), F(0)], kills=["strict-refuses-in-relaxed"])
    case("all-equal", 3, 2, [[0.5] * 3] * 4, [F(0)] * 3, bias=[0.0] * 3)
    case("one-token", 3, 1, [[0.5, 0.75, 0.25]], [F(0), F(-1, 4), F(1, 4)])
    case("k-of-n-minus-one", 4, 3, [[0.5, 0.75, 0.25, 0.125], [0.25, 0.5, 0.75, 1.0]],
         [F(0), F(-1, 4), F(-1, 8), F(0)])
    case("old-bias-enters-by-alpha-only", 2, 1, [[0.5, 0.25], [0.75, 0.5]],
         [F(-1, 2), F(-1, 4)], bias=[-0.5, 0.25],
         kills=["bias-added-to-old", "bias-ignored", "required-bias-from-key"],
         note="alpha 0 and 1/4")
    _seeded(f)
    return f


def _seeded(f: Family) -> None:
    """m k / n integral or not."""
    for n, k, m, b in ((4, 1, 8, 0), (8, 2, 32, -4), (6, 2, 9, -3), (24, 5, 17, -4),
                       (96, 3, 64, -6), (7, 6, 10, -2), (33, 4, 21, -3)):
        bias = gen((n,), n + m, 16, 2.0 ** (b - 16)) if b else fill((n,), 0.0)
        f.add(f"seeded-n{n}-k{k}-m{m}", "qb_exact", {"n": n, "k": k, **RELAXED},
              {"score": gen((m, n), n + m, 22, 2.0**-24, 0.5), "bias": bias})
    f.add("seeded-bf16-like-scores", "qb_exact", {"n": 5, "k": 2, **RELAXED},
          {"score": gen((12, 5), 3, 4, 2.0**-5, 0.5), "bias": gen((5,), 3, 4, 2.0**-7)},
          note="many equal values")


def indices() -> Family:
    f = Family("qb/index",
               "Sizes where a floating-point index takes the neighbour of the right element.",
               ["Q1"], ["float-quantile-index", "double-quantile-index",
                        "quantile-off-by-one"])
    found = {"f64": ((25, 7, 26), (12, 7, 109), (17, 3, 86)),
             "f32": ((5, 3, 26), (7, 1, 22), (13, 7, 14)),
             "f64-complement": ((5, 4, 6), (6, 5, 7)),
             "f32-complement": ((3, 1, 4), (3, 2, 7), (9, 3, 4))}
    for way, sizes in found.items():
        for n, k, m in sizes:
            f.add(f"{way}-n{n}-k{k}-m{m}", "qb_exact", {"n": n, "k": k, **RELAXED},
                  {"score": gen((m, n), n * m, 20, 2.0**-22, 0.5), "bias": fill((n,), 0.0)},
                  want=("new_bias", "candidate"),
                  note={"f64": "ceil((m-1)(k/n)) goes wrong in binary64",
                        "f32": "ceil((m-1)(k/n)) goes wrong in binary32",
                        "f64-complement": "(m-1)(1-k/n) goes wrong in binary64",
                        "f32-complement": "(m-1)(1-k/n) goes wrong in binary32"}[way])
    for n, k, m in ((3, 1, 5001), (2, 1, 4096)):
        f.add(f"long-n{n}-k{k}-m{m}", "qb_exact", {"n": n, "k": k, **RELAXED},
              {"score": gen((m, n), m, 22, 2.0**-24, 0.5), "bias": fill((n,), 0.0)},
              want=("new_bias", "candidate"), tier="full")
    return f


def rounding() -> Family:
    f = Family("qb/rounding", "new_bias is the exact rational rounded once, ties to even.",
               ["Q1"], ["required-bias-in-binary32", "centred-in-binary32",
                        "candidate-rounded-first"])
    t, u = 2.0**-26, 2.0**-24

    def case(id, tiny, value, **rest):
        candidate = [F(tiny) - F(1, 2), F(0)]
        f.add(id, "qb_exact", {"n": 2, "k": 1, **RELAXED},
              {"score": [[0.5, tiny]], "bias": [0.0, 0.0]},
              out={"new_bias": [-value, value], "candidate": candidate}, **rest)

    case("midpoint-up-to-even", t, 0.25,
         note="1/4 - 2^-27 is half-way between 1/4 - 2^-26 and 1/4")
    case("midpoint-down-to-even", 3 * t, 0.25 - 4 * t / 2,
         note="1/4 - 3/2^27 is half-way between 1/4 - 2^-26 and 1/4 - 2^-25")
    case("no-midpoint", 2 * t, 0.25 - t)
    f.add("thirds", "qb_exact", {"n": 3, "k": 1, **RELAXED},
          {"score": [[0.5, 0.75, 0.25]], "bias": [0.0, 0.125, 0.0]},
          out={"new_bias": centred(F(0), F(-1, 4), F(1, 4)), "cutoff": [0.5]})
    tiny = F(9 * 2.0**-26)
    f.add("candidate-of-25-bits", "qb_exact", {"n": 3, "k": 1, **RELAXED},
          {"score": [[0.5, float(tiny), 0.0]], "bias": [0.0] * 3},
          out={"candidate": [tiny - F(1, 2), F(0), tiny],
               "new_bias": centred(tiny - F(1, 2), F(0), tiny)},
          note="9/2^26 - 1/2 needs 25 bits; rounded to 24 it moves new_bias by an ulp")
    f.add("alpha-is-rounded", "qb_exact", {"n": 2, "k": 1, **RELAXED},
          {"score": [[0.5 + 3 * u, 0.5 + u], [0.5 + u, 0.5 + 3 * u]], "bias": [0.5, 0.5]},
          want=("new_bias", "candidate", "cutoff"), kills=["key-in-double"],
          note="a cutoff of 1 + 2^-24 rounds to 1")
    f.add("subnormal-score", "qb_exact", {"n": 2, "k": 1, **RELAXED},
          {"score": [[1.0, 2.0**-140]], "bias": [0.0, 0.0]},
          want=("new_bias",), note="the candidate is 1 less next to nothing")
    f.add("large-bias", "qb_exact", {"n": 3, "k": 1, **RELAXED},
          {"score": [[0.5, 0.25, 0.75], [0.125, 0.5, 0.25], [1.0, 0.0, 0.5]],
           "bias": [2.0**20, 2.0**20 + 0.5, 2.0**20 - 0.25]})
    f.add("huge-bias", "qb_exact", {"n": 3, "k": 1, **RELAXED},
          {"score": [[0.5, 0.25, 0.75]], "bias": [FLT_MAX, 0.0, -FLT_MAX]},
          clause=["Q1", "R5"], note="the middle key is the cutoff, 1/4")
    return f


def strict() -> Family:
    f = Family("qb/strict", "Strict refuses a fractional target and a tie at the boundary.",
               ["Q2"], ["note-test-always", "equality-tie-test", "strict-accepts-ties",
                        "tie-test-at-wrong-rank", "highest-tie-reported"])
    u = 2.0**-24

    def near(gap, **config):
        """Columns apart by 1/4 and more but expert 0: its gap at r = -1/2 + gap."""
        return ({"n": 3, "k": 1, **config},
                {"score": [[0.875, 0.375, 0.125], [0.875 - gap, 0.125, 0.375],
                           [0.5, 0.75, 0.125]], "bias": [0.0] * 3})

    tie = {"status": "SLM_ERR_TIE", "field": "new_bias", "index": 0}
    f.add("relative-just-inside", "qb_exact", *near(84 * u), **tie,
          note="84/2^24 <= 1e-8 + 1e-5 |r|")
    f.add("relative-just-outside", "qb_exact", *near(85 * u),
          out={"candidate": [F(85 * u) - F(1, 2), F(0), F(1, 4)],
               "new_bias": centred(F(85 * u) - F(1, 2), F(0), F(1, 4))})
    f.add("relative-inside-equal-test", "qb_exact", *near(84 * u, tie_test="equal"),
          out={"candidate": [F(84 * u) - F(1, 2), F(0), F(1, 4)]})
    f.add("exact-tie-equal-test", "qb_exact", *near(0.0, tie_test="equal"), **tie)
    f.add("exact-tie", "qb_exact", *near(0.0), **tie,
          note="strict balancing refuses a tie at the boundary", tags=["probe"])
    f.add("exact-tie-relaxed", "qb_exact", *near(0.0, **RELAXED),
          out={"candidate": [F(-1, 2), F(0), F(1, 4)]})
    eighth = 0.125
    for name, gap, inside in (("inside", 2.0**-27, True), ("outside", 2.0**-26, False)):
        score = [[eighth - gap, eighth - 2 * gap], [0.0625, 0.5]]
        rest = tie if inside else {"out": {"candidate": [F(0), F(0)], "new_bias": [0.0, 0.0]}}
        f.add(f"absolute-just-{name}", "qb_exact", {"n": 2, "k": 1},
              {"score": score, "bias": [0.0, 0.0]}, **rest,
              note="at r = 0 the tolerance is 1e-8")
    missed = {"score": [[0.75, 0.875], [0.0625, 0.5]], "bias": [2.0**-27, 0.0]}
    f.add("equality-misses-it", "qb_exact", {"n": 2, "k": 1}, missed, **tie,
          kills=["equality-tie-test"])
    f.add("equality-would-accept", "qb_exact", {"n": 2, "k": 1, "tie_test": "equal"}, missed)
    f.add("structural", "qb_exact", {"n": 2, "k": 1},
          {"score": [[0.5, 0.25], [0.75, 0.25], [0.25, 0.5], [0.625, 0.375]],
           "bias": [0.0, 0.0]}, **tie, note="every token cut by one expert has r = b there")
    f.add("tie-off-the-boundary", "qb_exact", {"n": 2, "k": 1},
          {"score": [[0.75, 0.25], [0.75, 0.25], [0.25, 0.5], [0.125, 0.5]],
           "bias": [0.0, 0.0]},
          out={"candidate": [F(0), F(0)], "new_bias": [0.0, 0.0]},
          note="equal values at ranks 1, 2 and 3, 4, the boundary between them is free")
    f.add("lowest-of-two-ties", "qb_exact", {"n": 3, "k": 1},
          {"score": sixteenths([12, 16, 4], [16, 6, 13], [1, 15, 11]), "bias": [0.0] * 3},
          status="SLM_ERR_TIE", field="new_bias", index=1, kills=["highest-tie-reported"],
          note="16 r ascending: -3 0 10, -4 -4 7 and 0 0 8; experts 1 and 2 tie at the boundary")
    ones = {"score": fill((3, 2), 1.0), "bias": [0.0, 0.0]}
    f.add("fraction-relaxed", "qb_exact", {"n": 2, "k": 1, **RELAXED}, ones,
          out={"new_bias": [0.0, 0.0], "candidate": [0.0, 0.0]})
    f.add("integral-beyond-one", "qb_exact", {"n": 4, "k": 2},
          {"score": sixteenths([15, 11, 6, 2], [3, 14, 9, 5], [7, 1, 13, 10], [12, 4, 8, 16]),
           "bias": [0.0] * 4}, want=("new_bias", "candidate", "cutoff"))
    return f


def empties() -> Family:
    f = Family("qb/no-tokens",
               "m = 0 succeeds in both modes, and by histogram, and keeps every bit of the bias.",
               ["Q1", "Q3", "R5"], ["empty-batch-centres", "empty-batch-fails",
                                    "counts-not-written"])
    bias = [0.75, -0.0, 2.0**-140, -0.125]
    for mode in ("strict", "relaxed"):
        f.add(mode, "qb_exact", {"n": 4, "k": 1, "balance": mode},
              {"score": empty(0, 4), "bias": bias},
              out={"new_bias": bias, "candidate": bias, "cutoff": empty(0)})
    f.add("solve", "qb_hist_solve", {"n": 4, "k": 1, "B": 2, "T": 0},
          {"hist": fill((4, 2), 0), "bias": bias}, out={"new_bias": bias, "candidate": bias})
    return f


def sign() -> Family:
    f = Family("qb/sign-step", "b + rate sign(mean load - load), rounded once; 0 keeps bits.",
               ["Q6"], ["sign-step-flipped", "load-against-share", "sign-step-proportional",
                        "float-mean-load"])

    def case(id, bias, load, new_bias, rate=None, **rest):
        config = {"n": len(bias)} | ({"rate": rate} if rate else {})
        f.add(id, "sign_step", config, {"bias": bias, "load": load},
              out={"new_bias": new_bias}, **rest)

    r = 2.0**-10
    case("documents-loads", [0.0] * 4, [4, 3, 1, 0], [-r, -r, r, r])
    case("units", [0.0] * 4, [10, 20, 30, 20], [r, 0.0, -r, 0.0], provenance="public-report",
         source=GITHUB + "gfyddha/FlyLoRA/issues/1", kills=["load-against-share"])
    case("zero-keeps-bits", [-0.0, 0.0, 0.25], [5, 5, 5], [-0.0, 0.0, 0.25])
    case("mean-not-integral", [0.5, 0.5, 0.5], [1, 2, 2], [0.5 + r, 0.5 - r, 0.5 - r],
         kills=["integer-mean-load"])
    case("midpoint-to-even", [1.0, 1 + 2.0**-23, -1.0], [0, 0, 9],
         [1.0, 1 + 2.0**-22, -1.0], rate=2.0**-24,
         note="1 + 2^-24 and 1 + 3/2^24 are midpoints, -1 - 2^-24 too")
    case("below-one", [1.0, 1 - 2.0**-24, 0.0], [9, 9, 0],
         [1.0, 1 - 2.0**-23, 2.0**-25], rate=2.0**-25,
         note="1 - 2^-25 rounds to 1 and 1 - 3/2^25 to 1 - 2^-23")
    case("swallowed", [2.0**20, -(2.0**20)], [0, 2], [2.0**20, -(2.0**20)], rate=2.0**-12)
    big = 2**53
    case("loads-past-binary64", [0.0] * 3, [big, big + 1, big + 1], [r, -r, -r],
         note="the mean is 2^53 + 2/3", kills=["float-mean-load"])
    case("sum-past-int32", [0.0] * 2, [2**31, 2**31 + 2], [r, -r], kills=["counts-32-bit"])
    case("no-load", [0.5, -0.5], [0, 0], [0.5, -0.5])
    case("one-expert", [0.5], [7], [0.5])
    case("largest-bias", [FLT_MAX, -FLT_MAX], [0, 2], [FLT_MAX, -FLT_MAX])
    case("past-the-largest", [FLT_MAX, -FLT_MAX, 2.0**127, -(2.0**126)], [0, 9, 1, 9],
         [math.inf, -math.inf, math.inf, -(2.0**127 + 2.0**126)], rate=2.0**127,
         note="the sums are rounded as any other: one of 2^128 and more is infinite",
         kills=["sign-step-saturates"])
    case("half-a-unit-past", [FLT_MAX, -FLT_MAX], [0, 2], [math.inf, -math.inf],
         rate=2.0**103, note="half a unit, and FLT_MAX is odd",
         kills=["sign-step-saturates"])
    case("below-half-a-unit-past", [FLT_MAX, -FLT_MAX], [0, 2], [FLT_MAX, -FLT_MAX],
         rate=2.0**103 - 2.0**79)
    case("cancels", [r, -r], [3, 1], [0.0, 0.0])
    return f


def families() -> list[Family]:
    return [relaxed(), indices(), rounding(), strict(), empties(), sign()]
