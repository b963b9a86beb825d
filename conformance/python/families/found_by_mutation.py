# SPDX-License-Identifier: Apache-2.0
"""Cases that kill one-token changes of a backend which all other families let live."""

import math
from fractions import Fraction as F

from families.layers import SMALL, weights
from golden.cases import Family, Tensor, fill, gen


def layer() -> Family:
    f = Family("layer/found-by-mutation",
               "Token counts and widths past a block, and a NaN that only one expert has.",
               ["L2", "L3", "L6", "R4"])
    f.add("seventeen-tokens", "layer_forward", SMALL, weights(SMALL, 17, 401),
          want=("ids", "weight", "y"), note="one token past a block of 16",
          clause=["L2", "L3", "L6", "R2"])
    wide = {"profile": "linear", "d": 144, "l": 2, "n": 2, "k": 1, "S": 2}
    f.add("wide-shared-linear", "layer_forward", wide, weights(wide, 3, 402),
          want=("ids", "y"), clause=["L3", "L4"],
          note="the shared path adds to columns past a block of 128 once")
    thin = {"profile": "linear", "d": 1, "l": 1, "n": 1, "k": 1, "S": 1}
    f.add("tokens-4100", "layer_forward", thin, weights(thin, 4100, 404), tier="full",
          out={"ids": fill((4100, 1), 0)}, note="past a panel of 4096", clause=["L6"])
    thin = {**thin, "n": 3}
    f.add("tokens-300", "layer_forward", thin, weights(thin, 300, 404), want=("ids",),
          note="past a block of 256, with experts that begin anywhere in one", clause=["L6"])
    # 0 times infinity: a NaN with its sign bit set on many machines, a positive one on others.
    for name, expert, place in (("first-expert", 0, 0), ("last-expert", 3, 6 * 3)):
        t = weights(SMALL, 1, 403)
        x, router = list(t["x"].values("x")), list(t["w_router"].values("w_router"))
        x[0] = 0.0
        router[place] = math.inf
        f.add(f"nan-of-the-{name}", "layer_forward", SMALL,
              {**t, "x": Tensor((1, 6), data=x), "w_router": Tensor((4, 6), data=router)},
              either=[{"status": "SLM_ERR_NONFINITE", "field": "logit", "index": expert},
                      {"out": {"ids": [["any"] * 2], "y": [[math.nan] * 6]}}],
              clause=["R4"])
    return f


def ffn() -> Family:
    f = Family("ffn/found-by-mutation", "An infinity in x is not hidden by what comes later.",
               ["R4"])
    nan = math.nan
    f.add("infinite-row", "dense_ffn", {"expert": "relu", "d": 2, "f": 1},
          {"x": [[1.0, 0.0], [math.inf, 0.0], [0.0, 2.0]], "w_up": [[1.0, 1.0]],
           "w_out": [[1.0], [-1.0]]},
          either=[{"status": "SLM_ERR_NONFINITE", "field": "x", "index": 2},
                  {"out": {"y": [[1.0, -1.0], [nan, nan], [2.0, -2.0]]}}], provenance="hand")
    return f


def route() -> Family:
    f = Family("route/found-by-mutation", "Scores of many logits, each an exact product.",
               ["R2", "A1"])
    for name, scale in (("sixteen", 2.0**-16), ("one", 2.0**-20)):
        f.add(f"logits-within-{name}", "route", {"d": 1, "n": 2000, "k": 1},
              {"x": [[1.0]], "w_router": gen((2000, 1), 421, 20, scale),
               "bias": fill((2000,), 0.0)}, want=("ids",),
              note="each score is judged by the declared error of sigma alone")
    return f


def select() -> Family:
    f = Family("select/found-by-mutation",
               "The softmax control under the released weighting, deep below the best.",
               ["R3", "L4"])
    release = {"profile": "release", "score": "softmax", "n": 4, "k": 2}
    for name, logit in (("best-last", [-74.0, -75.0, -184.0, 16.0]),
                        ("best-first", [0.0, -91.0, -90.0, -200.0])):
        best = logit.index(max(logit))
        f.add(f"softmax-release-{name}", "select", release,
              {"logit": [logit], "bias": [-2.0 if e == best else 0.0 for e in range(4)]},
              note="the bias keeps the best out; what is left is small against 1e-20")
    for best in range(3):
        logit = [1.0, 0.0, -1.0]
        logit[best] = 1000.0
        f.add(f"softmax-overwhelmed-by-{best}", "select",
              {"score": "softmax", "n": 3, "k": 1}, {"logit": [logit], "bias": [0.0] * 3},
              out={"ids": [[best]], "weight": [[1.0]], "cutoff": [0.0]},
              note="e^1000 is no binary64: the best is taken out first")
    return f


