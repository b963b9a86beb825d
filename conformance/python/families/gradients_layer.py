# SPDX-License-Identifier: Apache-2.0
"""layer_backward (G1-G5): every path, profile and size; exact zeros; sums over tokens."""

from golden.cases import Family, Tensor, empty, fill, gen, resolve, tensor

from . import layer_documents
from .layers import SMALL, weights
from .routing import seeded_ids

GITHUB = "https://github.com/"
OUT = ("dx", "dw_router", "dw_down", "dw_gate", "dw_up", "dw_out", "dw_expert", "dgamma",
       "dw_lift", "dw_shared_gate", "dw_shared_up", "dw_shared_out", "dw_shared")
TAPS = ("dbias", "logit", "weight", "z", "gate_up", "h", "o", "u", "r", "shared_gate_up",
        "hs", "dr", "du", "dweight", "dlogit", "dh", "dgate_up", "dz", "dhs",
        "dshared_gate_up")


def has(config, name):
    """Whether the configuration has that output."""
    c = resolve(config)
    linear = {"dw_expert", "dw_shared"}
    gated = {"dw_gate", "dw_up", "dw_out", "gate_up", "h", "dh", "dgate_up",
             "dw_shared_gate", "dw_shared_up", "dw_shared_out", "shared_gate_up", "hs",
             "dhs", "dshared_gate_up"}
    shared = "shared" in name or name in ("hs", "dhs")
    return not (name in (gated if c.expert == "linear" else linear)
                or (shared and c.S == 0) or (name == "dgamma" and c.norm == "none"))


def outputs(config, names=OUT):
    return tuple(name for name in names if has(config, name))


def inputs(config, tokens, seed, ids=None, **options):
    """Seeded weights and tokens; ids where the case does not choose them."""
    c = resolve(config)
    made = weights(config, tokens, seed, **options)
    del made["bias"]
    bits = options.get("bits", 12)
    made["dy"] = (gen((tokens, c.d), seed, bits, 2.0 ** (1 - bits)) if tokens
                  else empty(0, c.d))
    made["ids"] = tensor(ids or seeded_ids(tokens, c.n, c.k)) if tokens else empty(0, c.k)
    return made


def add(f, id, config, tokens, seed, want=OUT, change=None, ids=None, **rest):
    keys = ("out_scale", "x_scale", "bits")
    made = inputs(config, tokens, seed, ids,
                  **{k: rest.pop(k) for k in keys if k in rest})
    f.add(id, "layer_backward", config, {**made, **(change or {})},
          want=outputs(config, want), **rest)


def profiles() -> Family:
    f = Family("layer/gradient-profiles",
               "The whole backward pass in each profile, every stage tapped: a path that is "
               "missing in dx, a weight used twice or not at all shows in one of them.",
               ["G1", "G2", "G3", "G4", "G5", "L4"],
               ["router-path-missing-in-dx", "shared-path-missing-in-dx",
                "expert-gradient-unweighted", "shared-gradient-weighted",
                "down-gradient-first-slot-only", "lift-gradient-from-u",
                "router-gradient-from-z", "gradient-into-bias", "choice-recomputed",
                "expert-weighted-twice", "out-gradient-unweighted", "dweight-from-dr",
                "slot-gradients-overwritten", "dx-overwritten-by-shared",
                "gamma-gradient-needs-gamma"])
    for i, name in enumerate(("paper", "release", "vanilla", "linear")):
        add(f, name, {"profile": name, **SMALL}, 3, 541 + i, want=OUT + TAPS)
    add(f, "situ-without-norm", {"norm": "none", **SMALL}, 3, 545, want=OUT + TAPS)
    add(f, "linear-without-norm", {"profile": "linear", "norm": "none", **SMALL}, 2, 546)
    add(f, "gamma-absent", SMALL, 3, 547, note="dgamma is the gradient at ones")
    del f.cases[-1].inputs["gamma"]
    tiny = {"d": 6, "l": 3, "n": 4, "k": 2, "S": 2}
    note = {k: v for k, v in layer_documents.INPUTS.items() if k != "bias"}
    f.add("note-seed-7", "layer_backward", {"profile": "linear", **tiny},
          {**note, "ids": layer_documents.EXPECTED["ids"], "dy": fill((5, 6), 1.0)},
          want=outputs({"profile": "linear", **tiny}), source=layer_documents.SOURCE,
          note="the note's own tensors; L is the sum of y")
    return f


