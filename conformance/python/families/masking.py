# SPDX-License-Identifier: Apache-2.0
"""Padding masks of qb_exact, qb_hist_accumulate and load_metrics (Q5)."""

import math

from golden.balance import checksum
from golden.cases import Family, empty, fill, gen
from golden.real import f32

from .balancing import RELAXED, centred
from .counting import nothing
from .documents import sparse

NAN, INF = math.nan, math.inf
PADDING = "https://github.com/NVIDIA/Megatron-LM/pull/5349"
REST = [[f32(v), 0.5] for v in ("0.9", "0.8", "0.7", "0.6")]  # tokens of that report
PADS = [[0.5, 0.5]] * 4
HALF = {"n": 2, "k": 1}


def scattered(n):
    """A mask that begins and ends with a token left out."""
    return [int(t % 3 == 1 or t % 7 == 2) for t in range(n)]


def exact() -> Family:
    f = Family("qb/masks",
               "Tokens that the mask leaves out are not counted, not in m, and not looked at.",
               ["Q5", "Q1"], ["mask-ignored", "mask-inverted", "mask-counts-in-m",
                              "masked-cutoff-written", "all-masked-clears-bias"])
    half = f32("0.5")
    shift = [half - f32("0.7"), 0.0]  # exact in binary64
    out = {"new_bias": centred(*shift), "candidate": shift}

    def case(id, score, mask, candidate, cutoff, config=None, bias=None, **rest):
        n = len(score[0])
        f.add(id, "qb_exact", {"n": n, "k": 1, **RELAXED, **(config or {})},
              {"score": score, "bias": bias or [0.0] * n, "mask": mask},
              out={"candidate": candidate, "new_bias": centred(*candidate),
                   "cutoff": cutoff}, **rest)

    f.add("padding-left-out", "qb_exact", {**HALF, **RELAXED},
          {"score": REST + PADS, "bias": [0.0, 0.0], "mask": [1] * 4 + [0] * 4},
          out={**out, "cutoff": [0.5] * 4 + ["any"] * 4}, provenance="public-report",
          source=PADDING, note="the bits of the batch without its four padding rows",
          tags=["probe"])
    f.add("all-counted", "qb_exact", {**HALF, **RELAXED},
          {"score": REST, "bias": [0.0, 0.0], "mask": [1] * 4},
          out={**out, "cutoff": [0.5] * 4}, note="as without a mask")
    f.add("padding-before-and-between", "qb_exact", {**HALF, **RELAXED},
          {"score": [PADS[0], REST[0], PADS[0], PADS[0], *REST[1:], PADS[0]],
           "bias": [0.0, 0.0], "mask": [0, 1, 0, 0, 1, 1, 1, 0]},
          out={**out, "cutoff": ["any", 0.5, "any", "any", 0.5, 0.5, 0.5, "any"]})
    case("left-out-is-not-looked-at", [[NAN, NAN], [0.75, 0.25], [INF, -INF], [2.0, -1.0],
                                       [0.5, 0.375]], [0, 1, 0, 0, 1], [-0.125, 0.0],
         ["any", 0.25, "any", "any", 0.375], note="NaN, infinities, scores outside [0, 1]")
    case("one-of-four", [[0.5] * 3, [0.5, 0.75, 0.25], [1.0, 0.0, 0.0], [0.0] * 3],
         [0, 1, 0, 0], [0.0, -0.25, 0.25], ["any", 0.5, "any", "any"])
    bias = [0.75, -0.0, 2.0**-140, -0.125]
    for mode in ("strict", "relaxed"):
        f.add(f"none-counted-{mode}", "qb_exact", {"n": 4, "k": 1, "balance": mode},
              {"score": fill((3, 4), NAN), "bias": bias, "mask": [0] * 3},
              out={"new_bias": bias, "candidate": bias},
              kills=["all-masked-clears-bias"],
              note="m = 0, and the bias keeps its bits")
    f.add("no-tokens", "qb_exact", {"n": 2, "k": 1},
          {"score": empty(0, 2), "bias": [0.5, -0.5], "mask": empty(0)},
          out={"new_bias": [0.5, -0.5]}, clause=["Q5", "R5"])
    _strict(f)
    for n, k, m, b in ((4, 1, 12, -4), (6, 2, 21, -3), (7, 6, 16, -2), (33, 4, 40, -3)):
        f.add(f"seeded-n{n}-k{k}-m{m}", "qb_exact", {"n": n, "k": k, **RELAXED},
              {"score": gen((m, n), 3 * n + m, 22, 2.0**-24, 0.5),
               "bias": gen((n,), 3 * n + m, 16, 2.0 ** (b - 16)), "mask": scattered(m)})
    return f


