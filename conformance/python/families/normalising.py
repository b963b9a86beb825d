# SPDX-License-Identifier: Apache-2.0
"""rmsnorm (L2): eps inside the root and on the mean, gamma after, tiny and odd rows."""

import math
from fractions import Fraction as F

from golden.cases import Family, empty, gen

GITHUB = "https://github.com/"


def unit(n, at, value):
    row = [0.0] * n
    row[at] = value
    return [row]


def values() -> Family:
    f = Family("rmsnorm/values", "r = gamma u over the root of the mean square plus eps.",
               ["L2"], ["first-1024-columns", "norm-missing", "gamma-ignored", "sum-for-mean",
                        "inverse-root-in-bf16"])
    report = GITHUB + "radixark/Megatron-LM/pull/94"
    f.add("six-eight", "rmsnorm", {"l": 2}, {"u": [[6.0, 8.0], [6000.0, 8000.0]]},
          source=report, kills=["norm-missing"])
    f.add("three-four", "rmsnorm", {"l": 2}, {"u": [[3.0, 4.0], [-3.0, 4.0]]},
          source=GITHUB + "amd/IRON/pull/139", kills=["inverse-root-in-bf16"])
    f.add("rational-root", "rmsnorm", {"l": 2, "eps": 11},
          {"u": [[1.0, 7.0], [-7.0, 1.0]], "gamma": [3.0, -6.0]},
          out={"r": [[0.5, -7.0], [-3.5, -1.0]]},
          note="the mean square is 25, eps 11 and the root 6")
    f.add("gamma", "rmsnorm", {"l": 4},
          {"u": [[1.0, -2.0, 3.0, -4.0]], "gamma": [1.5, 0.0, -1.0, 2.0**-20]},
          kills=["gamma-ignored", "gamma-before-norm"])
    f.add("zero-row", "rmsnorm", {"l": 5}, {"u": [[0.0] * 5, [1.0, 0.0, 0.0, 0.0, 0.0]]},
          kills=["zero-over-zero"], source=GITHUB + "apple/coremltools/pull/2822")
    f.add("all-zero", "rmsnorm", {"l": 3}, {"u": [[0.0] * 3]}, out={"r": [[0.0] * 3]},
          kills=["zero-over-zero"])
    f.add("one-of-320", "rmsnorm", {"l": 320}, {"u": unit(320, 0, 100.0)},
          source=GITHUB + "apple/coremltools/pull/2822", kills=["eps-wrong", "sum-for-mean"])
    f.add("one-of-4096", "rmsnorm", {"l": 4096}, {"u": unit(4096, 4095, 1.0)},
          source=GITHUB + "nntrainer/nntrainer/pull/4318", kills=["first-1024-columns"])
    f.add("large", "rmsnorm", {"l": 3}, {"u": [[2.0**60, -(2.0**59), 2.0**58]]},
          note="3 max u^2 stays below 2^127")
    f.add("bf16", "rmsnorm", {"l": 16, "dtype": "bf16"},
          {"u": gen((2, 16), 51, 8, 2.0**-6), "gamma": gen((16,), 51, 7, 2.0**-7, 1.0)})
    return f


def midpoint() -> Family:
    f = Family("rmsnorm/midpoint",
               "A rational root whose result is a binary32 midpoint, even neighbour above.",
               ["L2", "X3"])
    root = F("15.624")
    u = [F(123, 4), F(21, 4), F(7, 4), F(1, 2)]
    f.add("to-even", "rmsnorm", {"l": 4},
          {"u": [[float(v) for v in u]], "gamma": [2134629.0, 1.0, 1.0, 1.0]},
          out={"r": [[F("4201218.75")] + [v / root for v in u[1:]]]},
          note="the mean square plus 10^-6 is 15.624^2; binary32 rounds r_0 to 4201219")
    f.add("no-midpoint", "rmsnorm", {"l": 4},
          {"u": [[float(v) for v in u]], "gamma": [2134628.0, 1.0, 1.0, 1.0]},
          out={"r": [[2134628 * u[0] / root] + [v / root for v in u[1:]]]})
    return f


