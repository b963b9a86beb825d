# SPDX-License-Identifier: Apache-2.0
"""Public bug reports about the router: choice (R2), weights (R3), rows of NaN (R4), sizes (R5)."""

import math
from fractions import Fraction as F

from golden.cases import Family, fill, gen
from golden.real import f32

from .balancing import RELAXED
from .layers import SMALL, weights

GITHUB = "https://github.com/"
REPORT = {"provenance": "public-report"}


def shares(chosen):
    return [F(s) / sum(map(F, chosen)) for s in chosen]


def picked(row, ids):
    return shares([row[e] for e in ids])


def leaks() -> Family:
    f = Family("select/public-weights",
               "Weights are the raw scores of the chosen over their sum: no bias, no scale, no "
               "other expert, no other token.",
               ["R3"], ["bias-leaks-into-weights", "no-renormalise", "normalised-over-all",
                        "normalised-over-tokens", "routed-scale-applied", "k1-not-normalised"])
    leak = {**REPORT, "source": GITHUB + "vllm-project/vllm/pull/12002"}
    raw, bias = f32(".90 .80 .65 .20".split()), f32("-.40 0 .25 0".split())
    f.add("bias-leak", "select", {"n": 4, "k": 2}, {"score": [raw], "bias": bias},
          out={"ids": [[2, 1]], "weight": [picked(raw, [2, 1])]}, **leak,
          note="keys .5 .8 .9 .2; with the bias the weights would be .5294 and .4706")
    f.add("bias-leak-logits", "select", {"n": 4, "k": 2},
          {"logit": [[2.0, 0.0, 0.0, -1.0]], "bias": [-1.0, 0.0, 0.25, 0.0]},
          out={"ids": [[2, 1]], "weight": [[0.5, 0.5]]}, **leak)
    f.add("bias-leak-released", "select", {"profile": "release", "n": 4, "k": 2},
          {"logit": [[2.0, 0.5, 1.0, -1.0]], "bias": [-1.0, 0.0, 0.25, 0.0]},
          source=leak["source"])
    f.add("bias-leak-routed", "route", {"d": 2, "n": 4, "k": 2},
          {"x": [[1.0, 0.0], [0.0, 1.0]],
           "w_router": [[2.0, 0.0], [0.0, -1.0], [0.0, 3.0], [-1.0, 1.0]],
           "bias": [-1.0, 0.0, 0.25, 1.0]}, want=("ids", "weight"), source=leak["source"])
    f.add("bias-leak-layer", "layer_forward", SMALL,
          {**weights(SMALL, 4, 501), "bias": [-0.75, 1.0, 0.5, 0.0]},
          want=("ids", "weight", "u"), source=leak["source"])

    scale = {**REPORT, "source": GITHUB + "pytorch/torchtitan/issues/1448"}
    for k in (2, 3, 4):
        ids = list(range(k))
        f.add(f"renormalised-k{k}", "select", {"n": 4, "k": k},
              {"score": [raw], "bias": fill((4,), 0.0)},
              out={"ids": [ids], "weight": [picked(raw, ids)]}, **scale)
    # o = e z for expert e, so u = (1 + 3) / 2 z; a factor on u nearly vanishes in y.
    f.add("factor-hidden-by-the-norm", "layer_forward",
          {"profile": "linear", "d": 2, "l": 2, "n": 4, "k": 2, "S": 0},
          {"x": [[1.0, 0.0]], "w_router": fill((4, 2), 0.0), "bias": [0.0, 1.0, 0.0, 1.0],
           "w_down": [[1.0, 0.0], [0.0, 1.0]], "w_lift": [[1.0, 0.0], [0.0, 1.0]],
           "w_expert": [[[e, 0.0], [0.0, e]] for e in (0.0, 1.0, 2.0, 3.0)]},
          out={"ids": [[1, 3]], "weight": [[0.5, 0.5]], "u": [[2.0, 0.0]]},
          clause=["R3", "L2"], **{**scale, "source": GITHUB + "vllm-project/vllm/pull/31246"})

    one = {**REPORT, "source": GITHUB + "databricks/megablocks/pull/87"}
    rows = [f32(r.split()) for r in (".9 .1 .2", ".3 .4 .2", ".1 .1 .6")]
    f.add("k-one", "select", {"n": 3, "k": 1}, {"score": rows, "bias": fill((3,), 0.0)},
          out={"ids": [[0], [1], [2]], "weight": [[1.0]] * 3}, **one,
          note="over the tokens the first weight would be .4737")
    f.add("k-one-logits", "route", {"d": 3, "n": 3, "k": 1},
          {"x": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
           "w_router": [[2.0, -1.0, -2.0], [-2.0, -0.5, -2.0], [-1.5, -1.5, 0.5]],
           "bias": fill((3,), 0.0)},
          out={"ids": [[0], [1], [2]], "weight": [[1.0]] * 3},
          **{**one, "source": GITHUB + "jingyaogong/minimind/issues/858"})
    f.add("k-one-layer", "layer_forward", {**SMALL, "k": 1}, weights({**SMALL, "k": 1}, 3, 502),
          want=("ids", "weight", "u"), source=one["source"])
    return f