def _strict(f: Family) -> None:
    """TARGET and TIE look at the counted tokens."""
    rows = [[0.75, 0.25], [0.25, 0.625], [0.875, 0.5], [0.125, 0.375]]
    base = {"score": rows, "bias": [0.0, 0.0]}
    f.add("three-of-four", "qb_exact", HALF, {**base, "mask": [1, 1, 0, 1]},
          status="SLM_ERR_TARGET", field="n_tokens", clause=["Q5", "Q2"],
          kills=["mask-counts-in-m"], note="q = 3/2, of all tokens it would be 2")
    f.add("two-of-three", "qb_exact", HALF,
          {"score": rows[:3], "bias": [0.0, 0.0], "mask": [1, 1, 0]},
          out={"candidate": [0.0, 0.0], "new_bias": [0.0, 0.0],
               "cutoff": [0.25, 0.25, "any"]}, clause=["Q5", "Q2"],
          kills=["mask-counts-in-m", "mask-ignored"], note="q = 1, of all tokens 3/2")
    tied = [[0.5, 0.25], [0.75, 0.25], [0.25, 0.5], [0.625, 0.375]]
    f.add("tie-left-out", "qb_exact", HALF,
          {"score": [*tied, *rows[:2]], "bias": [0.0, 0.0], "mask": [0, 0, 0, 0, 1, 1]},
          out={"candidate": [0.0, 0.0], "new_bias": [0.0, 0.0]}, clause=["Q5", "Q2"],
          kills=["mask-ignored", "mask-inverted"])
    f.add("tie-counted", "qb_exact", HALF,
          {"score": [rows[0], *tied, rows[1]], "bias": [0.0, 0.0], "mask": [0, 1, 1, 1, 1, 0]},
          status="SLM_ERR_TIE", field="new_bias", index=0, clause=["Q5", "Q2"],
          kills=["mask-inverted"])


def refused() -> Family:
    f = Family("reject/masks",
               "A mask is 0 or 1, and of the tokens that it counts everything is asked.",
               ["Q5", "X1"], ["mask-unchecked", "refusal-missing", "writes-on-refusal"])
    base = {"score": [[0.75, 0.25], [NAN, 2.0], [0.25, 0.625]], "bias": [0.0, 0.0]}
    counts = {**base, "hist": nothing(2, 4)}
    ids = {"ids": [[0, 1], [7, 7], [2, 3]]}
    step = {**counts, "ticket": [0, 0, checksum([0.0, 0.0]), 0],
            "stamp": [0, checksum([0.0, 0.0]), 0, 0]}
    for op, config, inputs in (("qb_exact", HALF, base),
                               ("qb_hist_accumulate", {**HALF, "B": 4}, counts),
                               ("load_metrics", {"n": 4, "k": 2}, ids),
                               ("qb_observe", {**HALF, "B": 4}, step)):
        name = op.replace("_", "-")
        f.add(f"{name}-two", op, config, {**inputs, "mask": [1, 0, 2]},
              status="SLM_ERR_DOMAIN", field="mask", index=2)
        f.add(f"{name}-negative", op, config, {**inputs, "mask": [-1, 0, 2]},
              status="SLM_ERR_DOMAIN", field="mask", index=0)
        first = "ids" if op == "load_metrics" else "score"
        f.add(f"{name}-counted", op, config, {**inputs, "mask": [0, 1, 1]},
              status="SLM_ERR_DOMAIN", field=first, index=2 if first == "ids" else 3,
              kills=["refusal-missing", "writes-on-refusal"])
        f.add(f"{name}-shape", op, config, {**inputs, "mask": [1, 0]},
              status="SLM_ERR_SHAPE", field="mask", clause=["Q5", "X2"],
              kills=["refusal-missing", "writes-on-refusal"])
    for op, config, inputs in (("qb_exact", HALF, base),
                               ("qb_hist_accumulate", {**HALF, "B": 4}, counts),
                               ("qb_observe", {**HALF, "B": 4}, step)):
        rows = [[NAN, NAN], [0.75, 0.25], [0.5, NAN]]
        f.add(f"{op.replace('_', '-')}-counted-nan", op, config,
              {**inputs, "score": rows, "mask": [0, 1, 1]},
              status="SLM_ERR_NONFINITE", field="score", index=5,
              kills=["refusal-missing", "writes-on-refusal"])
    return f