# x is orthogonal to the first two rows of the router, so p = 1/2 twice; z = (4, 1).
PLAIN = {
    "x": [[1.0, 2.0, 3.0, 4.0]], "ids": [[0, 1]], "dy": [[3.0, 1.0, 1.0, 0.0]],
    "w_router": [[2.0, -1.0, 0.0, 0.0], [0.0, 0.0, 4.0, -3.0], [-1.0, 0.0, 0.0, 0.0]],
    "w_down": [[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]],
    "w_expert": [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [2.0, 0.0]], [[64.0] * 2] * 2],
    "w_lift": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -2.0]],
    "w_shared": [[[1.0 if i == j else 0.0 for j in range(4)] for i in range(4)]],
}
SIZES = {"profile": "linear", "d": 4, "l": 2, "n": 3, "k": 2, "S": 1}
ROW = [1.0, 2.0, 3.0, 4.0]


def times(*factors, row=ROW):
    return [[a * b for b in row] for a in factors]


def by_hand() -> Family:
    f = Family("layer/gradient-by-hand",
               "Linear experts on small integers: every gradient exact and worked out on paper.",
               ["G2", "G3", "G4", "G5"], ["idle-weights-in-dz"])

    def case(id, config, change, out, **rest):
        f.add(id, "layer_backward", {**SIZES, **config}, {**PLAIN, **change}, out=out, **rest)

    plain = {
        "z": [[4.0, 1.0]], "o": [[[4.0, 1.0], [2.0, 8.0]]], "u": [[3.0, 4.5]],
        "weight": [[0.5, 0.5]], "dr": [[4.0, 2.0]], "du": [[4.0, 2.0]],
        "dweight": [[18.0, 24.0]], "dlogit": [[-0.75, 0.75, 0.0]], "dz": [[4.0, 5.0]],
        "dx": [[6.5, 1.75, 4.0, 1.75]], "dbias": [0.0] * 3,
        "dw_router": times(-0.75, 0.75, 0.0), "dw_down": times(4.0, 5.0),
        "dw_expert": [[[8.0, 2.0], [4.0, 1.0]]] * 2 + [[[0.0, 0.0]] * 2],
        "dw_lift": times(3.0, 1.0, 1.0, 0.0, row=[3.0, 4.5]),
        "dw_shared": [times(3.0, 1.0, 1.0, 0.0)]}
    case("without-norm", {"norm": "none"}, {}, plain,
         note="D = (-3, 3), dz = (2, 1) + (2, 4), dx from four paths")
    case("spec-example", {"d": 1, "l": 1, "n": 1, "k": 1, "S": 0, "norm": "none"},
         {"x": [[2.0]], "ids": [[0]], "dy": [[1.0]], "w_router": [[1.0]], "w_down": [[3.0]],
          "w_expert": [[[5.0]]], "w_lift": [[7.0]], "w_shared": empty(0, 1, 1)},
         {"weight": [[1.0]], "z": [[6.0]], "u": [[30.0]], "dr": [[7.0]], "dz": [[35.0]],
          "dx": [[105.0]], "dw_lift": [[30.0]], "dw_expert": [[[42.0]]], "dw_down": [[70.0]],
          "dw_router": [[0.0]]})
    case("two-tokens", {"norm": "none"},
         {"x": [ROW, ROW], "ids": [[0, 1], [1, 0]], "dy": [[3.0, 1.0, 1.0, 0.0]] * 2},
         {name: [plain[name][0]] * 2 if name in ("dz", "dx")
          else [[2 * v for v in row] for row in plain[name]]
          for name in ("dz", "dx", "dw_router", "dw_down", "dw_lift")},
         note="the same token twice, its slots in the other order: sums double exactly",
         kills=["weight-gradient-not-reset"])
    case("opposite-dy", {"norm": "none"},
         {"x": [ROW, ROW], "ids": [[0, 1]] * 2,
          "dy": [[3.0, 1.0, 1.0, 0.0], [-3.0, -1.0, -1.0, 0.0]]},
         {"dx": [plain["dx"][0], [-v for v in plain["dx"][0]]],
          "dw_router": fill((3, 4), 0.0), "dw_down": fill((2, 4), 0.0),
          "dw_expert": fill((3, 2, 2), 0.0), "dw_lift": fill((4, 2), 0.0),
          "dw_shared": fill((1, 4, 4), 0.0)}, note="sums over the tokens cancel exactly")
    case("expert-nobody-chose", {"norm": "none"},
         {"w_expert": PLAIN["w_expert"][:2] + [[[float("nan"), float("inf")], [0.0, 1.0]]]},
         {name: plain[name] for name in ("dx", "dz", "dw_expert", "dw_router", "dw_down")},
         clause=["R4", "G5"], note="its weights are NaN and infinite and do not matter")
    return f