def underflow() -> Family:
    f = Family("select/public-underflow",
               "All scores vanish in binary32 and the bias alone chooses: equal logits have "
               "equal weights, never 0/0.",
               ["R2", "R3"], ["zero-over-zero", "zero-weights"])
    report = {**REPORT, "source": GITHUB + "sgl-project/sglang/pull/31017"}
    bias = [1.0, 0.5] + [0.0] * 6
    for z in (-88.0, -89.0, -100.0, -104.0, -120.0):
        f.add(f"all-{-z:.0f}", "select", {"n": 8, "k": 2},
              {"logit": fill((2, 8), z), "bias": bias},
              out={"ids": [[0, 1]] * 2, "weight": [[0.5, 0.5]] * 2}, **report)
        f.add(f"routed-{-z:.0f}", "route", {"d": 1, "n": 8, "k": 2},
              {"x": [[1.0]], "w_router": fill((8, 1), z), "bias": bias},
              out={"ids": [[0, 1]], "weight": [[0.5, 0.5]]},
              **{**report, "source": GITHUB + "flashinfer-ai/flashinfer/pull/3803"})
    f.add("all-104-k-one", "select", {"n": 8, "k": 1}, {"logit": fill((1, 8), -104.0),
                                                       "bias": bias},
          out={"ids": [[0]], "weight": [[1.0]]}, **report)
    f.add("all-104-k-three", "select", {"n": 8, "k": 3},
          {"logit": fill((1, 8), -104.0), "bias": bias[:2] + [0.25] + [0.0] * 5},
          out={"ids": [[0, 1, 2]], "weight": [[F(1, 3)] * 3]}, **report)
    config = {"profile": "linear", "d": 2, "l": 2, "n": 4, "k": 2, "S": 0}
    for z in (-89.0, -120.0):
        f.add(f"layer-{-z:.0f}", "layer_forward", config,
              {"x": [[1.0, 0.0]], "w_router": [[z, 0.0]] * 4, "bias": [1.0, 0.5, 0.0, 0.0],
               "w_down": [[1.0, 0.0], [0.0, 1.0]], "w_lift": [[1.0, 0.0], [0.0, 1.0]],
               "w_expert": [[[e, 0.0], [0.0, e]] for e in (1.0, 3.0, 5.0, 7.0)]},
              out={"ids": [[0, 1]], "weight": [[0.5, 0.5]], "u": [[2.0, 0.0]]},
              clause=["R3", "L2"], **report)
    return f


def band() -> Family:
    f = Family("select/public-bias-band",
               "A narrow band of biases at an offset, four to a step of bf16, keeps its order.",
               ["R2", "Q1", "Q3"], ["bf16-bias"])
    report = {**REPORT, "source": GITHUB + "NVIDIA/Megatron-LM/issues/1482"}
    bias = f32("6.900 6.910 6.905 6.817".split())
    right = {"ids": [[1, 2]], "weight": [[0.5, 0.5]]}
    f.add("logits", "select", {"n": 4, "k": 2}, {"logit": fill((1, 4), 0.0), "bias": bias},
          out=right, **report)
    for dtype in ("f32", "bf16"):
        f.add(f"routed-{dtype}", "route", {"dtype": dtype, "d": 3, "n": 4, "k": 2},
              {"x": [[1.0, -2.0, 0.5]], "w_router": fill((4, 3), 0.0), "bias": bias},
              out=right, **report, note="a bias is binary32, whatever the tokens are")
        config = {**SMALL, "dtype": dtype}
        f.add(f"layer-{dtype}", "layer_forward", config,
              {**weights(config, 1, 503, bits=7), "w_router": fill((4, 6), 0.0), "bias": bias,
               "gamma": fill((3,), 1.0)}, out=right, **report)
    f.add("balanced", "qb_exact", {"n": 4, "k": 2, **RELAXED},
          {"score": fill((4, 4), 0.5), "bias": bias},
          source=GITHUB + "vllm-project/vllm/pull/50761", kills=["bf16-bias"],
          note="the cutoff holds every bit of the third bias")
    f.add("counted", "qb_hist_accumulate", {"n": 4, "k": 2, "B": 100},
          {"score": gen((16, 4), 504, 20, 2.0**-21, 0.5), "bias": bias,
           "hist": fill((4, 100), 0)}, source=GITHUB + "vllm-project/vllm/pull/50761")
    return f


