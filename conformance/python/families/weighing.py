# SPDX-License-Identifier: Apache-2.0
"""select: mixture weights (R3), one expert a token, deep and saturated logits, R4 rows."""

import math
from fractions import Fraction as F

from golden.cases import Family, resolve
from golden.forward import choose, key, mixture, scores
from golden.real import decimal, settle

GITHUB = "https://github.com/"
SMALLEST_NORMAL = 2.0**-126


def share() -> Family:
    f = Family("select/weights",
               "Weights are raw scores over the sum of the chosen, never of all; profile release "
               "adds 1e-20, a decimal real, to the sum.",
               ["R3", "X3"], ["release-eps-missing", "no-renormalise", "normalised-over-all",
                              "bias-leaks-into-weights"])
    report = GITHUB + "pytorch/torchtitan/issues/1448"
    raw = [[58 / 64, 51 / 64, 42 / 64, 13 / 64]]
    f.add("two-of-four", "select", {"n": 4, "k": 2}, {"score": raw, "bias": [0.0] * 4},
          out={"ids": [[0, 1]], "weight": [[F(58, 109), F(51, 109)]], "cutoff": [42 / 64]},
          provenance="public-report", source=report)
    f.add("three-of-four", "select", {"n": 4, "k": 3}, {"score": raw, "bias": [0.0] * 4},
          out={"ids": [[0, 1, 2]], "weight": [[F(58, 151), F(51, 151), F(42, 151)]]},
          provenance="public-report", source=report)
    f.add("all-of-four", "select", {"n": 4, "k": 4},
          {"score": raw, "bias": [0.0, 0.5, 0.0, 0.0]},
          out={"ids": [[1, 0, 2, 3]],
               "weight": [[F(51, 164), F(58, 164), F(42, 164), F(13, 164)]]},
          clause=["R3", "R5"], note="k = n is lawful, no cutoff exists")
    f.add("sum-far-from-one", "select", {"n": 4, "k": 2},
          {"score": [[2.0**-20, 3 * 2.0**-20, 2.0**-21, 0.0], [1.0, 1.0, 1.0, 1.0]],
           "bias": [0.0] * 4},
          out={"ids": [[1, 0], [0, 1]], "weight": [[0.75, 0.25], [0.5, 0.5]]})
    f.add("weights-do-not-follow-rank", "select", {"n": 4, "k": 3},
          {"score": [[0.125, 0.25, 0.5, 1.0]], "bias": [3.0, 2.0, 1.0, -1.0]},
          out={"ids": [[0, 1, 2]], "weight": [[F(1, 7), F(2, 7), F(4, 7)]], "cutoff": [0.0]},
          kills=["weights-sorted", "bias-leaks-into-weights"])
    f.add("small-score-huge-bias", "select", {"n": 3, "k": 2},
          {"score": [[2.0**-60, 2.0**-62, 0.5]], "bias": [64.0, 64.0, 0.0]},
          out={"ids": [[0, 1]], "weight": [[F(4, 5), F(1, 5)]],
               "cutoff": [0.5]}, kills=["weights-from-key-minus-bias"],
          note="s + b forgets s, so key - b is 0 over 0")
    _release(f)
    return f


def _release(f: Family) -> None:
    eps = decimal("1e-20")

    def shares(*s):
        return [[F(v) / (sum(map(F, s)) + eps) for v in s]]

    def case(id, score, ids, weight, **rest):
        n, k = len(score), len(ids)
        f.add(id, "select", {"profile": "release", "n": n, "k": k},
              {"score": [score], "bias": [0.0] * n}, out={"ids": [ids], "weight": weight},
              **rest)

    case("usual-scores", [0.5, 0.75, 0.25], [1, 0], shares(0.75, 0.5))
    tiny = 2.0**-67
    case("sum-like-eps", [tiny, 3 * tiny, 2 * tiny], [1, 2], shares(3 * tiny, 2 * tiny))
    case("sum-below-eps", [2.0**-100, 2.0**-99, 0.0], [1, 0], shares(2.0**-99, 2.0**-100))
    case("all-zero", [0.0, 0.0, 0.0], [0, 1], [[0.0, 0.0]])
    case("k-one-is-raw", [0.25, 0.375, 0.125], [1], [[0.375]], kills=["k1-normalised"])
    case("k-one-of-one", [0.25], [0], [[0.25]], kills=["k1-normalised"])
    case("k-one-of-zero", [0.0, 0.0], [0], [[0.0]])
    f.add("release-of-nothing", "select", {"profile": "release", "n": 4, "k": 2},
          {"logit": [[-120.0, -110.0, -130.0, -140.0]], "bias": [1.0, 0.5, 0.0, 0.0]},
          want=("ids", "weight"), note="far below 1e-20, the weights are as good as 0")


