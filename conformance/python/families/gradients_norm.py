# SPDX-License-Identifier: Apache-2.0
"""rmsnorm_backward (G2): projection, eps, gamma and its gradient over tokens."""

from fractions import Fraction as F

from golden.cases import Family, empty, fill, gen

R36 = {"l": 2, "eps": 11}  # the mean square of (1, 7) is 25: the root is 6


def values() -> Family:
    f = Family("rmsnorm/gradient-values",
               "du is gamma dr over the root less its part along u: without the projection a "
               "gradient along u is not the tiny one that it must be.",
               ["G2"], ["norm-gradient-without-projection", "norm-gradient-without-gamma",
                        "norm-backward-skipped", "norm-gradient-by-cube"])
    f.add("rational-root", "rmsnorm_backward", R36,
          {"u": [[1.0, 7.0]], "gamma": [3.0, -6.0], "dr": [[2.0, -1.0]]},
          out={"du": [[F(8, 9), F(2, 9)]], "dgamma": [F(1, 3), F(-7, 6)]},
          note="g = (6, 6), n = (1/6, 7/6), the mean of g n is 4")
    f.add("no-gamma", "rmsnorm_backward", R36, {"u": [[1.0, 7.0]], "dr": [[6.0, 6.0]]},
          out={"du": [[F(8, 9), F(2, 9)]], "dgamma": [1.0, 7.0]},
          kills=["norm-gradient-without-projection"], note="dgamma is the gradient at ones")
    f.add("along-u", "rmsnorm_backward", {"l": 2, "eps": "12.5"},
          {"u": [[3.0, 4.0], [3.0, 4.0]], "dr": [[6.0, 8.0], [-15.0, -20.0]]},
          out={"du": [[F(3, 5), F(4, 5)], [F(-3, 2), F(-2)]]},
          kills=["norm-gradient-without-projection"],
          note="dr = c u: c u (1 - 12.5 / 25) / 5 is left, with eps 0 nothing would be")
    f.add("along-u-paper", "rmsnorm_backward", {"l": 2},
          {"u": [[6.0, 8.0], [0.75, 1.0], [6.0, 8.0]],
           "dr": [[6.0, 8.0], [0.75, 1.0], [8.0, -6.0]]}, want=("du",),
          kills=["norm-gradient-without-projection"],
          note="of the part along u only eps / R^2 is left")
    f.add("across-u", "rmsnorm_backward", {"l": 2}, {"u": [[3.0, 4.0]], "dr": [[4.0, -3.0]]},
          note="dr is orthogonal to u: du = dr / R")
    f.add("spec-example", "rmsnorm_backward", {"l": 2}, {"u": [[3.0, 4.0]], "dr": [[1.0, 0.0]]})
    f.add("gamma", "rmsnorm_backward", {"l": 4},
          {"u": [[1.0, -2.0, 3.0, -4.0]], "gamma": [1.5, 0.0, -1.0, 2.0**-20],
           "dr": [[1.0, 1.0, -2.0, 0.5]]})
    f.add("one-of-64", "rmsnorm_backward", {"l": 64},
          {"u": fill((1, 64), 1.0), "dr": [[64.0] + [0.0] * 63]},
          note="every element gets a part of one gradient",
          kills=["norm-gradient-without-projection"])
    f.add("width-one", "rmsnorm_backward", {"l": 1},
          {"u": [[2.0], [-(2.0**-10)], [0.0]], "dr": [[1.0], [1.0], [1.0]]},
          note="at width 1 only eps keeps du from 0",
          kills=["norm-gradient-without-projection"])
    f.add("large", "rmsnorm_backward", {"l": 3},
          {"u": [[2.0**60, -(2.0**59), 2.0**58]], "dr": [[2.0**60, 1.0, 0.0]]})
    for width, tokens in ((3, 4), (33, 2), (17, 3), (40, 2)):
        f.add(f"seeded-{width}", "rmsnorm_backward", {"l": width},
              {"u": gen((tokens, width), 511, 12, 2.0**-11),
               "gamma": gen((width,), 511, 10, 2.0**-11, 1.0),
               "dr": gen((tokens, width), 511, 12, 2.0**-11)})
    f.add("bf16", "rmsnorm_backward", {"l": 16, "dtype": "bf16"},
          {"u": gen((3, 16), 512, 8, 2.0**-6), "gamma": gen((16,), 512, 7, 2.0**-7, 1.0),
           "dr": gen((3, 16), 512, 8, 2.0**-7)})
    return f


