# SPDX-License-Identifier: Apache-2.0
"""select: order, ties, keys and biases (R2), on given scores and logits."""

from fractions import Fraction as F

from golden.cases import Family, empty, fill, gen
from golden.real import f32

FLT_MAX = float.fromhex("0x1.fffffep+127")
ULP = 2.0**-24  # of binary32 in [1/2, 1)
GITHUB = "https://github.com/"


def ties() -> Family:
    f = Family("select/ties",
               "Equal keys go to the lower expert id, on every row, for every k; one unit in "
               "the last place makes them unequal.",
               ["R2"], ["higher-id-wins", "tie-across-blocks", "tie-by-raw-score",
                        "epsilon-tie-hack", "bf16-scores"])
    report = GITHUB + "pytorch/pytorch/issues/27542"
    raw = [0.25, 0.5, 0.5, 0.125, 0.5, 0.5]
    order = [1, 2, 4, 5, 0, 3]
    for k in range(1, 7):
        chosen = [F(raw[e]) for e in order[:k]]
        f.add(f"six-experts-k{k}", "select", {"n": 6, "k": k},
              {"score": [raw], "bias": [0.0] * 6},
              out={"ids": [order[:k]], "weight": [[s / sum(chosen) for s in chosen]]},
              provenance="public-report", source=report,
              note="equal keys go to the lower id" if k == 3 else None,
              tags=["probe"] if k == 3 else None)
    f.add("all-logits-zero-384", "select", {"n": 384, "k": 8},
          {"logit": fill((2, 384), 0.0), "bias": fill((384,), 0.0)},
          out={"ids": [list(range(8))] * 2, "weight": [[0.125] * 8] * 2, "cutoff": [0.5] * 2},
          kills=["higher-id-wins", "tie-across-blocks", "epsilon-tie-hack"])
    f.add("all-scores-one", "select", {"n": 5, "k": 3},
          {"score": fill((1, 5), 1.0), "bias": [0.0] * 5},
          out={"ids": [[0, 1, 2]], "weight": [[F(1, 3)] * 3], "cutoff": [1.0]})
    f.add("all-keys-negative", "select", {"n": 5, "k": 3},
          {"score": fill((1, 5), 0.25), "bias": [-5.0] * 5},
          out={"ids": [[0, 1, 2]], "weight": [[F(1, 3)] * 3], "cutoff": [-4.75]},
          kills=["initial-value-wins", "padded-lanes-win"])
    f.add("tie-made-by-the-bias", "select", {"n": 4, "k": 2},
          {"score": [[0.25, 0.75, 0.5, 0.625]], "bias": [0.5, 0.0, 0.25, 0.0]},
          out={"ids": [[0, 1]], "weight": [[0.25, 0.75]], "cutoff": [0.75]},
          note="keys are 3/4 3/4 3/4 5/8, the raw scores do not break the tie",
          kills=["tie-by-raw-score"])
    f.add("tie-across-the-cutoff", "select", {"n": 4, "k": 2},
          {"score": [[0.25, 0.5, 0.75, 0.5], [0.5, 0.5, 0.25, 0.75], [0.5, 0.25, 0.5, 0.5]],
           "bias": [0.0] * 4},
          out={"ids": [[2, 1], [3, 0], [0, 2]],
               "weight": [[F(3, 5), F(2, 5)], [F(3, 5), F(2, 5)], [0.5, 0.5]],
               "cutoff": [0.5, 0.5, 0.5]})
    half = [0.5] * 64
    last = half[:63] + [0.5 + ULP]
    f.add("last-by-one-ulp", "select", {"n": 64, "k": 1}, {"score": [last], "bias": [0.0] * 64},
          out={"ids": [[63]], "weight": [[1.0]], "cutoff": [0.5]})
    first = [0.5 - ULP / 2] + half[1:]
    f.add("first-by-half-an-ulp-less", "select", {"n": 64, "k": 2},
          {"score": [first], "bias": [0.0] * 64},
          out={"ids": [[1, 2]], "weight": [[0.5, 0.5]], "cutoff": [0.5]})
    f.add("bf16-cannot-see", "select", {"n": 4, "k": 2},
          {"score": [[0.5, 0.5 + 2.0**-11, 0.5 + 2.0**-12, 0.25]], "bias": [0.0] * 4},
          out={"ids": [[1, 2]],
               "weight": [[F(2050, 4099), F(2049, 4099)]], "cutoff": [0.5]})
    f.add("ascending-by-ulps", "select", {"n": 8, "k": 3},
          {"score": [[0.5 + j * ULP for j in range(8)]], "bias": [0.0] * 8},
          want=("ids", "weight", "cutoff"))
    return f