def poison() -> Family:
    f = Family("select/public-nan",
               "A NaN anywhere in a row: ids stay distinct and in range or the call is refused, "
               "and the other rows keep their answer; infinite logits are scores of 1 and 0.",
               ["R4"], ["out-of-range-ids-on-nan", "nan-poisons-other-rows",
                        "infinite-logit-poisons"])
    report = {**REPORT, "source": GITHUB + "vllm-project/vllm/pull/39391"}
    nan, inf = math.nan, math.inf
    good = [0.25, 0.5, 0.125, 0.75, 0.375, 0.0625, 0.625, 0.875]
    order = [7, 3, 6, 1, 4, 0, 2, 5]

    def case(id, op, field, rows, k, first, ids, **rest):
        n = len(rows[0])
        weight = picked(good, ids) if field == "score" else [F(1, k)] * k
        f.add(id, op, {"n": n, "k": k}, {field: rows, "bias": [0.0] * n},
              either=[{"status": "SLM_ERR_NONFINITE", "field": field, "index": first},
                      {"out": {"ids": [ids, ["any"] * k, ids],
                               "weight": [weight, ["any"] * k, weight]}}], **report, **rest)

    for place in (0, 7):
        row = [nan if e == place else v for e, v in enumerate(good)]
        case(f"score-{place}", "select", "score", [good, row, good], 3, 8 + place, order[:3])
        zero = [nan if e == place else 0.0 for e in range(8)]
        case(f"logit-{place}", "select", "logit", [[0.0] * 8, zero, [0.0] * 8], 3, 8 + place,
             [0, 1, 2])
    case("all-but-one", "select", "score", [good, [nan] * 7 + [0.5], good], 3, 8, order[:3])
    case("k-is-n", "select", "score", [good, [nan] * 8, good], 8, 8, order)
    case("every-logit-of-896", "select", "logit", [[0.0] * 896, [nan] * 896, [0.0] * 896], 16,
         896, list(range(16)))
    f.add("infinite-rows", "select", {"n": 8, "k": 3},
          {"logit": [[inf, -inf] + [0.0] * 6, [-inf] * 7 + [0.0], [inf] * 8],
           "bias": [0.0] * 8},
          out={"ids": [[0, 2, 3], [7, 0, 1], [0, 1, 2]],
               "weight": [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [F(1, 3)] * 3]},
          **{**report, "source": GITHUB + "sgl-project/sglang/pull/30079"})
    return f


