# SPDX-License-Identifier: Apache-2.0
"""Sizes past a block, a tile or a vector, for operations whose other families are small. A
fault from some row, column, slot or bin on shows in no smaller case."""

from golden.cases import Family, fill, gen

from . import gradients_ffn, gradients_layer, layers
from .balancing import RELAXED
from .counting import nothing
from .masking import scattered
from .routing import seeded_ids
from .stepping import stamp, ticket

VANILLA = {"profile": "vanilla"}
RELEASE = {"profile": "release"}
BF16 = {"dtype": "bf16"}


def digits(config):
    """bf16 holds 8 bits."""
    return 8 if config.get("dtype") == "bf16" else 12


def values(shape, seed, config, scale=1.0):
    bits = digits(config)
    return gen(shape, seed, bits, scale * 2.0 ** (2 - bits))


def situ() -> Family:
    f = Family("situ/sizes", "Rows and columns past a block, there and back.", ["L1", "G1"])
    for name, tokens, width, config in (("rows", 17, 40, {}), ("columns", 1, 1100, {}),
                                        ("bf16", 3, 17, BF16)):
        made = {"gate_up": values((tokens, 2 * width), 601, config, 4.0)}
        f.add(name, "situ_glu", {"f": width, **config}, made)
        made["dh"] = values((tokens, width), 602, config)
        f.add(f"{name}-back", "situ_glu_backward", {"f": width, **config}, made)
    return f


def ffn() -> Family:
    f = Family("ffn/sizes", "Tokens, widths, types and betas that no other case has.",
               ["L1", "L4", "G1", "G4"])
    betas = {"beta_gate": 2.0, "beta_up": 7.0}
    for name, d, width, tokens, config in (
            ("five-tokens", 6, 5, 5, {}), ("seventeen-tokens", 9, 4, 17, {}),
            ("forty-tokens", 3, 3, 40, {}), ("wide", 70, 67, 2, {}),
            ("wide-bf16", 70, 67, 2, BF16), ("swiglu-bf16", 12, 9, 3, {**BF16, **VANILLA}),
            ("other-betas", 6, 5, 3, betas)):
        sizes, made = gradients_ffn.seeded(d, width, tokens, 611, bits=digits(config), **config)
        if config is betas:
            made["w_gate"] = values((width, d), 611, config, 4.0)
            made["w_up"] = values((width, d), 611, config, 16.0)
        f.add(f"{name}-back", "dense_ffn_backward", sizes, dict(made),
              want=("dx", "dw_up", "dw_gate") if d < 50 else ("dx",))
        del made["dy"]
        f.add(name, "dense_ffn", sizes, made, want=("y",))
    f.add("relu-bf16", "dense_ffn", {**VANILLA, **BF16, "expert": "relu", "d": 12, "f": 9},
          {"x": values((3, 12), 612, BF16), "w_up": values((9, 12), 612, BF16, 0.5),
           "w_out": values((12, 9), 612, BF16, 0.5)}, want=("y",))
    f.add("deep-swiglu-back", "dense_ffn_backward", {**VANILLA, "d": 1, "f": 1},
          {"x": [[1.0], [1.0]], "w_gate": [[-40.0]], "w_up": [[1.5]], "w_out": [[2.0]],
           "dy": [[1.0], [3.0]]}, note="the slope is -39 sigma(a): without a sigma'(a) it is sigma(a)")
    return f


def norm() -> Family:
    f = Family("rmsnorm/sizes", "Tokens and widths past a block, with gamma and without.",
               ["L2", "G2"])
    for name, tokens, width, config, gamma in (
            ("nine-tokens", 9, 5, {}, True), ("width-320", 2, 320, {}, True),
            ("width-1025", 1, 1025, {}, True), ("seventy-tokens", 70, 3, {}, True),
            ("bf16-without-gamma", 5, 20, BF16, False)):
        made = {"u": values((tokens, width), 621, config)}
        if gamma:
            made["gamma"] = gen((width,), 621, 7, 2.0**-7, 1.0)
        f.add(name, "rmsnorm", {"l": width, **config}, made)
        made = {**made, "dr": values((tokens, width), 622, config)}
        f.add(f"{name}-back", "rmsnorm_backward", {"l": width, **config}, made)
    return f


def choice() -> Family:
    f = Family("select/larger", "More tokens than eight, more release slots than two.",
               ["R2", "R3", "G3"])
    for name, tokens, n, k, config in (
            ("nine-tokens", 9, 5, 2, {}), ("sixty-five-tokens", 65, 4, 2, {}),
            ("release-three", 3, 7, 3, RELEASE), ("release-sixteen", 2, 20, 16, RELEASE),
            ("all-of-six", 3, 6, 6, {}), ("bf16-release", 3, 7, 3, {**RELEASE, **BF16})):
        sizes = {"n": n, "k": k, **config}
        logit = values((tokens, n), 631, config, 2.0)
        f.add(name, "select", sizes, {"logit": logit, "bias": gen((n,), 631, 8, 2.0**-9)},
              want=("ids", "weight"))
        f.add(f"{name}-back", "select_backward", sizes,
              {"logit": logit, "ids": seeded_ids(tokens, n, k),
               "dweight": values((tokens, k), 632, config)})
    return f


