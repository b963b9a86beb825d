# SPDX-License-Identifier: Apache-2.0
"""layer_forward on numbers that a person can follow, and on poisoned rows (R4)."""

import math
from fractions import Fraction as F

from golden import forward
from golden.cases import Family, Tensor, resolve

from .layers import SMALL, weights

IDENTITY4 = [[1.0 if i == j else 0.0 for j in range(4)] for i in range(4)]

# z = (x4, x1); experts E0 = identity, E1 = swap and double, E2 = never chosen
PLAIN = {
    "x": [[1.0, 2.0, 3.0, 4.0]],
    "w_router": [[0.0] * 4, [0.0] * 4, [-1.0, 0.0, 0.0, 0.0]],
    "bias": [0.0] * 3,
    "w_down": [[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]],
    "w_expert": [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [2.0, 0.0]], [[64.0] * 2] * 2],
    "w_lift": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -2.0]],
    "w_shared": [IDENTITY4],
}
SIZES = {"profile": "linear", "d": 4, "l": 2, "n": 3, "k": 2, "S": 1}


def by_hand() -> Family:
    f = Family("layer/by-hand",
               "Linear experts on small integers, every stage exact and worked out on paper.",
               ["L2", "L3", "L4", "R2", "R3"],
               ["layer-eps-by-profile", "runs-every-expert", "norm-always", "norm-missing",
                "norm-per-expert", "norm-after-lift", "eps-outside-root", "eps-on-the-sum",
                "gamma-ignored", "shared-dropped", "shared-averaged", "shared-fed-z",
                "router-fed-z", "no-renormalise", "wrong-expert-weights", "last-expert-dropped",
                "higher-id-wins"])

    def case(id, config, change, out, **rest):
        f.add(id, "layer_forward", {**SIZES, **config}, {**PLAIN, **change}, out=out, **rest)

    common = {"ids": [[0, 1]], "weight": [[0.5, 0.5]], "z": [[4.0, 1.0]],
              "o": [[[4.0, 1.0], [2.0, 8.0]]], "u": [[3.0, 4.5]]}
    case("without-norm", {"norm": "none"}, {},
         {**common, "r": [[3.0, 4.5]], "y": [[4.0, 6.5, 10.5, 1.0]]})
    case("root-of-49", {"eps": "34.375"}, {},
         {**common, "r": [[F(3, 7), F(9, 14)]],
          "y": [[F(10, 7), F(37, 14), F(57, 14), F(25, 7)]]},
         note="mean(u^2) = 14.625, eps 34.375, root 7")
    case("gamma", {"eps": "34.375"}, {"gamma": [7.0, -14.0]},
         {**common, "r": [[3.0, -9.0]], "y": [[4.0, -7.0, -3.0, 28.0]]})
    case("two-shared", {"norm": "none", "S": 2},
         {"w_shared": [IDENTITY4, [[0.0, 0.0, 0.0, 2.0]] + [[0.0] * 4] * 3]},
         {**common, "y": [[12.0, 6.5, 10.5, 1.0]]},
         kills=["shared-averaged", "shared-first-only"], tags=["probe"],
         note="shared experts are added at full width, neither averaged nor weighted")
    case("third-by-bias", {"norm": "none", "k": 1}, {"bias": [0.0, 0.0, 1.0]},
         {"ids": [[2]], "weight": [[1.0]], "z": [[4.0, 1.0]], "o": [[[320.0, 320.0]]],
          "u": [[320.0, 320.0]], "y": [[321.0, 322.0, 643.0, 4.0]]},
         kills=["bias-ignored", "last-expert-dropped", "k1-not-normalised"])
    case("identical-experts", {"norm": "none"},
         {"w_expert": [[[1.0, 2.0], [0.0, 1.0]]] * 3, "w_router": [[0.5, 0.0, 0.0, 0.0],
          [0.25, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]},
         {"ids": [[0, 1]], "u": [[6.0, 1.0]], "y": [[7.0, 3.0, 10.0, 14.0]]},
         note="weights are transcendental, their sum is 1 and so u is exact")
    case("opposed-experts-cancel", {},
         {"w_expert": [[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]], [[9.0] * 2] * 2]},
         {"ids": [[0, 1]], "u": [[0.0, 0.0]], "r": [[0.0, 0.0]], "y": [[1.0, 2.0, 3.0, 4.0]]},
         kills=["zero-over-zero"], note="u = 0 gives 0 and the shared path alone")
    case("expert-nobody-chose", {"norm": "none"},
         {"w_expert": PLAIN["w_expert"][:2] + [[[math.nan, math.inf], [0.0, 1.0]]]},
         {**common, "y": [[4.0, 6.5, 10.5, 1.0]]}, clause=["R4", "L5"],
         kills=["runs-every-expert"], note="its weights are NaN and infinite and do not matter")
    return f