def k_one() -> Family:
    f = Family("select/k-one",
               "In profile paper the weight is 1 for k = 1, whatever the score.",
               ["R3"], ["k1-clamped-sum", "k1-not-normalised", "normalised-over-tokens"])
    report = GITHUB + "databricks/megablocks/pull/87"
    rows = [[0.875, 0.125, 0.25], [0.25, 0.375, 0.125], [0.125, 0.0625, 0.625]]
    ones = [[1.0]] * 3
    f.add("three-tokens", "select", {"n": 3, "k": 1}, {"score": rows, "bias": [0.0] * 3},
          out={"ids": [[0], [1], [2]], "weight": ones, "cutoff": [0.25, 0.25, 0.125]},
          provenance="public-report", source=report, note="k = 1 weighs 1 (paper)",
          tags=["probe"])
    f.add("one-expert", "select", {"n": 1, "k": 1}, {"score": [[0.25], [0.0], [1.0]],
                                                     "bias": [-3.0]},
          out={"ids": [[0]] * 3, "weight": ones})
    f.add("zero-score", "select", {"n": 3, "k": 1},
          {"score": [[0.0, 0.5, 0.75]], "bias": [1.0, 0.0, 0.0]},
          out={"ids": [[0]], "weight": [[1.0]], "cutoff": [0.75]}, kills=["zero-over-zero"])
    f.add("zero-scores-k-two", "select", {"n": 4, "k": 2},
          {"score": [[0.0, 0.0, 0.5, 0.75]], "bias": [2.0, 1.0, 0.0, 0.0]},
          out={"ids": [[0, 1]], "weight": [[0.5, 0.5]], "cutoff": [0.75]},
          kills=["zero-over-zero", "zero-weights"])
    f.add("one-of-two-zero", "select", {"n": 3, "k": 2},
          {"score": [[0.0, 0.5, 0.75]], "bias": [2.0, 1.0, 0.0]},
          out={"ids": [[0, 1]], "weight": [[0.0, 1.0]], "cutoff": [0.75]})
    return f


def deep_outcomes(logits, bias, k, config=None):
    """R3 below the normal range: the real ratio, or that of scores rounded or flushed."""
    cfg = resolve({"n": len(logits), "k": k, **(config or {})})
    exact = [F(v) for v in logits]
    s = scores(exact, "sigmoid")
    ids, _ = choose([key(a, b) for a, b in zip(s, bias)], k)
    real = settle(lambda ar: {"p": mixture(ar, cfg, exact, ids)})["p"]
    kinds = [real]
    for flushed in (lambda v, a: False, lambda v, a: v < -88.72,
                    lambda v, a: a < SMALLEST_NORMAL):
        row = [F(0) if flushed(logits[e], s[e]) else F(s[e]) for e in ids]
        total = sum(row)
        kinds.append([v / total if total else F(1, k) for v in row])
    unique = []
    for weights in kinds:
        if weights not in unique:
            unique.append(weights)
    return [{"out": {"ids": [ids], "weight": [w]}} for w in unique]


