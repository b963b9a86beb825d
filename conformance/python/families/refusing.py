# SPDX-License-Identifier: Apache-2.0
"""What must be refused (X1, X2, R5): status, field, and outputs left alone."""

import math

from golden.cases import ARGUMENTS, Family, Tensor, fill, resolve, size_of, tensor

from .layers import SMALL, weights

KILLS = ["refusal-missing", "writes-on-refusal"]  # and what each family alone kills
QB = {"n": 2, "k": 1}
GOOD_QB = {"score": [[0.75, 0.25], [0.25, 0.625]], "bias": [0.0, 0.0]}

# One lawful call of each operation: (config, inputs).
CALLS = {
    "route": ({"d": 2, "n": 3, "k": 2},
              {"x": [[1.0, 2.0]], "w_router": fill((3, 2), 0.5), "bias": [0.0] * 3}),
    "select": ({"n": 4, "k": 2},
               {"score": [[0.5, 0.25, 0.75, 0.125]], "bias": [0.0] * 4}),
    "permute": ({"n": 4, "k": 2}, {"ids": [[0, 1], [2, 3], [1, 0], [3, 1]]}),
    "situ_glu": ({"f": 2}, {"gate_up": [[1.0, 2.0, 3.0, 4.0]]}),
    "dense_ffn": ({"d": 3, "f": 2},
                  {"x": [[1.0, 2.0, 3.0]], "w_gate": fill((2, 3), 0.5),
                   "w_up": fill((2, 3), 0.5), "w_out": fill((3, 2), 0.5)}),
    "rmsnorm": ({"l": 3}, {"u": [[1.0, 2.0, 3.0]], "gamma": [1.0, 2.0, 3.0]}),
    "layer_forward": (SMALL, weights(SMALL, 2, 99)),
    "qb_exact": (QB, GOOD_QB),
    "qb_hist_accumulate": ({**QB, "B": 4}, {**GOOD_QB, "hist": fill((2, 4), 0)}),
    "qb_hist_merge": ({"n": 2, "B": 2}, {"parts": fill((3, 2, 2), 1)}),
    "qb_hist_solve": ({**QB, "B": 4, "T": 2},
                      {"hist": [[1, 0, 1, 0], [0, 2, 0, 0]], "bias": [0.0, 0.0]}),
    "sign_step": ({"n": 3}, {"bias": [0.0] * 3, "load": [1, 2, 3]}),
    "load_metrics": ({"n": 4, "k": 2}, {"ids": [[0, 1], [2, 3], [1, 0], [3, 1]]}),
}


def refuse(family, id, op, field, status, change=None, index=None, note=None, **config):
    base, inputs = CALLS[op]
    family.add(id, op, {**base, **config}, {**inputs, **(change or {})},
               status=f"SLM_ERR_{status}", field=field, index=index, note=note)


def resized(op, **sizes):
    """The lawful inputs of a call, resized to other (mostly zero) sizes."""
    base, inputs = CALLS[op]
    cfg = resolve({**base, **sizes})
    cfg.T = 1 if cfg.T is None else cfg.T
    cfg.R = 3
    result = {}
    for n, dims, kind in ARGUMENTS[op]:
        if n in inputs:
            shape = tuple(size_of(c, cfg) for c in dims)
            value = 0 if kind.startswith("i") else 0.5
            result[n] = fill(shape, value) if math.prod(shape) else Tensor(shape, data=[])
    return result


def sizes() -> Family:
    f = Family("reject/sizes", "Sizes outside 1 <= k <= n and below 1, each by its name.",
               ["R5", "X1"], ["k-zero-accepted", *KILLS])
    short = {"layer_forward": "layer", "qb_hist_accumulate": "accumulate",
             "qb_hist_merge": "merge", "qb_hist_solve": "solve", "qb_exact": "qb",
             "dense_ffn": "ffn", "situ_glu": "situ", "load_metrics": "metrics"}
    table = [("d_model", {"d": 0}, ("route", "dense_ffn", "layer_forward")),
             ("d_latent", {"l": 0}, ("rmsnorm", "layer_forward")),
             ("n_experts", {"n": 0}, ("select", "permute", "sign_step", "load_metrics",
                                      "qb_hist_merge")),
             ("top_k", {"k": 0}, ("route", "select", "permute", "layer_forward", "qb_exact",
                                  "load_metrics")),
             ("d_expert", {"f": 0}, ("situ_glu", "dense_ffn", "layer_forward")),
             ("d_shared", {"fs": 0}, ("layer_forward",)),
             ("n_bins", {"B": 0}, ("qb_hist_accumulate", "qb_hist_merge", "qb_hist_solve"))]
    for field, size, operations in table:
        for op in operations:
            refuse(f, f"{short.get(op, op)}-{field.replace('_', '-')}", op, field, "DOMAIN",
                   resized(op, **size), index=0, **size)
    for op, n in (("route", 3), ("select", 4), ("layer_forward", 4)):
        refuse(f, f"{short.get(op, op)}-k-above-n", op, "top_k", "DOMAIN",
               resized(op, k=n + 1), index=0, k=n + 1)
    for op in ("qb_exact", "qb_hist_accumulate", "qb_hist_solve"):
        refuse(f, f"{short[op]}-k-is-n", op, "top_k", "DOMAIN", index=0, k=2)
    refuse(f, "qb-relaxed-k-is-n", "qb_exact", "top_k", "DOMAIN", index=0, k=2,
           balance="relaxed")
    return f