def poisoned() -> Family:
    f = Family("layer/poisoned-row",
               "A NaN logit poisons its row alone, or the call is refused and writes nothing.",
               ["R4"], ["cleared-by-product", "nan-dropped-from-y", "nan-poisons-other-rows",
                        "nan-hidden", "out-of-range-ids-on-nan"])
    for name, bad, seed in (("nan", math.nan, 95), ("infinite", math.inf, 96)):
        typed = weights(SMALL, 3, seed)
        flat = {n: t.values(n) for n, t in typed.items()}
        cfg = resolve(SMALL)
        cfg.T = 3
        good = forward.layer_forward(cfg, flat)
        x = list(flat["x"])
        x[6] = bad  # the middle row

        def row(values, width, other):
            return Tensor((3, width), data=values[:width] + [other] * width
                          + values[2 * width:])

        f.add(name, "layer_forward", SMALL, {**typed, "x": Tensor((3, 6), data=x)},
              either=[{"status": "SLM_ERR_NONFINITE", "field": "logit", "index": 4},
                      {"out": {"ids": row(good["ids"], 2, "any"),
                               "weight": row(good["weight"], 2, "any"),
                               "y": row(good["y"], 6, math.nan)}}],
              provenance="oracle")
    typed = weights(SMALL, 3, 97)
    router = list(Tensor((4, 6), data=typed["w_router"].values("w_router")).data)
    router[13] = math.inf  # expert 2
    f.add("infinite-router", "layer_forward", SMALL,
          {**typed, "w_router": Tensor((4, 6), data=router)},
          either=[{"status": "SLM_ERR_NONFINITE", "field": "logit", "index": 2},
                  {"out": {"ids": Tensor((3, 2), data=["any"] * 6),
                           "weight": Tensor((3, 2), data=["any"] * 6),
                           "y": Tensor((3, 6), data=[math.nan] * 18)}}],
          kills=["infinite-logit-answered"],
          note="all else is finite: tanh and sigmoid have limits, and the answer looks right")
    many = {**SMALL, "n": 40}
    typed = weights(many, 3, 99)
    router = list(typed["w_router"].values("w_router"))
    router[37 * 6 + 5] = math.nan
    f.add("late-expert", "layer_forward", many,
          {**typed, "w_router": Tensor((40, 6), data=router)},
          either=[{"status": "SLM_ERR_NONFINITE", "field": "logit", "index": 37},
                  {"out": {"ids": Tensor((3, 2), data=["any"] * 6),
                           "weight": Tensor((3, 2), data=["any"] * 6),
                           "y": Tensor((3, 6), data=[math.nan] * 18)}}],
          kills=["late-logits-unsearched"],
          note="the logits of expert 37 alone are NaN, past the first 32 of each row")
    return f


def nonfinite_weights() -> Family:
    f = Family("layer/nonfinite-weights",
               "One weight is no number: where it enters y is NaN, or the call is refused.",
               ["R4"], ["nan-hidden"])
    tokens, d, rank = 4, 6, {"w_gate": 3, "w_up": 3, "w_out": 3}
    typed = weights(SMALL, tokens, 98)
    cfg = resolve(SMALL)
    good = forward.layer_forward(cfg, {name: tensor.values(name)
                                       for name, tensor in typed.items()})
    ids = [good["ids"][t * 2:t * 2 + 2] for t in range(tokens)]
    used = next(e for e in range(4) if 0 < sum(e in row for row in ids) < tokens)
    users = [t for t in range(tokens) if used in ids[t]]

    def case(name, bad, stage, rows, columns=range(d), **rest):
        """The weight's second row gets a bad element, of `used` where it has experts."""
        tensor = typed[name]
        values, width = list(tensor.values(name)), tensor.shape[-1]
        place = used * tensor.shape[1] * width if name in rank else 0
        values[place + (width if len(tensor.shape) > 1 else 1)] = bad
        mark = math.nan if math.isnan(bad) else "any"

        def outcome(columns, mark):
            y = list(good["y"])
            for t in rows:
                for i in columns:
                    y[t * d + i] = mark
            return {"out": {"ids": Tensor((tokens, 2), data=good["ids"]),
                            "y": Tensor((tokens, d), data=y)}}

        either = [{"status": "SLM_ERR_NONFINITE", "field": stage}, outcome(columns, mark)]
        if len(columns) < d:
            either.append(outcome(range(d), math.nan))
        f.add(f"{'nan' if math.isnan(bad) else 'infinity'}-in-{name.replace('_', '-')}",
              "layer_forward", SMALL, {**typed, name: Tensor(tensor.shape, data=values)},
              either=either, provenance="oracle", **rest)

    everyone = range(tokens)
    case("gamma", math.nan, "gamma", everyone)
    for name, stage in (("w_down", "z"), ("w_shared_gate", "hs"), ("w_shared_up", "hs")):
        case(name, math.nan, stage, everyone, kills=["nan-hidden", "layer-clamps-nan"])
    for name, stage in (("w_gate", "h"), ("w_up", "h"), ("w_out", "o")):
        case(name, math.nan, stage, users, note=f"of expert {used}, whom others did not choose",
             kills=["nan-poisons-other-rows", "nan-hidden", "runs-every-expert",
                    *(["layer-clamps-nan"] if name != "w_out" else [])])
    case("w_gate", math.inf, "h", users, note="SiTU has a limit there: any y is right",
         kills=["nan-poisons-other-rows"])
    for name in ("w_lift", "w_shared_out"):
        case(name, math.nan, "y", everyone, (1,), note="it enters one column of y")
    case("w_lift", -math.inf, "y", everyone, (1,))
    return f


def families() -> list[Family]:
    return [by_hand(), poisoned(), nonfinite_weights()]