def counted() -> Family:
    f = Family("hist/masks", "Required biases of the counted tokens are counted, no other.",
               ["Q5", "Q3"], ["mask-ignored", "mask-inverted",
                              "masked-rows-of-histogram-counted"])

    def case(id, config, score, mask, before, after, **rest):
        n = len(before)
        f.add(id, "qb_hist_accumulate", {"n": n, "k": 1, **config},
              {"score": score, "bias": [0.0] * n, "hist": before, "mask": mask},
              out={"hist": after}, **rest)

    f.add("padding-left-out", "qb_hist_accumulate", HALF,
          {"score": REST + PADS, "bias": [0.0, 0.0], "hist": nothing(2, 1000),
           "mask": [1] * 4 + [0] * 4},
          out={"hist": sparse(1000, {300: 1, 349: 1, 400: 1, 449: 1}, {500: 4})},
          provenance="public-report", source=PADDING)
    f.add("without-padding", "qb_hist_accumulate", HALF,
          {"score": REST, "bias": [0.0, 0.0], "hist": nothing(2, 1000)},
          out={"hist": sparse(1000, {300: 1, 349: 1, 400: 1, 449: 1}, {500: 4})},
          provenance="public-report", source=PADDING, kills=["bins-closed-above"])
    bins = {"B": 8}
    score = [[0.75, 0.5, 0.25], [NAN, INF, -1.0], [0.25, 0.75, 0.5]]
    before = [[1, 2, 3, 4, 5, 6, 7, 8]] * 3
    after = [list(row) for row in before]
    for j, bin in ((0, 3), (0, 5), (1, 4), (1, 3), (2, 5), (2, 4)):
        after[j][bin] += 1
    case("between-and-not-looked-at", bins, score, [1, 0, 1], before, after)
    case("none-counted", bins, score, [0, 0, 0], before, before)
    case("all-counted", bins, [score[0], score[2]], [1, 1], before, after,
         kills=["mask-inverted"])
    full = [[2**63 - 2, 0], [0, 2**63 - 2]]
    case("room-for-one", {"B": 2}, [[0.5, 0.5]] * 3, [0, 1, 0], full,
         [[2**63 - 2, 1], [0, 2**63 - 1]],
         kills=["mask-ignored"], note="a row sum of 2^63 - 1, of three tokens it would be more")
    full = [[2**63 - 1, 0], [0, 2**63 - 1]]
    f.add("room-for-none", "qb_hist_accumulate", {**HALF, "B": 2},
          {"score": [[0.5, 0.5]] * 3, "bias": [0.0, 0.0], "hist": full, "mask": [0, 1, 0]},
          status="SLM_ERR_DOMAIN", field="hist", index=0, kills=["refusal-missing"])
    for n, k, m in ((6, 2, 21), (24, 5, 30)):
        f.add(f"seeded-n{n}", "qb_hist_accumulate", {"n": n, "k": k, "B": 40},
              {"score": gen((m, n), n + m, 20, 2.0**-22, 0.5),
               "bias": gen((n,), n + m, 10, 2.0**-13), "hist": nothing(n, 40),
               "mask": scattered(m)})
    return f


def loads() -> Family:
    f = Family("metrics/masks", "Loads and their mean are those of the counted tokens.",
               ["Q5", "Q7"], ["masked-rows-of-metrics-counted", "mask-ignored",
                              "mask-inverted", "mask-counts-in-m"])

    def case(id, n, ids, mask, load, metric, **rest):
        f.add(id, "load_metrics", {"n": n, "k": len(ids[0])}, {"ids": ids, "mask": mask},
              out={"load": load, **({"metric": metric} if metric else {})}, **rest)

    case("half-of-eight", 2, [[0], [1], [0], [0], [1], [0], [1], [1]],
         [1, 1, 1, 1, 0, 0, 0, 0], [3, 1], [0.5, 0.5, 0.0, 0.25],
         note="the mean of 4 tokens is 2")
    case("not-looked-at", 4, [[0, 1], [-1, 4], [2, 2], [0, 3]], [1, 0, 0, 1],
         [2, 1, 0, 1], None, note="ids out of range and repeated")
    case("none-counted", 3, [[0], [1]], [0, 0], [0, 0, 0], [0.0, 0.0, 3.0, 0.0],
         clause=["Q5", "Q7", "R5"])
    case("all-counted", 2, [[0], [0], [1], [0]], [1, 1, 1, 1], [3, 1],
         [0.5, 0.5, 0.0, 0.25], kills=["mask-inverted"])
    case("one-dead-without-padding", 3, [[0], [1], [2], [2]], [1, 1, 0, 0], [1, 1, 0],
         None, note="expert 2 works for padding only")
    ids = [[(3 * t + q * (1 + t % 4)) % 7 for q in range(2)] for t in range(24)]
    ids = [row if row[0] != row[1] else [row[0], (row[0] + 1) % 7] for row in ids]
    f.add("twenty-four", "load_metrics", {"n": 7, "k": 2},
          {"ids": ids, "mask": scattered(24)})
    return f


def families() -> list[Family]:
    return [exact(), refused(), counted(), loads()]