def eps() -> Family:
    f = Family("rmsnorm/eps",
               "Where the aggregate is tiny eps decides; at unit scale nobody sees it.",
               ["L2", "X3"], ["eps-at-least-1e-12", "eps-outside-root", "eps-on-the-sum",
                              "eps-wrong", "eps-missing"])
    for name in ("paper", "release"):
        f.add(f"{name}-thousandths", "rmsnorm", {"profile": name, "l": 4},
              {"u": [[2.0**-10, -(2.0**-11), 2.0**-12, 2.0**-10], [2.0**-8] * 4,
                     [2.0**-13, 0.0, 0.0, 0.0]]})
        f.add(f"{name}-320", "rmsnorm", {"profile": name, "l": 320},
              {"u": gen((1, 320), 52, 12, 2.0**-21)})
    f.add("deep", "rmsnorm", {"l": 3}, {"u": [[2.0**-40, -(2.0**-41), 2.0**-60]]})
    f.add("square-underflows", "rmsnorm", {"l": 2}, {"u": [[2.0**-80, 2.0**-79]]},
          note="u^2 is below every binary32, r is 1000 u")
    f.add("decimal-eps", "rmsnorm", {"l": 2, "eps": "1e-20"},
          {"u": [[2.0**-33, 2.0**-34], [2.0**-35, 0.0]]})
    f.add("large-eps", "rmsnorm", {"l": 2, "eps": "0.75"}, {"u": [[0.5, 0.5], [1.0, 0.0]]},
          kills=["eps-outside-root", "eps-on-the-sum"])
    f.add("exact-quarter", "rmsnorm", {"l": 2, "eps": "0.75"}, {"u": [[0.5, -0.5]]},
          out={"r": [[0.5, -0.5]]}, kills=["eps-outside-root", "eps-on-the-sum"],
          note="eps inside the root, added to the mean: 1/4 + 3/4 is 1", tags=["probe"])
    return f


def widths() -> Family:
    f = Family("rmsnorm/widths", "One element, odd widths, no tokens, a poisoned row.",
               ["L2", "R4", "R5"], ["poisoned-norm-zeroed", "nan-poisons-other-rows",
                                    "tail-dropped", "sum-for-mean"])
    f.add("one", "rmsnorm", {"l": 1}, {"u": [[2.0], [-(2.0**-10)], [0.0]]})
    f.add("three", "rmsnorm", {"l": 3}, {"u": gen((4, 3), 53, 12, 2.0**-11)})
    f.add("thirty-three", "rmsnorm", {"l": 33},
          {"u": gen((2, 33), 54, 12, 2.0**-11), "gamma": gen((33,), 54, 10, 2.0**-11, 1.0)})
    f.add("no-tokens", "rmsnorm", {"l": 3}, {"u": empty(0, 3)}, out={"r": empty(0, 3)},
          kills=["empty-batch-fails"])
    for name, bad in (("nan", math.nan), ("infinite", math.inf)):
        f.add(f"{name}-row", "rmsnorm", {"l": 2, "eps": 11},
              {"u": [[1.0, 7.0], [bad, 1.0], [-7.0, 1.0]]},
              either=[{"status": "SLM_ERR_NONFINITE", "field": "u", "index": 2},
                      {"out": {"r": [[F(1, 6), F(7, 6)], [math.nan, math.nan],
                                     [F(-7, 6), F(1, 6)]]}}],
              provenance="hand", clause=["R4"])
    nan = math.nan
    f.add("nan-in-gamma", "rmsnorm", {"l": 2, "eps": 11},
          {"u": [[1.0, 7.0], [-7.0, 1.0]], "gamma": [2.0, nan]},
          either=[{"status": "SLM_ERR_NONFINITE", "field": "gamma", "index": 1},
                  {"out": {"r": [[F(1, 3), nan], [F(-7, 3), nan]]}},
                  {"out": {"r": [[nan, nan], [nan, nan]]}}],
          provenance="hand", clause=["R4"], kills=["nan-hidden", "gamma-ignored"])
    return f


def families() -> list[Family]:
    return [values(), midpoint(), eps(), widths()]
