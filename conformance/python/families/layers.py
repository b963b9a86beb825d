# SPDX-License-Identifier: Apache-2.0
"""layer_forward (L1-L5) on seeded weights: profiles, shared experts, tiny aggregates."""

from golden.cases import Family, Tensor, empty, fill, gen, resolve

SMALL = {"d": 6, "l": 3, "n": 4, "k": 2, "f": 5, "S": 2, "fs": 3}
TAPS = ("ids", "weight", "cutoff", "logit", "score", "z", "h", "o", "u", "r", "hs", "y")
GITHUB = "https://github.com/"


def weights(config, tokens, seed, out_scale=0, bits=12, x_scale=0):
    """Seeded inputs of a layer; each product is near unit scale."""
    c = resolve(config)

    def normal(shape, fan, shift=0):
        half = (fan.bit_length() - 1) // 2
        return gen(shape, seed, bits, 2.0 ** (1 - bits - half + shift))

    inner = c.S * c.fs
    t = {"x": normal((tokens, c.d), 1, x_scale) if tokens else empty(0, c.d),
         "bias": gen((c.n,), seed, 10, 2.0**-14), "w_router": normal((c.n, c.d), c.d),
         "w_down": normal((c.l, c.d), c.d), "w_lift": normal((c.d, c.l), c.l)}
    if c.norm == "rms":
        t["gamma"] = gen((c.l,), seed, 6, 2.0**-7, 1.0)
    if c.expert == "linear":
        t["w_expert"] = normal((c.n, c.l, c.l), c.l, out_scale)
        t["w_shared"] = normal((c.S, c.d, c.d), c.d)
        return t
    t["w_up"] = normal((c.n, c.f, c.l), c.l)
    t["w_out"] = normal((c.n, c.l, c.f), c.f, out_scale)
    shared = {"w_shared_up": (inner, c.d), "w_shared_out": (c.d, inner)}
    if c.expert != "relu":
        t["w_gate"] = normal((c.n, c.f, c.l), c.l)
        shared["w_shared_gate"] = (inner, c.d)
    for name, shape in shared.items():
        t[name] = normal(shape, shape[1]) if inner else Tensor(shape, data=[])
    return t


def taps(config):
    """Taps that the configuration has."""
    c = resolve(config)
    missing = {"h", "hs"} if c.expert == "linear" else set()
    if c.S == 0:
        missing.add("hs")
    if c.k == c.n:
        missing.add("cutoff")
    return tuple(name for name in TAPS if name not in missing)


def add(f, id, config, tokens, seed, want=None, change=None, **rest):
    keys = ("out_scale", "x_scale", "bits")
    inputs = weights(config, tokens, seed, **{k: rest.pop(k) for k in keys if k in rest})
    inputs.update(change or {})
    f.add(id, "layer_forward", config, inputs, want=want or taps(config), **rest)


def profiles() -> Family:
    f = Family("layer/profiles", "The whole layer in each profile, every stage tapped.",
               ["L1", "L2", "L3", "L4", "L6", "R3", "A1", "A2", "A3"],
               ["original-without-norm", "order-by-batch", "order-by-call",
                "rounding-point-undeclared", "stale-workspace", "norm-missing", "norm-per-expert",
                "norm-after-lift", "gamma-ignored", "shared-dropped", "shared-fed-z",
                "shared-averaged", "shared-weighted", "router-fed-z", "experts-fed-x",
                "wrong-expert-weights", "halves-swapped", "sigma-of-capped-gate"])
    for i, name in enumerate(("paper", "release", "vanilla", "linear")):
        add(f, name, {"profile": name, **SMALL}, 3, 61 + i)
    add(f, "vanilla-relu", {"profile": "vanilla", "expert": "relu", **SMALL}, 3, 65)
    add(f, "vanilla-softmax", {"profile": "vanilla", "score": "softmax", **SMALL}, 3, 66)
    add(f, "situ-without-norm", {"norm": "none", **SMALL}, 3, 67)
    return f


def shapes() -> Family:
    f = Family("layer/shapes", "Widths that shapes cannot tell apart, and odd ones.",
               ["L6", "L2", "L3", "R1", "R5"],
               ["latent-wider-refused", "shared-required", "router-fed-z", "shared-fed-z",
                "experts-fed-x", "tail-dropped", "lift-transposed", "down-transposed",
                "mean-over-d"])
    source = GITHUB + "vllm-project/vllm/pull/46077"
    add(f, "square", {"d": 4, "l": 4, "n": 4, "k": 2, "f": 4, "S": 1, "fs": 4}, 3, 71,
        source=source, note="every matrix is square, d = l = n = f")
    add(f, "latent-wider", {"d": 3, "l": 7, "n": 5, "k": 2, "f": 4, "S": 2, "fs": 2}, 3, 72,
        source=source)
    add(f, "odd", {"d": 33, "l": 17, "n": 7, "k": 3, "f": 9, "S": 1, "fs": 11}, 2, 73,
        want=("ids", "weight", "z", "u", "r", "y"))
    add(f, "all-ones", {"d": 1, "l": 1, "n": 1, "k": 1, "f": 1, "S": 1, "fs": 1}, 3, 74)
    add(f, "k-is-n", {**SMALL, "k": 4}, 2, 75)
    add(f, "no-shared", {**SMALL, "S": 0, "fs": 0}, 2, 76)
    add(f, "linear-no-shared", {"profile": "linear", **SMALL, "S": 0, "fs": 0}, 2, 82)
    add(f, "one-token", {**SMALL, "n": 9, "k": 3}, 1, 77)
    f.add("no-tokens", "layer_forward", SMALL, weights(SMALL, 0, 78),
          out={"y": empty(0, 6), "ids": empty(0, 2), "weight": empty(0, 2)}, clause=["R5"],
          kills=["empty-batch-fails"])
    add(f, "wider", {"d": 64, "l": 32, "n": 16, "k": 4, "f": 32, "S": 2, "fs": 16}, 4, 79,
        want=("ids", "weight", "u", "r", "y"), tier="full")
    add(f, "many-experts", {"d": 16, "l": 8, "n": 320, "k": 8, "f": 4, "S": 1, "fs": 4}, 3, 80,
        want=("ids", "weight", "u", "y"), kills=["ids-above-255-never-chosen"])
    add(f, "slots-in-order", {**SMALL, "n": 12, "k": 7}, 2, 81,
        want=("ids", "weight", "u", "y"), kills=["last-slot-dropped", "slots-permuted"])
    return f