def choices() -> Family:
    f = Family("select/public-choice",
               "Equal keys, zeros of both signs, logits all below 0: the best k by key, then by "
               "id, whatever an implementation starts with.",
               ["R2"], ["higher-id-wins", "tie-across-blocks", "plus-zero-above-minus-zero",
                        "initial-value-wins", "padded-lanes-win"])
    tie = {**REPORT, "source": GITHUB + "pytorch/pytorch/issues/127196"}
    for k in (1, 2, 3, 4, 5, 6, 16, 383, 384):
        out = {"ids": [list(range(k))] * 2, "weight": [[F(1, k)] * k] * 2}
        f.add(f"zeros-n384-k{k}", "select", {"n": 384, "k": k},
              {"logit": fill((2, 384), 0.0), "bias": fill((384,), 0.0)}, out=out, **tie)
    raw = [.25, .5, .5, .125, .5, .5]
    for k in range(1, 7):
        ids = [1, 2, 4, 5, 0, 3][:k]
        f.add(f"four-equal-k{k}", "select", {"n": 6, "k": k},
              {"score": [raw] * 5, "bias": fill((6,), 0.0)},
              out={"ids": [ids] * 5, "weight": [picked(raw, ids)] * 5},
              **{**tie, "source": GITHUB + "vllm-project/vllm/pull/55514"})
    f.add("equal-under-a-thousand", "select", {"n": 2, "k": 1},
          {"score": [f32([".5", ".500001"])] * 2, "bias": [1000.0, 1000.0]},
          out={"ids": [[0]] * 2, "weight": [[1.0]] * 2, "cutoff": [1000.5] * 2},
          **{**REPORT, "source": GITHUB + "pytorch/torchtitan/issues/1506"},
          note="a common offset that is never taken off swamps the scores")
    f.add("apart-without-it", "select", {"n": 2, "k": 1},
          {"score": [f32([".5", ".500001"])] * 2, "bias": [0.0, 0.0]},
          out={"ids": [[1]] * 2, "weight": [[1.0]] * 2},
          **{**REPORT, "source": GITHUB + "pytorch/torchtitan/issues/1506"})

    negative = {**REPORT, "source": GITHUB + "flashinfer-ai/flashinfer/issues/2822"}
    shuffled = [-5.0, -2.0, -8.0, -3.0, -7.0, -1.0, -4.0, -6.0]
    order = [5, 1, 3, 6, 0, 7, 4, 2]
    for shift in (0, 20):
        row = [v - shift for v in shuffled]
        for k in (1, 2, 5, 8):
            f.add(f"negative-{shift}-k{k}", "select", {"n": 8, "k": k},
                  {"logit": [row], "bias": fill((8,), 0.0)}, out={"ids": [order[:k]]},
                  **negative)
        f.add(f"negative-{shift}-routed", "route", {"d": 1, "n": 8, "k": 2},
              {"x": [[1.0]], "w_router": [[v] for v in row], "bias": fill((8,), shift / 4 - 5.0)},
              out={"ids": [order[:2]], "logit": [row]}, **negative)

    zero = {**REPORT, "source": GITHUB + "PTO-ISA/SuperNPUBench/pull/78"}
    for name, signs in (("minus-first", (-0.0, 0.0)), ("plus-first", (0.0, -0.0))):
        f.add(f"zeros-{name}", "select", {"n": 3, "k": 1},
              {"score": [[*signs, 0.0]] * 2, "bias": [*signs, -1.0]},
              out={"ids": [[0]] * 2, "weight": [[1.0]] * 2, "cutoff": [0.0] * 2}, **zero)
    signs = [-0.0 if e % 3 else 0.0 for e in range(40)]
    f.add("zeros-of-forty", "select", {"n": 40, "k": 7},
          {"score": [[abs(v) for v in signs]], "bias": signs},
          out={"ids": [list(range(7))], "weight": [[F(1, 7)] * 7], "cutoff": [0.0]}, **zero)
    # r of expert 0, ascending: -1, 0 and 0 of either sign, 1; the element i* = 1 is a zero.
    f.add("quantile-of-zeros", "qb_exact", {"n": 3, "k": 1, **RELAXED},
          {"score": [[-0.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, -0.0]],
           "bias": [-0.0, 0.0, 0.0]}, clause=["Q1"],
          out={"cutoff": [0.0, 1.0, 0.0, 0.0], "candidate": [0.0, -1.0, 0.0],
               "new_bias": [F(1, 3), F(-2, 3), F(1, 3)]},
          **{**zero, "source": GITHUB + "tenstorrent/tt-metal/issues/56626"})
    return f


def widths() -> Family:
    f = Family("select/public-sizes",
               "Numbers of experts that are no power of two and no multiple of 8 or 32, keys all "
               "below 0: a padded lane never wins.",
               ["R2", "R5"], ["power-of-two-sort", "partial-warp-ignored", "padded-lanes-win",
                              "last-expert-dropped"])
    report = {**REPORT, "source": GITHUB + "ggml-org/llama.cpp/issues/5213"}
    for n in (1, 2, 3, 6, 12, 24, 40, 96, 160, 384):
        up = [F(e + 1, 512) for e in range(n)]
        rows = [list(map(float, up)), list(map(float, up[::-1]))]
        for k in sorted({1, 2, min(n, 8)}):
            if k > n:
                continue
            ids = [list(range(n - 1, n - 1 - k, -1)), list(range(k))]
            out = {"ids": ids, "weight": [picked(r, i) for r, i in zip(rows, ids)]}
            if k < n:
                out["cutoff"] = [float(up[n - k - 1]) - 5.0] * 2
            f.add(f"n{n}-k{k}", "select", {"n": n, "k": k},
                  {"score": rows, "bias": fill((n,), -5.0)}, out=out, **report)
    for n in (3, 6, 12, 40, 96, 160):
        k = min(n, 8)
        f.add(f"routed-n{n}", "route", {"d": 1, "n": n, "k": k},
              {"x": [[-1.0]], "w_router": [[(n - e) / 64] for e in range(n)],
               "bias": fill((n,), -5.0)},
              out={"ids": [list(range(n - 1, n - 1 - k, -1))]}, **report)
    for n in (1, 3, 12, 40, 96):
        config = {**SMALL, "n": n, "k": min(n, 2)}
        f.add(f"layer-n{n}", "layer_forward", config, weights(config, 2, 505),
              want=("ids", "weight"), source=GITHUB + "zml/zml/pull/786", clause=["R5", "L6"])
    return f


