# SPDX-License-Identifier: Apache-2.0
"""select_backward (G3, G5): through the normaliser, to the chosen logits alone."""

from golden.cases import Family, empty, fill, gen
from golden.real import f32

from .routing import seeded_ids

GITHUB = "https://github.com/"
REPORT = GITHUB + "pytorch/torchtitan/pull/2416"
UNUSED = GITHUB + "pytorch/pytorch/issues/28294"
# Logits of the scores .65 and .80: ln(13/7) and ln 4, as binary32.
OF_65, OF_80 = f32(["0.619039208406223", "1.386294361119891"])
# Of .9 .1 .2, .3 .4 .2 and .1 .1 .6.
THREE = [f32(row.split()) for row in ("2.1972246 -2.1972246 -1.3862944",
                                      "-0.8472979 -0.4054651 -1.3862944",
                                      "-2.1972246 -2.1972246 0.4054651")]


def normaliser() -> Family:
    f = Family("select/gradient-normaliser",
               "Each chosen score moves every weight of its row: without the normaliser's term "
               "the gradients of a row do not balance.",
               ["G3", "R3"], ["normaliser-term-missing", "sigmoid-slope-missing",
                              "slope-from-weight", "router-detached",
                              "gradient-without-release-eps"])
    f.add("65-and-80", "select_backward", {"n": 2, "k": 2},
          {"logit": [[OF_65, OF_80]], "ids": [[1, 0]], "dweight": [[-1.0, 2.0]]},
          out={"dlogit": [[float.fromhex("0x1.09ec653c2faa8p-2"),
                           float.fromhex("-0x1.2fe99895aaa89p-3")]]},
          provenance="public-report", source=REPORT,
          note="the report's .259690844 and -.148394768, up to the storage of the logits")
    f.add("halves", "select_backward", {"n": 4, "k": 2},
          {"logit": [[0.0] * 4], "ids": [[2, 0]], "dweight": [[2.0, -1.0]]},
          out={"dlogit": [[-0.375, 0.0, 0.375, 0.0]]},
          note="p = 1/2, D = (3/2, -3/2), 1 - s = 1/2")
    f.add("quarters", "select_backward", {"n": 5, "k": 4},
          {"logit": [[0.0, 0.0, 9.0, 0.0, 0.0]], "ids": [[4, 1, 0, 3]],
           "dweight": [[1.0, 2.0, 3.0, 6.0]]},
          out={"dlogit": [[0.0, -0.125, 0.0, 0.375, -0.25]]},
          note="the mean of dp is 3, each D over 8")
    f.add("k-is-n", "select_backward", {"n": 3, "k": 3},
          {"logit": [[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], "ids": [[2, 0, 1], [0, 1, 2]],
           "dweight": [[1.0, -0.5, 0.25], [1.0, -2.0, 4.0]]}, clause=["G3", "R5"])
    f.add("release", "select_backward", {"profile": "release", "n": 4, "k": 2},
          {"logit": [[1.0, 3.0, 2.0, 0.0], [-1.5, 0.25, -3.0, 0.125]],
           "ids": [[1, 2], [1, 3]], "dweight": [[1.0, 0.5], [-2.0, 3.0]]})
    f.add("release-sum-like-eps", "select_backward", {"profile": "release", "n": 3, "k": 2},
          {"logit": [[-46.0, -45.0, -47.0]], "ids": [[1, 0]], "dweight": [[1.0, 1.0]]},
          note="1e-20 takes part of the sum: equal dp leave a gradient")
    f.add("seeded", "select_backward", {"n": 24, "k": 5},
          {"logit": gen((4, 24), 521, 16, 2.0**-14), "ids": seeded_ids(4, 24, 5),
           "dweight": gen((4, 5), 521, 12, 2.0**-11)})
    return f


def unchosen() -> Family:
    f = Family("select/gradient-unchosen",
               "A logit that was not chosen gets exactly 0, as far as it may be from the others; "
               "so do chosen ones whose weights all gain alike.",
               ["G3", "G5"], ["gradient-to-unchosen", "gradient-of-512-experts"])
    f.add("best-left-out", "select_backward", {"n": 6, "k": 2},
          {"logit": [[5.0, 0.0, 4.0, 0.0, -3.0, 2.0]], "ids": [[1, 3]],
           "dweight": [[1.0, -1.0]]},
          out={"dlogit": [[0.0, 0.25, 0.0, -0.25, 0.0, 0.0]]}, source=UNUSED,
          note="a bias may have chosen them; the choice is given")
    f.add("all-alike", "select_backward", {"n": 5, "k": 3},
          {"logit": [[0.5, -2.0, 7.0, 1.0, 0.25], [-30.0, 3.0, 0.0, -1.0, 60.0]],
           "ids": [[2, 3, 0], [4, 0, 2]], "dweight": [[3.0] * 3, [-0.5] * 3]},
          out={"dlogit": fill((2, 5), 0.0)}, note="D = 0 in every slot")
    f.add("dweight-of-zeros", "select_backward", {"n": 4, "k": 2},
          {"logit": [[0.5, -2.0, 7.0, 1.0]], "ids": [[2, 3]], "dweight": [[0.0, 0.0]]},
          out={"dlogit": fill((1, 4), 0.0)})
    f.add("wide", "select_backward", {"n": 896, "k": 16},
          {"logit": gen((2, 896), 522, 12, 2.0**-10), "ids": seeded_ids(2, 896, 16),
           "dweight": gen((2, 16), 522, 12, 2.0**-11)})
    f.add("no-tokens", "select_backward", {"n": 4, "k": 2},
          {"logit": empty(0, 4), "ids": empty(0, 2), "dweight": empty(0, 2)},
          out={"dlogit": empty(0, 4)}, clause=["R5"])
    return f


def k_one() -> Family:
    f = Family("select/gradient-k-one",
               "One expert a token: under ratio the weight is 1 whatever the score and the "
               "router gets exactly 0; under release the weight is the score.",
               ["G3"], ["k-one-gradient", "k-one-release-without-gradient"])
    f.add("ratio", "select_backward", {"n": 3, "k": 1},
          {"logit": THREE, "ids": [[0], [1], [2]], "dweight": [[1.0], [-3.0], [1024.0]]},
          out={"dlogit": fill((3, 3), 0.0)}, provenance="public-report",
          source=GITHUB + "jingyaogong/minimind/issues/858",
          note="right here: the weight is constant")
    f.add("one-expert", "select_backward", {"n": 1, "k": 1},
          {"logit": [[0.5], [-104.0]], "ids": [[0], [0]], "dweight": [[1.0], [-3.0]]},
          out={"dlogit": fill((2, 1), 0.0)},
          source=GITHUB + "databricks/megablocks/pull/87")
    f.add("release", "select_backward", {"profile": "release", "n": 3, "k": 1},
          {"logit": [[0.0, 5.0, -1.0], [3.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
           "ids": [[0], [1], [2]], "dweight": [[1.0], [-8.0], [0.0]]},
          out={"dlogit": [[0.25, 0.0, 0.0], [0.0, -2.0, 0.0], [0.0, 0.0, 0.0]]})
    f.add("release-slope", "select_backward", {"profile": "release", "n": 2, "k": 1},
          {"logit": [[2.0, 0.0], [-20.0, 0.0], [0.0, 30.0], [0.0, -90.0]],
           "ids": [[0], [0], [1], [1]], "dweight": [[1.0], [1.0], [1.0], [2.0**20]]},
          note="s (1 - s) dp; 1 - s of a large logit is tiny and not 0")
    return f


def extremes() -> Family:
    f = Family("select/gradient-extremes",
               "Deep negative and saturated logits: 1 - s and the shares keep their relative "
               "accuracy, where 1 minus a rounded score is 0 from 17.33 on.",
               ["G3", "R3"], ["slope-from-rounded-score", "logit-slope-cut-off"])
    f.add("large", "select_backward", {"n": 4, "k": 2},
          {"logit": [[20.0, 18.0, 3.0, 0.0], [40.0, 30.0, 0.0, 0.0], [17.5, 60.0, 1.0, 0.0]],
           "ids": [[0, 1], [0, 1], [1, 0]], "dweight": [[1.0, -1.0]] * 3})
    f.add("large-beside-moderate", "select_backward", {"n": 3, "k": 2},
          {"logit": [[30.0, 1.0, 0.0], [80.0, -1.0, 0.0]], "ids": [[0, 1], [0, 1]],
           "dweight": [[2.0, 1.0], [2.0**10, -1.0]]})
    f.add("deep", "select_backward", {"n": 8, "k": 2},
          {"logit": [[-20.0, -21.0] + [-22.0] * 6, [-60.0, -59.5] + [-61.0] * 6,
                     [-80.0, -86.0] + [-87.0] * 6],
           "ids": [[0, 1], [1, 0], [0, 1]], "dweight": [[1.0, -1.0], [3.0, 0.5], [2.0, 1.0]]},
          note="the shares come from the logits, also where scores are small")
    f.add("below-the-normal-range", "select_backward", {"n": 4, "k": 2},
          {"logit": [[-88.0, -89.0, 0.0, 0.0], [-104.0, -120.0, 0.0, 0.0],
                     [-100.0, -100.5, 0.0, 0.0], [-2.0, -3.0, 0.0, 0.0]],
           "ids": [[0, 1]] * 4, "dweight": [[1.0, -1.0]] * 4},
          note="scores are subnormal or 0 in binary32, their shares are not")
    f.add("one-deep-one-not", "select_backward", {"n": 3, "k": 2},
          {"logit": [[-40.0, 0.5, 0.0], [-90.0, 30.0, 0.0]], "ids": [[1, 0]] * 2,
           "dweight": [[1.0, -1.0], [2.0**20, 1.0]]})
    return f


def families() -> list[Family]:
    return [normaliser(), unchosen(), k_one(), extremes()]