def deep() -> Family:
    f = Family("select/deep-negative",
               "Negative logits: the largest are chosen. Down to -120 weights sum to 1, never "
               "NaN or 0/0.",
               ["R2", "R3"], ["tiny-sum-clamped", "initial-value-wins", "zero-over-zero",
                              "zero-weights"])
    source = GITHUB + "sgl-project/sglang/pull/31017"
    bias = [1.0, 0.5] + [0.0] * 6
    for a, b in ((-88, -88), (-88, -89), (-89, -100), (-100, -104), (-104, -120),
                 (-120, -120), (-86, -120)):
        logits = [float(a), float(b)] + [-121.0] * 6
        outcomes = deep_outcomes(logits, bias, 2)
        common = dict(source=source)
        if len(outcomes) > 1:
            f.add(f"{-a}-and-{-b}", "select", {"n": 8, "k": 2},
                  {"logit": [logits], "bias": bias}, either=outcomes, **common)
        else:
            f.add(f"{-a}-and-{-b}", "select", {"n": 8, "k": 2},
                  {"logit": [logits], "bias": bias}, **common)
    f.add("normal-range-ends", "select", {"n": 4, "k": 2},
          {"logit": [[-86.0, -87.0, -88.0, -89.0]], "bias": [0.0] * 4},
          want=("ids", "weight"), source=source,
          note="both chosen scores are still normal numbers")
    four = [-88.0, -104.0, -120.0, -121.0]
    f.add("routed-88-and-104", "route", {"d": 1, "n": 4, "k": 2},
          {"x": [[1.0]], "w_router": [[v] for v in four], "bias": bias[:4]},
          either=deep_outcomes(four, bias[:4], 2), provenance="oracle",
          source=GITHUB + "flashinfer-ai/flashinfer/pull/3803")
    issue = GITHUB + "flashinfer-ai/flashinfer/issues/2822"
    shuffled = [-5.0, -2.0, -8.0, -3.0, -7.0, -1.0, -4.0, -6.0]
    for name, shift in (("minus-one-to-eight", 0.0), ("twenty-lower", 20.0)):
        f.add(name, "select", {"n": 8, "k": 2},
              {"logit": [[v - shift for v in shuffled]], "bias": [0.0] * 8},
              want=("ids", "weight", "cutoff"), source=issue)
    f.add("negative-keys-too", "select", {"n": 8, "k": 3},
          {"logit": [shuffled], "bias": [-8.0] * 8}, want=("ids", "weight", "cutoff"))
    f.add("sigmoid-is-not-exp", "select", {"n": 4, "k": 2},
          {"logit": [[2.0, 1.0, 0.0, -1.0]], "bias": [0.0] * 4},
          want=("ids", "weight", "cutoff"), kills=["softmax-for-sigmoid"])
    return f


def saturated() -> Family:
    f = Family("select/saturated",
               "Rounded to binary32 the sigmoid is 1 from 17.33 on, equal scores go by id.",
               ["R2", "R3"], ["ranks-logits-not-scores", "division-flushes"])
    f.add("three-ones", "select", {"n": 4, "k": 2},
          {"logit": [[20.0, 90.0, 17.0, 1000.0]], "bias": [0.0] * 4},
          want=("ids", "weight", "cutoff"))
    f.add("seventeen-is-below", "select", {"n": 4, "k": 1},
          {"logit": [[0.0, 17.0, 20.0, 90.0]], "bias": [0.0] * 4},
          out={"ids": [[2]], "weight": [[1.0]], "cutoff": [1.0]},
          note="sigmoid(17) is 1 - 4.1e-8 and rounds to 1 - 2^-24")
    f.add("bias-among-equals", "select", {"n": 4, "k": 2},
          {"logit": [[40.0, 50.0, 60.0, 70.0]], "bias": [0.0, 0.25, 0.0, 0.25]},
          want=("ids", "weight", "cutoff"))
    f.add("both-ends", "select", {"n": 4, "k": 3},
          {"logit": [[90.0, -90.0, 0.0, -3.0]], "bias": [0.0, 2.0, 0.0, 0.0]},
          want=("ids",), note="the weight of the deep one is below every normal number")
    f.add("close-to-the-edge", "select", {"n": 6, "k": 3},
          {"logit": [[-3.0, 16.5, 17.25, 17.3125, 17.375, 18.0]], "bias": [0.0] * 6},
          want=("ids", "weight", "cutoff"))
    return f