def wide() -> Family:
    f = Family("select/public-wide",
               "Many experts and many chosen: past 255 and 511, k from 16 to 512, in every "
               "operation that knows experts.",
               ["R2", "R5", "L5", "Q3", "Q6", "Q7"],
               ["ids-above-255-never-chosen", "ids-above-511-never-chosen", "at-most-8-chosen",
                "counts-of-256-experts"])
    report = {**REPORT, "source": GITHUB + "kekzl/imp/pull/2056"}

    def row(n, k, step):
        values = [-3.0] * n
        for t in range(k):
            values[n - 1 - step * t] = 1 - t / 32
        return values, [n - 1 - step * t for t in range(k)]

    for n, k, step in ((896, 16, 40), (896, 17, 40), (512, 22, 21), (1025, 33, 31)):
        logit, ids = row(n, k, step)
        f.add(f"n{n}-k{k}", "select", {"n": n, "k": k},
              {"logit": [logit], "bias": fill((n,), 0.0)}, out={"ids": [ids]}, **report)
    f.add("n1025-k512", "select", {"n": 1025, "k": 512},
          {"score": [[e / 2048 for e in range(1025)]], "bias": fill((1025,), 0.0)},
          out={"ids": [list(range(1024, 512, -1))]}, tier="full",
          **{**report, "source": GITHUB + "ggml-org/llama.cpp/pull/26192"})
    logit, chosen = row(896, 16, 40)
    f.add("routed", "route", {"d": 1, "n": 896, "k": 16},
          {"x": [[1.0]], "w_router": [[v] for v in logit], "bias": fill((896,), 0.0)},
          out={"ids": [chosen]}, **report)
    config = {"d": 3, "l": 2, "n": 896, "k": 16, "f": 2, "S": 1, "fs": 2}
    f.add("layer", "layer_forward", config,
          {**weights(config, 2, 506), "w_router": [[v, 0.0, 0.0] for v in logit],
           "bias": fill((896,), 0.0), "x": [[1.0, 0.5, -0.25], [1.0, -0.75, 0.5]]},
          out={"ids": [chosen] * 2}, tier="full", **report)
    ids = [chosen, [e - 1 for e in chosen], list(range(880, 896))]
    flat = sorted((e, i) for i, e in enumerate(e for r in ids for e in r))
    counts = [sum(e == j for e, _ in flat) for j in range(896)]
    f.add("grouped", "permute", {"n": 896, "k": 16}, {"ids": ids},
          out={"counts": counts, "order": [i for _, i in flat],
               "offsets": [sum(counts[:e]) for e in range(897)]},
          **{**report, "source": GITHUB + "turboderp-org/exllamav3/issues/359"})
    f.add("measured", "load_metrics", {"n": 896, "k": 16}, {"ids": ids}, out={"load": counts},
          **{**report, "source": GITHUB + "turboderp-org/exllamav3/issues/359"})
    balanced = {"source": GITHUB + "NVIDIA/TransformerEngine/pull/2821"}
    score = gen((3, 896), 507, 20, 2.0**-21, 0.5)
    bias = gen((896,), 507, 10, 2.0**-13)
    f.add("balanced", "qb_exact", {"n": 896, "k": 16, **RELAXED}, {"score": score, "bias": bias},
          want=("new_bias",), tier="full", **balanced)
    f.add("counted", "qb_hist_accumulate", {"n": 896, "k": 16, "B": 2},
          {"score": score, "bias": bias, "hist": fill((896, 2), 0)}, tier="full",
          **balanced)
    f.add("solved", "qb_hist_solve", {"n": 896, "k": 16, "B": 2, "T": 112},
          {"hist": [[e % 113, 112 - e % 113] for e in range(896)], "bias": fill((896,), 0.0)},
          want=("new_bias",), tier="full", **balanced)
    f.add("stepped", "sign_step", {"n": 896},
          {"bias": fill((896,), 0.0), "load": [e // 448 for e in range(896)]},
          out={"new_bias": [2.0**-10] * 448 + [-(2.0**-10)] * 448}, kills=["sign-step-flipped"],
          **REPORT, **balanced)
    return f


def families() -> list[Family]:
    return [leaks(), underflow(), band(), poison(), choices(), widths(), wide()]
