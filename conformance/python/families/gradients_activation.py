# SPDX-License-Identifier: Apache-2.0
"""situ_glu_backward (G1): slopes in saturation, near 0, at infinities; packing."""

import math

from golden.cases import Family, empty, gen

from .activating import pairs

MAX = float.fromhex("0x1.fffffep+127")
INF = math.inf


def ones(count):
    return [[1.0] for _ in range(count)]


def add(f, id, values, dh=None, config=None, **rest):
    f.add(id, "situ_glu_backward", {"f": 1, **(config or {})},
          {**pairs(*values), "dh": dh or ones(len(values))}, **rest)


def values() -> Family:
    f = Family("situ/gradient-values",
               "Both terms of the gate's slope, of the uncapped gate; gate first, then up. The "
               "slope changes sign near a = -1.28, where a missing term shows most.",
               ["G1", "L1"],
               ["gate-gradient-without-sigma-term", "gate-gradient-without-cap",
                "gradient-of-capped-gate", "up-gradient-without-cap",
                "gate-up-gradients-swapped", "gradients-interleaved"])
    add(f, "moderate", [(1, 1), (-1, 1), (4, 25), (-4, 25), (2, -3), (0.5, 0.25), (-2, -3)],
        kills=["gate-gradient-without-sigma-term", "gradient-of-capped-gate"])
    add(f, "sign-change", [(a / 64, 1) for a in (-64, -80, -81, -82, -83, -84, -96, -128)],
        note="the slope is positive at the first and negative at the last",
        kills=["gate-gradient-without-sigma-term", "gradient-of-capped-gate"])
    add(f, "negative-gate", [(a, 5) for a in (-3, -5, -8, -12, -20)])
    add(f, "other-betas", [(1, 1), (2, 3), (-3, 0.5), (20, 20)],
        config={"beta_gate": 1.0, "beta_up": 2.0})
    f.add("zeros", "situ_glu_backward", {"f": 1},
          {**pairs((0, 0), (0, 0), (INF, 0), (-INF, 0), (0, INF), (0, -INF)),
           "dh": [[1.0], [-8.0], [2.0], [2.0], [2.0], [-2.0]]},
          out={"dgate_up": [[0.0, 0.0], [0.0, 0.0], [0.0, 8.0], [0.0, 0.0], [25.0, 0.0],
                            [25.0, 0.0]]},
          note="G'(0) = 1/2, U'(0) = 1, G(0) = U(0) = 0; limits: G 4 or 0, U 25 or -25")
    f.add("packed", "situ_glu_backward", {"f": 3},
          {"gate_up": [[0.0, INF, 0.0, INF, 0.0, -INF]], "dh": [[2.0, 1.0, 4.0]]},
          out={"dgate_up": [[25.0, 0.0, -50.0, 0.0, 4.0, 0.0]]},
          note="a buffer is [gate | up], never gate and up in turns",
          kills=["gate-up-gradients-swapped", "gradients-interleaved"])
    f.add("dh-of-zeros", "situ_glu_backward", {"f": 4},
          {"gate_up": [[1.0, -2.0, 30.0, 0.5, 3.0, 4.0, -5.0, 90.0]] * 2,
           "dh": [[0.0, 1.5, 0.0, -0.25], [0.0] * 4]})
    for f_size, tokens in ((17, 3), (1, 5), (33, 2), (24, 2), (7, 9)):
        f.add(f"seeded-{f_size}-{tokens}", "situ_glu_backward", {"f": f_size},
              {"gate_up": gen((tokens, 2 * f_size), 501, 20, 2.0**-17),
               "dh": gen((tokens, f_size), 502, 12, 2.0**-11)})
    f.add("bf16", "situ_glu_backward", {"f": 9, "dtype": "bf16"},
          {"gate_up": gen((3, 18), 503, 7, 2.0**-4), "dh": gen((3, 9), 503, 7, 2.0**-6)})
    f.add("no-tokens", "situ_glu_backward", {"f": 3},
          {"gate_up": empty(0, 6), "dh": empty(0, 3)}, out={"dgate_up": empty(0, 6)},
          clause=["R5"])
    return f


def saturated() -> Family:
    f = Family("situ/gradient-saturated",
               "Far out a slope is tiny and not 0: 1 - tanh^2 and 1 - sigmoid of rounded values "
               "lose all of it, and training stops early.",
               ["G1"], ["situ-gradient-one-minus-tanh-squared",
                        "sigma-gradient-one-minus-sigma", "sech-squared-overflows",
                        "gate-slope-cut-off"])
    add(f, "gate", [(a, 1) for a in (8, 20, 40, 80)],
        kills=["situ-gradient-one-minus-tanh-squared", "sigma-gradient-one-minus-sigma"])
    add(f, "gate-narrow-cap", [(a, 1) for a in (8, 12, 17, 20, 40, 80)],
        config={"beta_gate": 1.0}, kills=["sigma-gradient-one-minus-sigma"],
        note="sech^2 is e^(-2a), sigmoid(-a) only e^(-a): the second term is what is left")
    add(f, "negative-gate", [(a, 1) for a in (-8, -20, -40, -80)],
        kills=["situ-gradient-one-minus-tanh-squared"])
    add(f, "up", [(1, b) for b in (50, 200, -200, 1000, -1000)],
        kills=["situ-gradient-one-minus-tanh-squared"])
    add(f, "both", [(40, 300), (80, 1000), (-40, 300), (20, -200)])
    add(f, "large-dh", [(40, 1), (1, 300), (80, 1), (1, 1000)],
        dh=[[2.0**30], [2.0**40], [2.0**60], [2.0**100]],
        note="what is left of the slope is multiplied up again")
    add(f, "below-every-number", [(1000, 1), (-1000, 1), (1, 1e4), (MAX, MAX), (-MAX, -MAX)],
        note="slopes under 2^-149 may become 0, and nothing is a NaN")
    f.add("infinities", "situ_glu_backward", {"f": 1},
          {**pairs((INF, INF), (-INF, INF), (INF, -INF), (-INF, -INF)), "dh": ones(4)},
          out={"dgate_up": [[0.0, 0.0]] * 4})
    add(f, "one-infinity", [(INF, 1), (INF, 300), (-INF, 1), (1, INF), (-1, -INF)],
        note="the slope of the infinite one is 0, the other keeps its own")
    return f


def small() -> Family:
    f = Family("situ/gradient-tiny",
               "Near 0 the gradients are dh b / 2 and dh a / 2, with full relative accuracy.",
               ["G1", "A1"])
    add(f, "thousandths", [(2.0**-10, 2.0**-10), (-(2.0**-10), 2.0**-10), (2.0**-13, 1),
                           (1, 2.0**-13)])
    add(f, "twenty-decades", [(2.0**-66, 1), (2.0**-66, 2.0**-40), (1, -(2.0**-66)),
                              (20, 2.0**-66), (2.0**-66, 50)])
    add(f, "tiny-dh", [(1, 1), (-2, 3), (40, 1), (0, 2)], dh=[[2.0**-100]] * 4)
    return f


def families() -> list[Family]:
    return [values(), saturated(), small()]