def values() -> Family:
    f = Family("reject/values", "Parameters and elements outside their domain.",
               ["X1", "L1", "L2", "L5", "Q1", "Q3", "Q6"],
               ["ids-unchecked", "index-not-reported", *KILLS])
    for name, eps in (("zero", "0"), ("negative", "-1e-6")):
        refuse(f, f"rmsnorm-eps-{name}", "rmsnorm", "eps", "DOMAIN", index=0, eps=eps)
    refuse(f, "layer-eps-zero", "layer_forward", "eps", "DOMAIN", index=0, eps="0")
    for op, short in (("situ_glu", "situ"), ("dense_ffn", "ffn"), ("layer_forward", "layer")):
        refuse(f, f"{short}-beta-gate-zero", op, "beta_gate", "DOMAIN", index=0,
               beta_gate=0.0)
        refuse(f, f"{short}-beta-up-negative", op, "beta_up", "DOMAIN", index=0,
               beta_up=-25.0)
    refuse(f, "sign-rate-zero", "sign_step", "rate", "DOMAIN", index=0, rate=0.0)
    refuse(f, "sign-rate-negative", "sign_step", "rate", "DOMAIN", index=0, rate=-0.5)
    above, below = 1 + 2.0**-23, -(2.0**-149)
    refuse(f, "select-score-infinite", "select", "score", "DOMAIN",
           {"score": [[0.5, 0.25, math.inf, 0.125]]}, index=2)
    for name, bad in (("above-one", above), ("below-zero", below)):
        refuse(f, f"select-score-{name}", "select", "score", "DOMAIN",
               {"score": [[0.5, 0.25, bad, 0.125]]}, index=2)
        refuse(f, f"qb-score-{name}", "qb_exact", "score", "DOMAIN",
               {"score": [[0.75, 0.25], [0.25, bad]]}, index=3)
    refuse(f, "accumulate-score-above-one", "qb_hist_accumulate", "score", "DOMAIN",
           {"score": [[0.75, 0.25], [0.25, above]]}, index=3)
    refuse(f, "select-two-scores", "select", "score", "DOMAIN",
           {"score": [[0.5, -1.0, 0.75, 2.0]]}, index=1, note="the lower of the two")
    for op, short in (("permute", "permute"), ("load_metrics", "metrics")):
        for name, ids, index in (("repeated", [[2, 2], [0, 1]], 1),
                                 ("negative", [[-1, 1], [0, 3]], 0),
                                 ("past-the-end", [[3, 1], [0, 4]], 3),
                                 ("twice-at-fault", [[0, 1], [3, 3], [4, 0]], 3)):
            refuse(f, f"{short}-ids-{name}", op, "ids", "DOMAIN", {"ids": ids}, index=index)
    refuse(f, "sign-load-negative", "sign_step", "load", "DOMAIN", {"load": [1, -1, -3]},
           index=1)
    refuse(f, "accumulate-count-negative", "qb_hist_accumulate", "hist", "DOMAIN",
           {"hist": [[0, 0, 0, 0], [0, -1, 0, -1]]}, index=5)
    refuse(f, "accumulate-sum-overflows", "qb_hist_accumulate", "hist", "DOMAIN",
           {"hist": [[0, 0, 0, 0], [2**62, 2**62 - 2, 0, 0]]}, index=4,
           note="the first element of the row")
    refuse(f, "merge-count-negative", "qb_hist_merge", "parts", "DOMAIN",
           {"parts": [[[1, 1], [1, -1]]]}, index=3)
    refuse(f, "merge-sum-overflows", "qb_hist_merge", "parts", "DOMAIN",
           {"parts": [[[1, 1], [1, 2**62]], [[1, 1], [1, 2**62]]]}, index=7,
           note="element 1, 1 of part 1 takes the sum past 2^63 - 1")
    refuse(f, "merge-two-sums-overflow", "qb_hist_merge", "parts", "DOMAIN",
           {"parts": [[[2**62, 1], [1, 2**62]], [[2**62 - 1, 1], [1, 2**62]],
                      [[1, 1], [1, 1]]]}, index=7,
           note="element 0, 0 passes 2^63 - 1 in part 2, element 1, 1 already in part 1")
    refuse(f, "solve-count-negative", "qb_hist_solve", "hist", "DOMAIN",
           {"hist": [[1, -1, 2, 0], [0, 2, 0, 0]]}, index=1)
    refuse(f, "solve-row-sum", "qb_hist_solve", "hist", "DOMAIN",
           {"hist": [[1, 0, 1, 0], [0, 2, 1, 0]]}, index=4,
           note="the first element of the row")
    return f