def zeros() -> Family:
    f = Family("layer/gradient-zeros",
               "What has no gradient gets exact zeros, written over whatever was there: idle "
               "experts, the router at k = 1, dy = 0, no tokens.",
               ["G3", "G5", "R5"],
               ["idle-experts-unwritten", "weight-gradient-not-reset",
                "expert-tail-rows-dropped", "expert-gradients-averaged"])
    config = {"d": 9, "l": 5, "n": 6, "k": 2, "f": 4, "S": 1, "fs": 3}
    experts = ("dx", "dw_router", "dw_gate", "dw_up", "dw_out")
    add(f, "idle-experts", config, 4, 551, ids=[[1, 4], [4, 1], [1, 4], [4, 1]],
        want=experts, note="experts 0, 2, 3 and 5 are idle: their slices are 0")
    add(f, "idle-linear", {"profile": "linear", **SMALL, "n": 7}, 3, 552,
        ids=[[6, 3], [3, 6], [6, 3]], want=("dx", "dw_router", "dw_expert"))
    one = {**config, "k": 1}
    add(f, "all-on-one-expert", one, 9, 553, ids=[[3]] * 9, want=experts)
    add(f, "first-and-last", config, 5, 554, ids=[[0, 5], [5, 0], [0, 5], [0, 5], [5, 0]],
        want=experts)
    add(f, "k-one", one, 4, 555, want=experts + ("dlogit", "dweight"),
        note="the router's gradient is exactly 0", clause=["G3"],
        source=GITHUB + "jingyaogong/minimind/issues/858", kills=["k-one-gradient"])
    add(f, "k-one-release", {"profile": "release", "norm": "none", **one}, 4, 556,
        want=experts + ("dlogit", "dweight"), clause=["G3"],
        note="the weight is the score: the router learns")
    add(f, "dy-of-zeros", SMALL, 3, 557, change={"dy": fill((3, 6), 0.0)},
        clause=["G4", "G5"])
    for name, profile in (("no-tokens", "paper"), ("no-tokens-linear", "linear")):
        c = {"profile": profile, **SMALL}
        shapes = {"dx": (0, 6), "dw_router": (4, 6), "dw_down": (3, 6), "dw_gate": (4, 5, 3),
                  "dw_up": (4, 5, 3), "dw_out": (4, 3, 5), "dw_expert": (4, 3, 3),
                  "dgamma": (3,), "dw_lift": (6, 3), "dw_shared_gate": (6, 6),
                  "dw_shared_up": (6, 6), "dw_shared_out": (6, 6), "dw_shared": (2, 6, 6)}
        f.add(name, "layer_backward", c, inputs(c, 0, 558),
              out={n: fill(s, 0.0) if s[0] else Tensor(s, data=[])
                   for n, s in shapes.items() if has(c, n)},
              note="gradients of weights are zeros and must be written",
              source=GITHUB + "pytorch/pytorch/pull/192497")
    return f