def eps() -> Family:
    f = Family("rmsnorm/gradient-eps",
               "Where the aggregate is tiny eps decides the root: at u = 0 du is gamma dr over "
               "the root of eps, not infinite and not 0.",
               ["G2", "X3"], ["norm-gradient-eps-forgotten",
                              "gradient-eps-at-least-1e-12"])
    f.add("zero-row", "rmsnorm_backward", {"l": 3},
          {"u": [[0.0] * 3], "gamma": [1.0, -2.0, 0.5], "dr": [[1.0, 1.0, -4.0]]},
          out={"du": [[1000.0, -2000.0, -2000.0]], "dgamma": [0.0] * 3})
    f.add("zero-row-beside-others", "rmsnorm_backward", {"l": 2, "eps": "0.25"},
          {"u": [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]],
           "dr": [[1.0, -3.0], [0.0, 0.0], [0.0, 8.0]]},
          out={"du": [[2.0, -6.0], [0.0, 0.0], [0.0, 16.0]], "dgamma": [0.0, 0.0]})
    for name in ("paper", "release"):
        f.add(f"{name}-thousandths", "rmsnorm_backward", {"profile": name, "l": 4},
              {"u": [[2.0**-10, -(2.0**-11), 2.0**-12, 2.0**-10], [2.0**-8] * 4,
                     [2.0**-13, 0.0, 0.0, 0.0]],
               "dr": [[1.0, 0.5, -2.0, 1.0], [1.0, 1.0, 1.0, -1.0], [1.0, 1.0, 0.0, 0.0]]})
        f.add(f"{name}-40", "rmsnorm_backward", {"profile": name, "l": 40},
              {"u": gen((2, 40), 513, 12, 2.0**-21), "dr": gen((2, 40), 513, 12, 2.0**-11)})
    f.add("deep", "rmsnorm_backward", {"l": 3},
          {"u": [[2.0**-40, -(2.0**-41), 2.0**-60]], "dr": [[1.0, 1.0, 1.0]]})
    f.add("square-underflows", "rmsnorm_backward", {"l": 2},
          {"u": [[2.0**-80, 2.0**-79]], "dr": [[1.0, -1.0]]},
          note="u^2 is below every binary32: du is 1000 dr, dgamma 1000 dr u")
    f.add("decimal-eps", "rmsnorm_backward", {"l": 2, "eps": "1e-20"},
          {"u": [[2.0**-33, 2.0**-34], [2.0**-35, 0.0]], "dr": [[1.0, -1.0], [1.0, 1.0]]})
    return f


def gamma() -> Family:
    f = Family("rmsnorm/gradient-gamma",
               "dgamma is the sum over all tokens of dr n, and is written, not added.",
               ["G2", "R5"], ["gamma-gradient-first-token-only", "gamma-gradient-from-u",
                              "gamma-gradient-from-r", "gamma-gradient-of-32-tokens"])
    f.add("three-tokens", "rmsnorm_backward", R36,
          {"u": [[1.0, 7.0], [-7.0, 1.0], [5.0, -5.0]], "gamma": [2.0, 0.5],
           "dr": [[6.0, 6.0], [12.0, 0.0], [3.0, 18.0]]},
          out={"dgamma": [F(1 - 14) + F(5, 2), F(7 - 15)]},
          note="each root is 6: dr n is (1, 7), (-14, 0), (5/2, -15)")
    f.add("tokens-cancel", "rmsnorm_backward", {"l": 3},
          {"u": [[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]], "dr": [[0.5, 0.25, 1.0]] * 2},
          want=("dgamma",))
    f.add("many-tokens", "rmsnorm_backward", {"l": 8},
          {"u": gen((35, 8), 514, 12, 2.0**-11), "dr": gen((35, 8), 514, 12, 2.0**-11)},
          want=("dgamma",))
    f.add("no-tokens", "rmsnorm_backward", {"l": 3},
          {"u": empty(0, 3), "gamma": [1.0, 2.0, 3.0], "dr": empty(0, 3)},
          out={"du": empty(0, 3), "dgamma": [0.0] * 3}, clause=["G5", "R5"],
          note="the gradient of gamma is zeros and must be written")
    return f


def families() -> list[Family]:
    return [values(), eps(), gamma()]