def accepted() -> Family:
    f = Family("reject/just-inside", "The lawful side of each boundary in reject/values.",
               ["X1", "R5", "Q1", "Q3", "Q6"], ["last-count-refused", "refuses-the-lawful"])
    f.add("score-one-and-minus-zero", "select", {"n": 3, "k": 2},
          {"score": [[1.0, -0.0, 2.0**-126]], "bias": [0.0, 0.5, 0.0]},
          out={"ids": [[0, 1]], "weight": [[1.0, 0.0]]})
    f.add("qb-score-ends", "qb_exact", {"n": 2, "k": 1, "balance": "relaxed"},
          {"score": [[1.0, 0.0], [0.0, 1.0]], "bias": [0.0, 0.0]},
          out={"new_bias": [0.0, 0.0], "candidate": [0.0, 0.0], "cutoff": [0.0, 0.0]})
    f.add("last-id", "permute", {"n": 4, "k": 2}, {"ids": [[3, 0]]},
          out={"counts": [1, 0, 0, 1], "offsets": [0, 1, 1, 1, 2], "order": [1, 0]})
    f.add("accumulate-to-the-last-count", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 2},
          {"score": [[0.75, 0.25]], "bias": [0.0, 0.0], "hist": [[2**62, 2**62 - 2], [0, 0]]},
          out={"hist": [[2**62 + 1, 2**62 - 2], [0, 1]]})
    f.add("k-one-below-n", "qb_exact", {"n": 2, "k": 1},
          {"score": [[0.75, 0.25], [0.25, 0.625]], "bias": [0.0, 0.0]},
          out={"candidate": [0.0, 0.0], "new_bias": [0.0, 0.0]})
    f.add("smallest-rate", "sign_step", {"n": 2, "rate": 2.0**-149},
          {"bias": [0.0, 0.0], "load": [0, 1]}, out={"new_bias": [2.0**-149, -(2.0**-149)]})
    return f


def shapes() -> Family:
    f = Family("reject/shapes", "Each tensor of each operation with one size too many or few.",
               ["X1", "X2"], ["counts-compared-only", *KILLS])
    for op, (_, inputs) in CALLS.items():
        for name, given in inputs.items():
            shape = list(tensor(given).shape)
            last = len(shape) - 1
            shape[last] += 1 if last else -1
            if op == "situ_glu":
                shape = [1, 2]
            value = 0 if name in ("ids", "hist", "parts", "load") else 0.5
            refuse(f, f"{op.replace('_', '-')}-{name.replace('_', '-')}", op, name, "SHAPE",
                   {name: fill(tuple(shape), value)})
    refuse(f, "select-bias-of-rank-two", "select", "bias", "SHAPE",
           {"bias": fill((1, 4), 0.0)})
    refuse(f, "layer-down-transposed", "layer_forward", "w_down", "SHAPE",
           {"w_down": fill((6, 3), 0.5)})
    refuse(f, "layer-experts-at-full-width", "layer_forward", "w_gate", "SHAPE",
           {"w_gate": fill((4, 5, 6), 0.5)})
    return f