def router() -> Family:
    f = Family("route/sizes", "A width past two blocks, more tokens than a block, bf16 rows.",
               ["R1", "R2", "R3"])
    for name, tokens, d, config in (("width-130", 2, 130, {}), ("sixty-five-tokens", 65, 3, {}),
                                    ("bf16-nine-tokens", 9, 40, BF16)):
        f.add(name, "route", {"d": d, "n": 6, "k": 2, **config},
              {"x": values((tokens, d), 641, config),
               "w_router": values((6, d), 641, config, 0.25),
               "bias": gen((6,), 641, 8, 2.0**-9)}, want=("ids", "weight"))
    for name, config in (("softmax-of-17", {}), ("softmax-bf16", BF16)):
        f.add(name, "route", {"d": 8, "n": 17, "k": 3, "score": "softmax", **config},
              {"x": values((3, 8), 642, config), "w_router": values((17, 8), 642, config, 0.5),
               "bias": fill((17,), 0.0)}, clause=["L4"], want=("ids", "weight"))
    return f


def counts() -> Family:
    f = Family("permute/sizes", "More experts than 1024; more pairs than a block.", ["L5"])
    f.add("experts-1100", "permute", {"n": 1100, "k": 2},
          {"ids": [[1099, 5], [1024, 1099], [0, 1030]]})
    f.add("pairs-4200", "permute", {"n": 3, "k": 2}, {"ids": seeded_ids(2100, 3, 2)})
    return f


def metrics() -> Family:
    f = Family("metrics/sizes", "More pairs than 2048; a mask of 70; loads that nearly agree.",
               ["Q7", "Q5"])
    f.add("pairs-2100", "load_metrics", {"n": 3, "k": 2}, {"ids": seeded_ids(1050, 3, 2)})
    f.add("mask-of-70", "load_metrics", {"n": 5, "k": 2},
          {"ids": seeded_ids(70, 5, 2), "mask": scattered(70)})
    f.add("loads-342-341-341", "load_metrics", {"n": 3, "k": 1},
          {"ids": [[t % 3] for t in range(1024)]},
          note="a variance as a difference of squares has lost what cv needs")
    return f


def exact() -> Family:
    f = Family("qb/sizes", "Many experts with many tokens, and a mask that long.",
               ["Q1", "Q2", "Q5"])
    for name, tokens, n, k in (("experts-130", 40, 130, 3), ("tokens-8200", 8200, 2, 1)):
        f.add(name, "qb_exact", {"n": n, "k": k, **RELAXED},
              {"score": gen((tokens, n), tokens, 22, 2.0**-24, 0.5), "bias": fill((n,), 0.0)},
              want=("new_bias",))
    f.add("mask-of-100", "qb_exact", {"n": 7, "k": 2, **RELAXED},
          {"score": gen((100, 7), 651, 22, 2.0**-24, 0.5), "bias": fill((7,), 0.0),
           "mask": scattered(100)}, want=("new_bias", "candidate"))
    return f


def histogram() -> Family:
    f = Family("hist/sizes", "Tokens, masks and bins past a block; a bias of all its digits.",
               ["Q3", "Q5", "C1"])

    def add(id, tokens, n, bins, mask=False):
        made = {"score": gen((tokens, n), 661, 22, 2.0**-23, 0.5),
                "bias": gen((n,), 661, 12, 2.0**-15), "hist": nothing(n, bins)}
        if mask:
            made["mask"] = scattered(tokens)
        f.add(id, "qb_hist_accumulate", {"n": n, "k": 1, "B": bins}, made)

    add("tokens-1100", 1100, 3, 10)
    add("mask-of-70", 70, 3, 10, True)
    f.add("bins-1100", "qb_hist_accumulate", {"n": 3, "k": 1, "B": 1100},
          {"score": [[1.0, 0.875, 0.0], [0.0, 0.9375, 1.0], [0.5, 0.25, 0.125]],
           "bias": [0.0] * 3, "hist": nothing(3, 1100)}, note="bins 1031, 1065 and others")
    half = [[0] * 1100, [0] * 1100]
    half[0][1040], half[0][1090] = 3, 5
    half[1][3], half[1][1099] = 6, 2
    f.add("solve-bins-1100", "qb_hist_solve", {"n": 2, "k": 1, "B": 1100, "T": 8},
          {"hist": half, "bias": [0.0, 0.0]})
    digits = [float.fromhex("0x1.000002p-7"), float.fromhex("-0x1.234566p-7")]
    f.add("range-of-all-digits", "qb_hist_solve", {"n": 2, "k": 1, "B": 4, "T": 4},
          {"hist": [[1, 1, 1, 1], [0, 4, 0, 0]], "bias": digits},
          note="lo and hi are no binary32 numbers")
    most = 2**53 + 1
    f.add("past-binary64", "qb_hist_solve", {"n": 2, "k": 1, "B": 4, "T": 2 * most + 2},
          {"hist": [[most, 2, most, 0], [most, 2, 0, most]], "bias": [0.0, 0.0]},
          note="a cumulative count that binary64 rounds to the rank")
    f.add("merge-1700", "qb_hist_merge", {"n": 17, "k": 1, "B": 100, "R": 2},
          {"parts": [[[(r + 1) * (j * 7 + b) % 11 for b in range(100)] for j in range(17)]
                     for r in range(2)]})
    return f