def hist() -> Family:
    f = Family("hist/found-by-mutation", "More experts than a block of columns holds.", ["Q3"])
    for n in (16, 17, 40):
        f.add(f"experts-{n}", "qb_hist_accumulate", {"n": n, "k": 3, "B": 16},
              {"score": gen((20, n), 411, 12, 2.0**-13, 0.5), "bias": gen((n,), 411, 6, 2.0**-8),
               "hist": fill((n, 16), 0)})
    for name, shift in (("below", -0.5), ("above", 0.5)):
        f.add(f"edges-with-biases-{name}-zero", "qb_hist_accumulate", {"n": 3, "k": 1, "B": 8},
              {"score": [[1.0, 0.5, s] for s in (0.5, 0.25, 0.0)], "bias": [shift] * 3,
               "hist": fill((3, 8), 0)},
              out={"hist": [[0, 0, 3] + [0] * 5, [0] * 4 + [3] + [0] * 3,
                            [0] * 4 + [1, 1, 1, 0]]},
              note="every required bias is an edge, of a range about the bias")
    return f


def boundary(below, above, tokens=3):
    """Scores whose column 0 holds the required biases alpha - s of these two tokens and
    larger ones of the others (n 3, k 1): experts 1 and 2 take turns at the cutoff."""
    (a1, s1), (a2, s2) = below, above
    rows = [[s1, 0.9375, a1], [s2, a2, 0.96875]]
    rows += [[0.0, 1.0, 0.78125 + t / 64] for t in range(tokens - 2)]
    return rows


def qb() -> Family:
    f = Family("qb/found-by-mutation",
               "The tie test on both sides of its bound, for either sign of r and any token order.",
               ["Q2"])
    config = {"n": 3, "k": 1}
    tie = {"status": "SLM_ERR_TIE", "field": "new_bias"}
    ulp = 2.0**-24
    # r = alpha - s > 0: the bound at r near 1/2 is 5.01e-6, that is 84.05 ulps.
    f.add("positive-inside", "qb_exact", config,
          {"score": boundary((0.5, 0.0), (0.5 + 84 * ulp, 0.0)), "bias": [0.0] * 3}, **tie)
    f.add("positive-outside", "qb_exact", config,
          {"score": boundary((0.5, 0.0), (0.5 + 85 * ulp, 0.0)), "bias": [0.0] * 3})
    for name, gap in (("inside", 84), ("outside", 85)):
        f.add(f"negative-{name}", "qb_exact", config,
              {"score": [[0.75 + gap * ulp, 0.25, 0.125], [0.75, 0.125, 0.25], [0.5, 0.75, 0.25]],
               "bias": [0.0] * 3}, **(tie if gap == 84 else {}), note="r_(2) = -1/2")
    # q = 4 of 12: the largest of the lower four must be found wherever it stands.
    column = [F(i, 16) for i in (1, 2, 3, 4)] + [F(4, 16) + F(1, 2**19)] + [
        F(i, 16) for i in range(5, 12)]
    for turn in (0, 1, 2, 3, 5, 8):
        order = column[turn:] + column[:turn]
        rows = []
        for t, r in enumerate(order):
            alpha = F(15, 16) - F(t, 4096)
            top = F(127, 128) - F(t, 8192)
            rows.append([float(alpha - r)] + [float(v) for v in
                                              ((top, alpha) if t < 4 else (alpha, top))])
        f.add(f"tie-at-q-4-turn-{turn}", "qb_exact", config,
              {"score": rows, "bias": [0.0] * 3}, **tie, note="r_(4) = 1/4, r_(5) is 2^-19 more")
    return f


def families() -> list[Family]:
    return [layer(), ffn(), route(), select(), hist(), qb()]