def aliases() -> Family:
    f = Family("reject/aliases", "An output may share no byte with another argument.",
               ["X1", "X2"], ["in-place-accepted", *KILLS])

    def case(id, op, output, other, config=None, change=None):
        base, inputs = CALLS[op]
        f.add(id, op, {**base, **(config or {})}, {**inputs, **(change or {})},
              status="SLM_ERR_ALIAS", field=output, alias=(output, other))

    case("select-weight", "select", "weight", "score")
    case("select-ids", "select", "ids", "bias")
    case("route-ids", "route", "ids", "x")
    case("permute-counts", "permute", "counts", "ids")
    case("situ-in-place", "situ_glu", "h", "gate_up")
    case("ffn-in-place", "dense_ffn", "y", "x")
    case("rmsnorm-in-place", "rmsnorm", "r", "u")
    case("layer-in-place", "layer_forward", "y", "x")
    case("qb-bias-in-place", "qb_exact", "new_bias", "bias")
    case("merge-into-a-part", "qb_hist_merge", "hist", "parts")
    case("solve-bias-in-place", "qb_hist_solve", "new_bias", "bias")
    case("sign-in-place", "sign_step", "new_bias", "bias")
    case("metrics-load", "load_metrics", "load", "ids")
    return f


def nonfinite() -> Family:
    f = Family("reject/nonfinite", "A bias that is not finite, scores of NaN in balancing.",
               ["X1", "R5", "Q1", "Q3", "Q6"],
               ["infinity-accepted", "index-not-reported", *KILLS])
    bad = {"nan": math.nan, "infinity": math.inf, "minus-infinity": -math.inf}
    for i, op in enumerate(("select", "route", "layer_forward", "qb_exact",
                            "qb_hist_accumulate", "qb_hist_solve", "sign_step")):
        width = CALLS[op][0]["n"]
        for name in list(bad)[:3 if i == 0 else 2]:
            bias = [0.0] * (width - 1) + [bad[name]]
            refuse(f, f"{op.replace('_', '-')}-bias-{name}", op, "bias", "NONFINITE",
                   {"bias": bias}, index=width - 1)
    refuse(f, "select-two-biases", "select", "bias", "NONFINITE",
           {"bias": [0.0, math.inf, math.nan, 0.0]}, index=1, note="the lower of the two")
    for op in ("qb_exact", "qb_hist_accumulate"):
        refuse(f, f"{op.replace('_', '-')}-score-nan", op, "score", "NONFINITE",
               {"score": [[0.75, 0.25], [math.nan, 0.625]]}, index=2)
    return f


def order() -> Family:
    f = Family("reject/precedence",
               "When several faults meet, SHAPE, ALIAS, DOMAIN, NONFINITE, TARGET, TIE.",
               ["X1"], ["wrong-precedence", "strict-accepts-fractional-target"])
    nan = math.nan
    refuse(f, "domain-before-nonfinite", "select", "top_k", "DOMAIN",
           {"bias": [nan, 0.0, 0.0, 0.0]}, index=0, k=5)
    refuse(f, "shape-before-domain", "select", "bias", "SHAPE", {"bias": [0.0] * 3}, k=0)
    base, inputs = CALLS["select"]
    f.add("alias-before-domain", "select", base,
          {**inputs, "score": [[0.5, 2.0, 0.75, 0.125]]},
          status="SLM_ERR_ALIAS", field="weight", alias=("weight", "score"))
    f.add("shape-before-alias", "select", base, {**inputs, "bias": [0.0] * 3},
          status="SLM_ERR_SHAPE", field="bias", alias=("weight", "score"))
    refuse(f, "nonfinite-before-target", "qb_exact", "score", "NONFINITE",
           {"score": [[0.75, 0.25], [nan, 0.625], [0.5, 0.5]]}, index=2)
    refuse(f, "nonfinite-before-tie", "qb_exact", "bias", "NONFINITE",
           {"score": fill((2, 2), 1.0), "bias": [0.0, nan]}, index=1)
    refuse(f, "domain-before-nonfinite-score", "qb_exact", "score", "DOMAIN",
           {"score": [[0.75, 0.25], [0.25, math.inf]]}, index=3,
           note="an infinity is outside [0, 1] before it is not finite")
    refuse(f, "domain-before-target", "qb_exact", "score", "DOMAIN",
           {"score": [[0.75, 0.25], [1.5, 0.625], [0.5, 0.5]]}, index=2)
    refuse(f, "target-before-tie", "qb_exact", "n_tokens", "TARGET",
           {"score": fill((3, 2), 1.0)}, index=0)
    refuse(f, "tie", "qb_exact", "new_bias", "TIE", {"score": fill((2, 2), 1.0)}, index=0)
    refuse(f, "sizes-before-elements", "permute", "top_k", "DOMAIN",
           {"ids": fill((2, 5), -1)}, index=0, k=5)
    refuse(f, "lowest-size-first", "layer_forward", "d_model", "DOMAIN",
           resized("layer_forward", d=0, l=0), index=0, d=0, l=0)
    return f


def families() -> list[Family]:
    return [sizes(), values(), accepted(), shapes(), aliases(), nonfinite(), order()]