def state() -> Family:
    f = Family("state/sizes", "A step of many tokens, of a long mask, of many counts.",
               ["Q8", "Q5"])
    bias = [0.25, -0.125, 0.0]
    for name, tokens, mask in (("tokens-300", 300, False), ("mask-of-70", 70, True)):
        made = {"score": gen((tokens, 3), 666, 20, 2.0**-22, 0.5), "bias": bias,
                "ticket": ticket(bias), "stamp": stamp(bias), "hist": nothing(3, 8)}
        if mask:
            made["mask"] = scattered(tokens)
        f.add(name, "qb_observe", {"n": 3, "k": 1, "B": 8}, made)
    zero, n = [0.0] * 40, 40
    f.add("commit-4000-counts", "qb_commit", {"n": n, "k": 1, "B": 100},
          {"new_bias": gen((n,), 667, 10, 2.0**-13), "bias": zero,
           "stamp": stamp(zero, 0, 1, 7), "hist": [[7] + [0] * 99 for _ in range(n - 1)]
           + [[0] * 99 + [7]]})
    return f


def step() -> Family:
    f = Family("qb/step-extremes", "Sums and products of loads that no 64-bit integer holds.",
               ["Q6"])
    last, r = 2**63 - 1, 2.0**-10
    f.add("sum-overflows", "sign_step", {"n": 3, "k": 1},
          {"bias": [0.0] * 3, "load": [last, last, 0]}, out={"new_bias": [-r, -r, r]})
    f.add("product-overflows", "sign_step", {"n": 4, "k": 1},
          {"bias": [0.0] * 4, "load": [2**62, 1, 0, 0]}, out={"new_bias": [-r, r, r, r]})
    return f


def layer() -> Family:
    f = Family("layer/sizes", "Sixteen slots for five tokens; types without their case.",
               ["L4", "L6", "R3"])
    thin = {"d": 3, "l": 2, "f": 3, "S": 0}
    many = {**thin, "n": 20, "k": 16}
    layers.add(f, "sixteen-slots", many, 5, 671, want=("ids", "u", "y"))
    relu = {**layers.SMALL, "profile": "vanilla", "expert": "relu", **BF16}
    layers.add(f, "bf16-relu", relu, 3, 672, want=("y",), bits=8)
    bare = {**layers.SMALL, **BF16}
    made = layers.weights(bare, 3, 673, bits=8)
    del made["gamma"]
    f.add("bf16-without-gamma", "layer_forward", bare, made, want=("r", "y"))
    return f


def layer_gradients() -> Family:
    f = Family("layer/gradient-sizes", "Sixteen slots, 600 experts, widths and tokens past a "
               "block, types without their case.", ["G1", "G2", "G3", "G4"])
    thin = {"d": 3, "l": 2, "f": 3, "S": 0}
    add = gradients_layer.add
    add(f, "sixteen-slots", {**thin, "n": 20, "k": 16}, 3, 681, want=("dx", "dw_down"))
    add(f, "sixteen-release-slots", {**thin, **RELEASE, "n": 20, "k": 16}, 2, 682,
        want=("dx", "dw_router"))
    add(f, "experts-600", {"d": 2, "l": 1, "n": 600, "k": 2, "f": 1, "S": 0}, 3, 683,
        ids=[[599, 3], [512, 599], [0, 520]], want=("dx", "dw_up", "dw_out"))
    add(f, "width-140", {"d": 140, "l": 3, "n": 3, "k": 2, "f": 2, "S": 0}, 2, 684,
        want=("dx", "dw_gate"))
    add(f, "tokens-520", {"d": 2, "l": 2, "n": 3, "k": 1, "f": 1, "S": 0}, 520, 685,
        want=("dw_gate", "dw_lift", "dw_down"))
    add(f, "one-expert-140-rows", {"d": 2, "l": 2, "n": 1, "k": 1, "f": 2, "S": 0}, 140, 686,
        want=("dw_gate", "dw_out"))
    add(f, "eps-of-its-own", {**layers.SMALL, "eps": "1e-3"}, 3, 687, want=("dx", "dw_down"),
        out_scale=-6)
    for name, config in (("bf16-vanilla", VANILLA), ("bf16-without-norm", {"norm": "none"}),
                         ("bf16-release", RELEASE)):
        add(f, name, {**layers.SMALL, **config, **BF16}, 3, 688, want=("dx", "dw_gate"), bits=8)
    return f


def families() -> list[Family]:
    return [situ(), ffn(), norm(), choice(), router(), counts(), metrics(), exact(),
            histogram(), state(), step(), layer(), layer_gradients()]