def shapes() -> Family:
    f = Family("layer/gradient-shapes",
               "Widths that shapes cannot tell apart, odd ones, tails of tiles, T of one.",
               ["G4", "L6", "R5"], ["gradient-of-256-experts"])
    for d, l, n, k, width, tokens, seed, link in (
            (9, 20, 4, 1, 12, 24, 561, "ml-explore/mlx/pull/4009"),
            (10, 33, 4, 1, 7, 24, 562, "NVIDIA/cutlass/issues/2674")):
        add(f, f"latent-{l}-inner-{width}", {"d": d, "l": l, "n": n, "k": k, "f": width,
                                             "S": 0, "fs": 0}, tokens, seed,
            ids=[[3 if t % 3 else 1] for t in range(tokens)],
            want=("dx", "dw_gate", "dw_out", "dgamma"), source=GITHUB + link,
            note="counts 0, 8, 0, 16; l > d")
    add(f, "square", {"d": 4, "l": 4, "n": 4, "k": 2, "f": 4, "S": 1, "fs": 4}, 3, 563,
        note="every matrix is square, d = l = n = f: a transposed one fits")
    add(f, "latent-as-wide", {"profile": "linear", "d": 8, "l": 8, "n": 3, "k": 2, "S": 1}, 3,
        564, note="l = d")
    add(f, "odd", {"d": 33, "l": 17, "n": 7, "k": 3, "f": 9, "S": 1, "fs": 11}, 2, 565,
        want=("dx", "dw_router", "dw_down", "dgamma", "dw_shared_gate"))
    add(f, "all-ones", {"d": 1, "l": 1, "n": 1, "k": 1, "f": 1, "S": 1, "fs": 1}, 3, 566)
    add(f, "k-is-n", {**SMALL, "k": 4}, 2, 567, want=OUT + ("dlogit", "dweight"))
    add(f, "no-shared", {**SMALL, "S": 0, "fs": 0}, 2, 568)
    add(f, "linear-no-shared", {"profile": "linear", **SMALL, "S": 0, "fs": 0}, 2, 569)
    add(f, "three-shared", {**SMALL, "S": 3, "fs": 2}, 2, 570)
    add(f, "one-token", {**SMALL, "n": 9, "k": 3}, 1, 571)
    add(f, "twenty-four-wide", {"d": 40, "l": 24, "n": 8, "k": 2, "f": 16, "S": 2, "fs": 8},
        11, 572, want=("dx", "dw_router", "dgamma"))
    add(f, "many-experts", {"d": 8, "l": 4, "n": 320, "k": 8, "f": 2, "S": 1, "fs": 2}, 3, 573,
        want=("dx", "dw_down", "dgamma"))
    return f


def numbers() -> Family:
    f = Family("layer/gradient-numbers",
               "Tiny aggregates, where eps rules du; saturated experts and routers; bf16, "
               "where the gradients of weights are binary32 all the same.",
               ["G1", "G2", "G3", "G4", "A1"],
               ["weight-gradient-in-bf16", "bf16-gradient-for-bf16"])
    config = {"d": 8, "l": 4, "n": 6, "k": 2, "f": 4, "S": 1, "fs": 4}
    some = ("dx", "dw_router", "dw_down", "dw_gate", "dw_out", "dgamma", "dw_lift")
    for name in ("paper", "release"):
        for scale in (-10, -20):
            add(f, f"{name}-aggregate-{-scale}", {"profile": name, **config}, 2, 581,
                want=some + ("du", "dweight"), out_scale=scale)
    add(f, "aggregate-zero", config, 2, 582, change={"w_out": fill((6, 4, 4), 0.0)},
        want=some + ("du", "dweight"), note="u = 0: du is gamma dr over the root of eps")
    add(f, "saturated", SMALL, 2, 583, x_scale=5, want=OUT + ("dgate_up", "dlogit"))
    add(f, "small-x", SMALL, 2, 584, x_scale=-12)
    add(f, "other-betas", {**SMALL, "beta_gate": 0.5, "beta_up": 0.75}, 2, 585)
    add(f, "bf16", {"dtype": "bf16", "d": 16, "l": 8, "n": 6, "k": 2, "f": 10, "S": 1,
                    "fs": 6}, 6, 586, bits=7, kills=["weight-gradient-in-bf16"],
        want=OUT + ("dgate_up", "dlogit", "dz", "du"),
        source=GITHUB + "NVIDIA/TransformerEngine/issues/1336")
    add(f, "bf16-linear", {"profile": "linear", "dtype": "bf16", **SMALL}, 4, 587, bits=7)
    repeated = inputs(SMALL, 1, 588)
    for name in ("x", "dy", "ids"):
        repeated[name] = Tensor((64, repeated[name].shape[1]),
                                data=repeated[name].values(name) * 64)
    f.add("one-token-64-times", "layer_backward", SMALL, repeated, want=outputs(SMALL, OUT[1:]),
          note="64 times the gradient of one: sums in bf16 stop short of it",
          kills=["weight-gradient-in-bf16"])
    return f


def families() -> list[Family]:
    return [profiles(), by_hand(), zeros(), shapes(), numbers()]