def softmax() -> Family:
    f = Family("select/softmax-control",
               "A control that is not K3: softmax scores over the row.",
               ["L4"], ["softmax-not-renormalised", "sigmoid-for-softmax", "softmax-overflows"])
    f.add("equal-logits", "select", {"n": 4, "k": 2, "score": "softmax"},
          {"logit": [[0.0] * 4], "bias": [0.0, 0.0, 0.25, 0.0]},
          out={"ids": [[2, 0]], "weight": [[0.5, 0.5]], "cutoff": [0.25]})
    f.add("large-logits", "select", {"n": 3, "k": 2, "score": "softmax"},
          {"logit": [[1000.0, 999.0, -1000.0]], "bias": [0.0] * 3}, want=("ids", "weight"),
          kills=["softmax-overflows"])
    f.add("release-weights", "select",
          {"profile": "release", "n": 4, "k": 2, "score": "softmax"},
          {"logit": [[1.0, 3.0, 2.0, 0.0]], "bias": [0.5, 0.0, 0.0, 0.0]},
          want=("ids", "weight", "cutoff"))
    return f


def infinities() -> Family:
    f = Family("select/infinite-logits",
               "A logit of plus or minus infinity is a score of 1 or 0; a NaN poisons its row.",
               ["R4"], ["infinite-logit-poisons", "nan-poisons-other-rows",
                        "out-of-range-ids-on-nan", "duplicate-ids-after-exhaustion"])
    inf, nan = math.inf, math.nan
    source = GITHUB + "vllm-project/vllm/pull/39391"
    f.add("both-signs", "select", {"n": 4, "k": 3},
          {"logit": [[-inf, 0.0, inf, -inf]], "bias": [0.0] * 4},
          out={"ids": [[2, 1, 0]], "weight": [[F(2, 3), F(1, 3), 0.0]], "cutoff": [0.0]})
    f.add("minus-infinity-beside-a-number", "select", {"n": 3, "k": 2},
          {"logit": [[-inf, 0.0, 0.0]], "bias": [2.0, 1.0, 0.0]},
          out={"ids": [[0, 1]], "weight": [[0.0, 1.0]], "cutoff": [0.5]})
    f.add("release-k-one", "select", {"profile": "release", "n": 2, "k": 1},
          {"logit": [[-inf, inf], [inf, -inf]], "bias": [0.0, 2.0]},
          out={"ids": [[1], [1]], "weight": [[1.0], [0.0]], "cutoff": [0.0, 1.0]})
    good = [0.25, 0.5, 0.125, 0.75, 0.375, 0.0625, 0.625, 0.875]
    ids, weight = [7, 3, 6], [F(7, 18), F(6, 18), F(5, 18)]
    for name, row, first in (("row-of-nan", [nan] * 8, 8),
                             ("one-nan", [0.5] * 5 + [nan] + [0.5] * 2, 13)):
        f.add(f"scores-{name}", "select", {"n": 8, "k": 3},
              {"score": [good, row, good], "bias": [0.0] * 8}, source=source,
              provenance="public-report", note="a NaN row does not disturb the others",
              tags=["probe"] if name == "row-of-nan" else None,
              either=[{"status": "SLM_ERR_NONFINITE", "field": "score", "index": first},
                      {"out": {"ids": [ids, ["any"] * 3, ids],
                               "weight": [weight, ["any"] * 3, weight]}}])
    f.add("logits-row-of-nan", "select", {"n": 4, "k": 2},
          {"logit": [[0.0] * 4, [nan] * 4], "bias": [0.0] * 4}, source=source,
          provenance="public-report",
          either=[{"status": "SLM_ERR_NONFINITE", "field": "logit", "index": 4},
                  {"out": {"ids": [[0, 1], ["any", "any"]],
                           "weight": [[0.5, 0.5], ["any", "any"]]}}])
    return f


def families() -> list[Family]:
    return [share(), k_one(), deep(), saturated(), softmax(), infinities()]