def keys() -> Family:
    f = Family("select/key-rounding",
               "The key is s + b rounded once to binary32, ties to even; it may make ties.",
               ["R2"], ["choice-in-double", "key-in-double", "key-truncated", "key-in-bf16"])
    f.add("midpoint-down-to-even", "select", {"n": 3, "k": 2},
          {"score": [[0.5, 0.5 + ULP, 0.25]], "bias": [0.5, 0.5, 0.0]},
          out={"ids": [[0, 1]], "weight": [[F(2**23, 2**24 + 1), F(2**23 + 1, 2**24 + 1)]],
               "cutoff": [0.25]},
          note="the key is rounded to binary32: 1 + 2^-24 is a midpoint and becomes 1",
          tags=["probe"])
    f.add("midpoint-up-to-even", "select", {"n": 3, "k": 1},
          {"score": [[0.5 + 3 * ULP, 0.5 + 4 * ULP, 0.5]], "bias": [0.5] * 3},
          out={"ids": [[0]], "weight": [[1.0]], "cutoff": [1 + 4 * ULP]},
          note="1 + 3/2^24 is a midpoint and rounds to 1 + 4/2^24")
    f.add("just-above-the-midpoint", "select", {"n": 2, "k": 1},
          {"score": [[0.5, 0.5 + ULP]], "bias": [0.5, 0.5 + ULP]},
          out={"ids": [[1]], "weight": [[1.0]], "cutoff": [1.0]})
    f.add("bias-swallows-scores", "select", {"n": 3, "k": 2},
          {"score": [[0.25, 0.75, 1.0]], "bias": [2.0**24] * 3},
          out={"ids": [[0, 1]], "weight": [[0.25, 0.75]], "cutoff": [2.0**24]},
          note="1 is half a unit at 2^24 and rounds to even: three equal keys")
    f.add("half-a-unit-above-odd", "select", {"n": 3, "k": 1},
          {"score": [[0.25, 0.75, 1.0]], "bias": [2.0**24 + 2] * 3},
          out={"ids": [[2]], "weight": [[1.0]], "cutoff": [2.0**24 + 2]},
          note="1 above 2^24 + 2 is a midpoint and rounds up to 2^24 + 4")
    f.add("cancelled-to-zero", "select", {"n": 3, "k": 1},
          {"score": [[0.5, 0.75, 0.0]], "bias": [-0.5, -0.75, -0.0]},
          out={"ids": [[0]], "weight": [[1.0]]})
    return f


def zeros() -> Family:
    f = Family("select/signed-zero", "Minus zero equals plus zero: only the id decides.",
               ["R2"], ["plus-zero-above-minus-zero"])
    source = GITHUB + "NVIDIA/cccl/pull/9470"
    f.add("minus-first", "select", {"n": 4, "k": 2},
          {"score": [[-0.0, 0.0, 0.0, 0.5]], "bias": [-0.0, 0.0, -1.0, 0.0]},
          out={"ids": [[3, 0]], "weight": [[1.0, 0.0]]}, provenance="public-report",
          source=source)
    f.add("plus-first", "select", {"n": 4, "k": 2},
          {"score": [[0.0, -0.0, 0.0, 0.5]], "bias": [0.0, -0.0, -1.0, 0.0]},
          out={"ids": [[3, 0]], "weight": [[1.0, 0.0]]}, provenance="public-report",
          source=source)
    f.add("both-chosen", "select", {"n": 3, "k": 2},
          {"score": [[-0.0, 0.0, 0.0]], "bias": [-1.0, -0.0, 0.0]},
          out={"ids": [[1, 2]], "weight": [[0.5, 0.5]]}, clause=["R2", "R3"],
          kills=["zero-over-zero", "zero-weights"])
    return f