def shared() -> Family:
    f = Family("layer/shared-partition",
               "Two shared experts of width fs are one of width 2 fs; both cases have equal y.",
               ["L3"], ["shared-two-at-most", "shared-averaged", "shared-dropped",
                        "shared-first-only", "shared-weighted"])
    for name, S, fs in (("two-of-four", 2, 4), ("one-of-eight", 1, 8), ("eight-of-one", 8, 1)):
        config = {"d": 8, "l": 4, "n": 4, "k": 2, "f": 4, "S": S, "fs": fs}
        add(f, name, config, 2, 83, want=("ids", "u", "hs", "y"))
    return f


def tiny() -> Family:
    f = Family("layer/tiny-aggregate",
               "Expert outputs scaled by 2^-20 make eps and every scale of u visible in y.",
               ["L2", "R3"],
               ["aggregate-flushed", "eps-outside-root", "eps-on-the-sum", "eps-wrong",
                "eps-missing", "no-renormalise", "k1-not-normalised", "norm-per-expert"])
    config = {"d": 8, "l": 4, "n": 6, "k": 2, "f": 4, "S": 1, "fs": 4}
    for scale in (-8, -12, -20):
        for name in ("paper", "release"):
            add(f, f"{name}-{-scale}", {"profile": name, **config}, 2, 84,
                want=("ids", "weight", "u", "r", "y"), out_scale=scale)
    for name in ("paper", "release"):
        add(f, f"{name}-k-one", {"profile": name, **config, "k": 1}, 2, 85,
            want=("ids", "weight", "u", "r", "y"), out_scale=-10,
            kills=["k1-not-normalised" if name == "paper" else "k1-normalised"])
    add(f, "zero", config, 2, 86, change={"w_out": fill((6, 4, 4), 0.0)},
        want=("ids", "o", "u", "r", "y"), kills=["zero-over-zero"])
    add(f, "small-x", {"d": 6, "l": 3, "n": 4, "k": 2, "f": 5, "S": 1, "fs": 3}, 2, 93,
        x_scale=-12)
    return f


def loads() -> Family:
    f = Family("layer/loads", "No capacity, no dropping; experts without tokens are not run.",
               ["L5", "R2", "R5"],
               ["tile-tail-unwritten", "capacity-drops", "last-expert-dropped",
                "empty-expert-corrupts-next", "bias-leaks-into-weights", "bias-ignored"])
    config = {"d": 6, "l": 3, "n": 5, "k": 1, "f": 4, "S": 1, "fs": 2}

    def favour(n, *ids, by=2.0):
        return {"bias": Tensor((n,), data=[by if e in ids else 0.0 for e in range(n)])}

    add(f, "all-to-the-first", config, 9, 87, want=("ids", "weight", "u", "y"),
        change=favour(5, 0))
    add(f, "all-to-the-last", config, 9, 87, want=("ids", "weight", "u", "y"),
        change=favour(5, 4))
    two = {**config, "k": 2}
    add(f, "first-and-last", two, 5, 88, want=("ids", "weight", "u", "y"),
        change=favour(5, 0, 4), kills=["bias-leaks-into-weights"])
    add(f, "thousands-of-bias", two, 3, 88, want=("ids", "weight", "u", "y"),
        change=favour(5, 1, 3, by=4096.0), kills=["bias-leaks-into-weights"])
    add(f, "router-of-zeros", two, 4, 89, want=("ids", "weight", "u", "y"),
        change={"w_router": fill((5, 6), 0.0), "bias": fill((5,), 0.0)},
        kills=["higher-id-wins"])
    add(f, "bias-zero", two, 2, 90, want=("ids", "weight", "y"),
        change={"bias": fill((5,), 0.0)})
    add(f, "bias-that-changes-no-choice", two, 2, 90, want=("ids", "weight", "y"),
        change={"bias": fill((5,), 0.25)}, note="same y as bias-zero")
    return f


def extremes() -> Family:
    f = Family("layer/extremes", "Inner values at the caps, deep and saturated routers.",
               ["L1", "L2", "R3"],
               ["layer-betas-fixed", "up-cap-missing", "gate-cap-missing", "hard-clamp",
                "betas-swapped", "exp-overflow", "swiglu-for-situ", "swiglu-in-shared-only"])
    add(f, "large-x", {"d": 6, "l": 3, "n": 4, "k": 2, "f": 5, "S": 2, "fs": 3}, 2, 91,
        x_scale=5)
    add(f, "huge-x", {"d": 6, "l": 3, "n": 4, "k": 2, "f": 5, "S": 1, "fs": 3}, 2, 92,
        x_scale=9, want=("ids", "z", "h", "o", "u", "r", "hs", "y"),
        change={"w_router": gen((4, 6), 92, 12, 2.0**-21)})
    add(f, "other-betas", {**SMALL, "beta_gate": 0.5, "beta_up": 0.75}, 2, 94)
    return f


def families() -> list[Family]:
    return [profiles(), shapes(), shared(), tiny(), loads(), extremes()]
