# SPDX-License-Identifier: Apache-2.0
"""route (R1-R5), permute (L5) and load_metrics (Q7)."""

import math
from fractions import Fraction as F

from golden.cases import Family, empty, fill, gen, recipe
from golden.forward import choose

GITHUB = "https://github.com/"
ALL = ("ids", "weight", "cutoff", "logit", "score")
IDENTITY4 = [[1.0 if i == j else 0.0 for j in range(4)] for i in range(4)]


def full_width() -> Family:
    f = Family("route/full-width", "The router reads x at full width and never the latent.",
               ["R1"], ["square-router-transposed", "router-transposed", "bias-ignored"])
    source = GITHUB + "vllm-project/vllm/pull/34087"
    f.add("two-experts", "route", {"d": 4, "n": 2, "k": 1},
          {"x": [[1.0, 2.0, 3.0, 4.0]],
           "w_router": [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
           "bias": [0.0, 0.0]},
          out={"ids": [[1]], "weight": [[1.0]], "logit": [[1.0, 4.0]]},
          provenance="public-report", source=source)
    f.add("square-router", "route", {"d": 4, "n": 4, "k": 2},
          {"x": [[-1.0, -4.0, -2.0, -3.0]],
           "w_router": [[1.0, 2.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 3.0, 1.0, 0.0],
                        [0.0, 0.0, 0.5, 1.0]], "bias": [0.0] * 4},
          out={"ids": [[1, 3]], "logit": [[-9.0, -4.0, -14.0, -4.0]], "weight": [[0.5, 0.5]]},
          note="n = d, so shapes cannot catch a transposed router")
    f.add("square-router-scores", "route", {"d": 4, "n": 4, "k": 2},
          {"x": [[1.0, 0.5, -2.0, 0.25]], "w_router": IDENTITY4, "bias": [0.0, 0.0, 1.0, 0.0]},
          want=ALL)
    return f


def integers() -> Family:
    f = Family("route/integer-ties",
               "Integer x and weights make logits exact in any order, so ties are exact too.",
               ["R2"], ["tail-lanes-other-sigmoid", "higher-id-wins", "epsilon-tie-hack"])
    report = GITHUB + "pytorch/pytorch/issues/127196"
    w = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 2.0], [-1.0, 0.0, 1.0], [6.0, 0.0, 0.0],
         [0.0, 3.0, 0.0]]
    f.add("six-equal-but-one", "route", {"d": 3, "n": 6, "k": 3},
          {"x": [[1.0, 1.0, 1.0]], "w_router": w, "bias": [0.0] * 6},
          out={"ids": [[0, 1, 2]], "weight": [[F(1, 3)] * 3],
               "logit": [[6.0, 6.0, 6.0, 0.0, 6.0, 3.0]]})
    f.add("negated", "route", {"d": 3, "n": 6, "k": 3},
          {"x": [[-1.0, -1.0, -1.0]], "w_router": w, "bias": [0.0] * 6},
          want=ALL)
    f.add("tie-with-the-last-lanes", "route", {"d": 2, "n": 7, "k": 2},
          {"x": [[float(t), 0.0] for t in range(1, 9)],
           "w_router": [[1.0, 2.0], [1.0, -1.0], [0.0, 3.0], [-1.0, 0.0], [1.0, 1.0],
                        [1.0, 0.0], [1.0, 4.0]], "bias": [0.0] * 7},
          out={"ids": [[0, 1]] * 8, "weight": [[0.5, 0.5]] * 8,
               "logit": [[float(t * v) for v in (1, 1, 0, -1, 1, 1, 1)] for t in range(1, 9)]},
          note="equal logits in ids 0, 1 and 4, 5, 6, where a vector loop leaves a rest")
    f.add("router-of-zeros", "route", {"d": 16, "n": 8, "k": 2},
          {"x": gen((64, 16), 3, 10, 2.0**-8), "w_router": fill((8, 16), 0.0),
           "bias": [0.0] * 8},
          out={"ids": [[0, 1]] * 64, "weight": [[0.5, 0.5]] * 64, "cutoff": [0.5] * 64},
          provenance="public-report", source=report)
    f.add("rows-in-pairs", "route", {"d": 8, "n": 12, "k": 5},
          {"x": gen((6, 8), 5, 3, 1.0),
           "w_router": [[float((i // 2 * 5 + j * 3) % 7 - 3) for j in range(8)]
                        for i in range(12)],
           "bias": [0.0] * 12}, want=ALL)
    return f


def midpoints() -> Family:
    f = Family("route/logit-midpoint",
               "A logit halfway between two binary64 numbers, where a doubling search never "
               "ends.", ["R1", "R2"])
    u = 2.0**-53
    base = {"d": 2, "n": 3, "k": 1}
    f.add("down-to-even", "route", base,
          {"x": [[1.0, u]], "w_router": [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]],
           "bias": [0.0] * 3},
          out={"ids": [[0]], "weight": [[1.0]], "logit": [[1.0, 0.0, 0.0]]})
    f.add("up-to-even", "route", base,
          {"x": [[1.0, u]], "w_router": [[1.0, 3.0], [0.0, 0.0], [0.0, 0.0]],
           "bias": [0.0] * 3},
          out={"ids": [[0]], "weight": [[1.0]], "logit": [[1 + 4 * u, 0.0, 0.0]]})
    f.add("just-above", "route", {"d": 3, "n": 2, "k": 1},
          {"x": [[1.0, u, 2.0**-120]], "w_router": [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]],
           "bias": [0.0, 0.0]},
          out={"ids": [[0]], "weight": [[1.0]], "logit": [[1 + 2 * u, 0.0]]})
    f.add("just-below", "route", {"d": 3, "n": 2, "k": 1},
          {"x": [[1.0, u, 2.0**-120]], "w_router": [[-1.0, -3.0, 1.0], [0.0, 0.0, 0.0]],
           "bias": [0.0, 0.0]},
          out={"ids": [[1]], "weight": [[1.0]], "logit": [[-1 - 2 * u, 0.0]]})
    return f


def numbers() -> Family:
    f = Family("route/numbers", "Exact inputs, logits in binary32 or better.",
               ["R1", "R2", "R3", "A1"],
               ["bf16-logits-for-bf16", "logit-in-bf16", "bf16-scores", "bf16-accumulate",
                "softmax-for-sigmoid"])
    f.add("cancellation", "route", {"d": 4, "n": 3, "k": 2},
          {"x": [[4096.0, 1.0, -4096.0, 2.0**-10]],
           "w_router": [[1.0, 0.5, 1.0, 1.0], [1.0, 0.25, 1.0, 1.0], [2.0, 0.375, 2.0, 4.0]],
           "bias": [0.0] * 3}, want=ALL)
    f.add("paper-plain", "route", {"d": 16, "n": 8, "k": 2},
          {"x": gen((4, 16), 11, 12, 2.0**-11), "w_router": gen((8, 16), 11, 12, 2.0**-12),
           "bias": gen((8,), 11, 12, 2.0**-14)}, want=ALL)
    f.add("bf16-inputs", "route", {"dtype": "bf16", "d": 64, "n": 16, "k": 4},
          {"x": gen((4, 64), 12, 8, 2.0**-7), "w_router": gen((16, 64), 12, 8, 2.0**-10),
           "bias": gen((16,), 12, 16, 2.0**-18)}, want=ALL)
    f.add("release-weights", "route", {"profile": "release", "d": 16, "n": 8, "k": 3},
          {"x": gen((3, 16), 13, 12, 2.0**-11), "w_router": gen((8, 16), 13, 12, 2.0**-12),
           "bias": fill((8,), 0.0)}, want=ALL)
    for profile in ("paper", "release"):
        f.add(f"{profile}-k-one", "route", {"profile": profile, "d": 8, "n": 5, "k": 1},
              {"x": gen((3, 8), 14, 12, 2.0**-11), "w_router": gen((5, 8), 14, 12, 2.0**-12),
               "bias": fill((5,), 0.0)}, want=ALL,
              kills=["k1-not-normalised" if profile == "paper" else "k1-normalised"])
    f.add("softmax-control", "route", {"score": "softmax", "d": 8, "n": 6, "k": 2},
          {"x": gen((3, 8), 15, 12, 2.0**-11), "w_router": gen((6, 8), 15, 12, 2.0**-12),
           "bias": gen((6,), 15, 12, 2.0**-14)}, want=ALL, clause=["L4"],
          kills=["sigmoid-for-softmax"])
    f.add("all-experts", "route", {"d": 8, "n": 5, "k": 5},
          {"x": gen((3, 8), 16, 12, 2.0**-11), "w_router": gen((5, 8), 16, 12, 2.0**-12),
           "bias": gen((5,), 16, 12, 2.0**-14)}, want=("ids", "weight", "logit", "score"),
          clause=["R5"])
    f.add("width-one", "route", {"d": 1, "n": 3, "k": 2},
          {"x": [[0.5], [-0.5], [0.0]], "w_router": [[1.0], [2.0], [-1.0]],
           "bias": [0.0] * 3}, want=ALL)
    f.add("no-tokens", "route", {"d": 4, "n": 3, "k": 2},
          {"x": empty(0, 4), "w_router": fill((3, 4), 1.0), "bias": [0.0] * 3},
          out={"ids": empty(0, 2), "weight": empty(0, 2)}, clause=["R5"],
          kills=["empty-batch-fails"])
    f.add("odd-sizes", "route", {"d": 33, "n": 37, "k": 7},
          {"x": gen((5, 33), 18, 12, 2.0**-11), "w_router": gen((37, 33), 18, 12, 2.0**-13),
           "bias": gen((37,), 18, 12, 2.0**-14)}, want=ALL, kills=["tail-dropped"])
    return f


def extremes() -> Family:
    f = Family("route/extremes", "Saturated and poisoned rows.", ["R2", "R4"],
               ["poisoned-ids-unwritten", "nan-poisons-other-rows"])
    f.add("all-negative", "route", {"d": 2, "n": 4, "k": 2},
          {"x": [[1.0, 2.0]], "w_router": [[-0.5, -1.0], [-0.25, -1.125], [-1.0, -1.0],
                                          [-0.375, -1.0]], "bias": [-8.0] * 4},
          want=ALL, kills=["initial-value-wins"])
    f.add("saturated", "route", {"d": 1, "n": 5, "k": 3},
          {"x": [[1.0], [-1.0]], "w_router": [[17.0], [20.0], [90.0], [30.0], [16.0]],
           "bias": [0.0] * 5}, want=ALL, kills=["ranks-logits-not-scores"])
    nan, inf = math.nan, math.inf
    for name, bad in (("nan", nan), ("infinite", inf)):
        f.add(f"{name}-in-x", "route", {"d": 2, "n": 3, "k": 2},
              {"x": [[1.0, 0.0], [bad, 0.0], [2.0, 0.0]],
               "w_router": [[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]], "bias": [0.0] * 3},
              either=[{"status": "SLM_ERR_NONFINITE", "field": "logit", "index": 3},
                      {"out": {"ids": [[0, 1], ["any", "any"], [0, 1]],
                               "weight": [[0.5] * 2, ["any"] * 2, [0.5] * 2]}}],
              provenance="hand",
              note="0 times infinity is NaN, so the whole middle row is poisoned")
    return f


def permute() -> Family:
    f = Family("permute/stable",
               "Pairs grouped by expert, ascending within one; nothing dropped.",
               ["L5", "R5"], ["unstable-order", "last-expert-dropped", "capacity-drops",
                              "empty-expert-corrupts-next"])
    source = GITHUB + "tgale96/grouped_gemm/issues/36"

    def case(id, n, k, ids, counts, order, **rest):
        offsets = [sum(counts[:e]) for e in range(n + 1)]
        f.add(id, "permute", {"n": n, "k": k}, {"ids": ids},
              out={"counts": counts, "offsets": offsets, "order": order}, **rest)

    case("empty-experts", 4, 1, [[0], [2], [2], [0], [2]], [2, 0, 3, 0], [0, 3, 1, 2, 4],
         provenance="public-report", source=source)
    case("two-slots", 4, 2, [[2, 1], [1, 3], [3, 2]], [0, 2, 2, 2], [1, 2, 0, 5, 3, 4])
    case("all-to-the-last", 4, 1, [[3]] * 5, [0, 0, 0, 5], [0, 1, 2, 3, 4],
         kills=["last-expert-dropped"])
    case("all-to-the-first", 4, 1, [[0]] * 5, [5, 0, 0, 0], [0, 1, 2, 3, 4],
         kills=["capacity-drops"])
    case("one-expert", 1, 1, [[0], [0]], [2], [0, 1])
    case("every-expert", 3, 3, [[2, 0, 1], [0, 1, 2]], [2, 2, 2], [1, 3, 2, 4, 0, 5])
    f.add("no-tokens", "permute", {"n": 3, "k": 2}, {"ids": empty(0, 2)},
          out={"counts": [0] * 3, "offsets": [0] * 4, "order": empty(0)},
          kills=["empty-batch-fails", "counts-not-written"])
    f.add("crowded-8-of-8", "permute", {"n": 8, "k": 2}, {"ids": fill_rows(64, [0, 1])},
          out={"counts": [64, 64] + [0] * 6, "offsets": [0, 64] + [128] * 7,
               "order": [2 * t for t in range(64)] + [2 * t + 1 for t in range(64)]},
          provenance="public-report", source=GITHUB + "deepspeedai/DeepSpeed/issues/1658")
    for tokens in (1, 63, 65, 257):
        f.add(f"seeded-{tokens}", "permute", {"n": 8, "k": 2},
              {"ids": seeded_ids(tokens, 8, 2)},
              source=GITHUB + "tenstorrent/tt-metal/issues/50669",
              tier="full" if tokens == 257 else None)
    f.add("wide", "permute", {"n": 896, "k": 16}, {"ids": seeded_ids(3, 896, 16)},
          kills=["counts-of-256-experts"])
    return f


def fill_rows(count, row):
    return [list(row) for _ in range(count)]


def seeded_ids(tokens, n, k):
    """k distinct ids a token: the ranks of seeded numbers."""
    table = [[recipe("ids", t * n + e, seed=tokens, bits=20, scale=1.0) for e in range(n)]
             for t in range(tokens)]
    return [choose(row, k)[0] for row in table]


def metrics() -> Family:
    f = Family("metrics/load", "MaxVio, CV, dead experts, residual imbalance.", ["Q7"],
               ["vio-of-min", "dead-not-counted", "cv-of-sample", "loads-of-first-slot-only"])

    def case(id, n, k, ids, load, metric, **rest):
        f.add(id, "load_metrics", {"n": n, "k": k}, {"ids": ids},
              out={"load": load, "metric": metric}, **rest)

    case("all-to-one", 4, 1, [[1]] * 4, [0, 4, 0, 0],
         [3.0, float.fromhex("0x1.bb67ae8584caap+0"), 3.0, F(3, 4)],
         note="cv is the root of 3")
    case("mean-not-integral", 2, 1, [[0], [0], [1]], [2, 1], [F(1, 3), F(1, 3), 0.0, F(1, 6)])
    case("even", 3, 2, [[0, 1], [1, 2], [2, 0]], [2, 2, 2], [0.0] * 4)
    case("second-slot-counts", 4, 2, [[0, 3], [1, 3]], [1, 1, 0, 2],
         [1.0, float.fromhex("0x1.6a09e667f3bcdp-1"), 1.0, F(1, 4)],
         note="cv is the root of one half")
    f.add("no-tokens", "load_metrics", {"n": 5, "k": 2}, {"ids": empty(0, 2)},
          out={"load": [0] * 5, "metric": [0.0, 0.0, 5.0, 0.0]}, clause=["Q7", "R5"],
          kills=["zero-over-zero"])
    f.add("seeded", "load_metrics", {"n": 24, "k": 4}, {"ids": seeded_ids(40, 24, 4)})
    f.add("sparse", "load_metrics", {"n": 96, "k": 2}, {"ids": seeded_ids(20, 96, 2)})
    return f


def families() -> list[Family]:
    return [full_width(), integers(), midpoints(), numbers(), extremes(), permute(), metrics()]