def biases() -> Family:
    f = Family("select/bias-extremes",
               "Huge biases are lawful, narrow bands at an offset keep their order.",
               ["R2", "R5"], ["bf16-bias", "huge-bias-overflows", "bias-ignored",
                              "duplicate-ids-after-exhaustion"])
    report = GITHUB + "sgl-project/sglang/pull/31213"
    band = f32(["6.900", "6.910", "6.905", "6.817"])
    f.add("band-of-four", "select", {"n": 4, "k": 2},
          {"logit": fill((1, 4), 0.0), "bias": band},
          out={"ids": [[1, 2]], "weight": [[0.5, 0.5]]}, provenance="public-report",
          source=report, kills=["bf16-bias"])
    many = [f"{6817 + i * 89 % 247}e-3" for i in range(247)]
    f.add("band-of-247", "select", {"n": 247, "k": 8},
          {"score": fill((1, 247), 0.5), "bias": f32(many)}, want=("ids", "weight", "cutoff"),
          source=report, kills=["bf16-bias"])
    f.add("largest-binary32", "select", {"n": 4, "k": 2},
          {"score": [[0.5, 1.0, 0.25, 0.75]], "bias": [0.0, -FLT_MAX, FLT_MAX, 0.0]},
          out={"ids": [[2, 3]], "weight": [[0.25, 0.75]], "cutoff": [0.5]})
    f.add("both-at-the-top", "select", {"n": 3, "k": 2},
          {"score": [[0.5, 0.75, 1.0]], "bias": [0.0, FLT_MAX, FLT_MAX]},
          out={"ids": [[1, 2]], "weight": [[F(3, 7), F(4, 7)]], "cutoff": [0.5]})
    f.add("all-at-the-bottom", "select", {"n": 3, "k": 2},
          {"score": [[0.5, 0.75, 1.0]], "bias": [-FLT_MAX] * 3},
          out={"ids": [[0, 1]], "weight": [[F(2, 5), F(3, 5)]], "cutoff": [-FLT_MAX]},
          kills=["initial-value-wins"])
    f.add("thousands", "select", {"n": 4, "k": 2},
          {"score": [[0.875, 0.125, 0.25, 0.5]], "bias": [-1000.0, 1000.0, 1000.0, 0.0]},
          out={"ids": [[2, 1]], "weight": [[F(2, 3), F(1, 3)]], "cutoff": [0.5]},
          kills=["bias-leaks-into-weights", "weights-from-key-minus-bias"])
    for name, shift in (("zero", 0.0), ("half", 0.5), ("minus-four", -4.0)):
        f.add(f"common-shift-{name}", "select", {"n": 4, "k": 2},
              {"score": [[0.75, 0.5, 0.25, 0.125]],
               "bias": [shift - 0.5, shift, shift + 0.25, shift]},
              out={"ids": [[1, 2]], "weight": [[F(2, 3), F(1, 3)]],
                   "cutoff": [shift + 0.25]},
              note="keys .25 .5 .5 .125 plus the shift; a common shift changes no choice")
    return f


def shapes() -> Family:
    f = Family("select/sizes",
               "Expert counts that are no power of two and no multiple of 8 or 32; no tokens.",
               ["R2", "R5"], ["partial-warp-ignored", "power-of-two-sort", "padded-lanes-win",
                              "last-expert-dropped"])
    source = GITHUB + "ggml-org/llama.cpp/issues/5213"
    for n, k in ((1, 1), (2, 1), (2, 2), (3, 2), (6, 2), (12, 8), (24, 8), (40, 2), (96, 8),
                 (160, 8), (384, 8), (384, 2)):
        bias = fill((n,), -5.0) if n % 3 == 0 else gen((n,), n, 10, 2.0**-12)
        f.add(f"n{n}-k{k}", "select", {"n": n, "k": k},
              {"score": gen((3, n), 8, 20, 2.0**-21, 0.5), "bias": bias},
              want=("ids", "weight", "cutoff") if k < n else ("ids", "weight"), source=source)
    f.add("no-scores", "select", {"n": 4, "k": 2}, {"score": empty(0, 4), "bias": [0.0] * 4},
          out={"ids": empty(0, 2), "weight": empty(0, 2), "cutoff": empty(0)}, clause=["R5"],
          kills=["empty-batch-fails"])
    f.add("no-logits", "select", {"n": 4, "k": 4}, {"logit": empty(0, 4), "bias": [0.0] * 4},
          out={"ids": empty(0, 4), "weight": empty(0, 4)}, clause=["R5"],
          kills=["empty-batch-fails"])
    return f


def wide() -> Family:
    f = Family("select/wide", "896 experts, 16 chosen, none of them below id 295.",
               ["R2", "R3"], ["ids-above-255-never-chosen", "ids-above-511-never-chosen",
                              "at-most-8-chosen", "last-expert-dropped",
                              "bias-leaks-at-one-size"])
    source = GITHUB + "kekzl/imp/pull/2056"

    def row(low, top, n, step, count):
        values = [low] * n
        for t in range(count):
            values[n - 1 - step * t] = top(t)
        return [values]

    for n, k, step in ((896, 16, 40), (512, 22, 21), (896, 17, 40)):
        count = max(k, 17)
        ids = [[n - 1 - step * t for t in range(k)]]
        score = row(0.25, lambda t: 1 - t / 64, n, step, count)
        chosen = [F(64 - t, 64) for t in range(k)]
        f.add(f"n{n}-k{k}", "select", {"n": n, "k": k},
              {"score": score, "bias": fill((n,), 0.0)},
              out={"ids": ids, "weight": [[s / sum(chosen) for s in chosen]]},
              provenance="public-report", source=source)
    f.add("n896-k16-logits", "select", {"n": 896, "k": 16},
          {"logit": row(-3.0, lambda t: 1 - t / 32, 896, 40, 16), "bias": fill((896,), 0.0)},
          want=("ids", "weight"), source=source)
    f.add("n896-k16-seeded", "select", {"n": 896, "k": 16},
          {"score": gen((4, 896), 21, 20, 2.0**-21, 0.5),
           "bias": gen((896,), 22, 10, 2.0**-13)}, want=("ids", "weight", "cutoff"))
    f.add("n896-tie-hack", "select", {"n": 896, "k": 16},
          {"score": gen((8, 896), 23, 16, 2.0**-24, 0.5), "bias": fill((896,), 0.0)},
          want=("ids", "weight", "cutoff"), kills=["epsilon-tie-hack", "bf16-scores"],
          note="scores within 1/128 of each other, the best some units in the last place apart")
    f.add("n896-k16-routed", "route", {"d": 32, "n": 896, "k": 16},
          {"x": gen((2, 32), 17, 12, 2.0**-11), "w_router": gen((896, 32), 17, 12, 2.0**-14),
           "bias": gen((896,), 17, 12, 2.0**-16)}, want=("ids", "weight", "cutoff"),
          kills=["ids-above-255-never-chosen", "at-most-8-chosen"])
    return f


def families() -> list[Family]:
    return [ties(), keys(), zeros(), biases(), shapes(), wide()]
