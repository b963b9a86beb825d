# SPDX-License-Identifier: Apache-2.0
"""dense_ffn_backward (G1, G4): each product, its sum over tokens, odd widths."""

from golden.cases import Family, empty, gen

GITHUB = "https://github.com/"
VANILLA = {"profile": "vanilla"}
# Gate sums 0, so that silu is 0 and its slope 1/2: everything is exact.
EXACT = {"w_gate": [[1.0, 1.0]], "w_up": [[3.0, 1.0]], "w_out": [[2.0], [5.0]]}


def seeded(d, f, tokens, seed, bits=12, **config):
    def normal(shape, fan, shift=0):
        half = (fan.bit_length() - 1) // 2
        return gen(shape, seed, bits, 2.0 ** (1 - bits - half + shift))

    return {"d": d, "f": f, **config}, {
        "x": normal((tokens, d), 1), "w_gate": normal((f, d), d), "w_up": normal((f, d), d),
        "w_out": normal((d, f), f), "dy": normal((tokens, d), 1)}


def values() -> Family:
    f = Family("ffn/gradient-values",
               "dx has a path through the gate and one through the up sums; gradients of weights "
               "are sums over the tokens, written and not added.",
               ["G1", "G4", "L3"],
               ["gate-up-weight-gradients-swapped", "last-token-dropped-in-weight-gradient",
                "weight-gradient-not-reset", "dx-without-up-path"])
    f.add("by-hand", "dense_ffn_backward", {**VANILLA, "d": 2, "f": 1},
          {"x": [[1.0, -1.0]], **EXACT, "dy": [[1.0, 1.0]]},
          out={"dx": [[7.0, 7.0]], "dw_gate": [[7.0, -7.0]], "dw_up": [[0.0, 0.0]],
               "dw_out": [[0.0], [0.0]], "gate_up": [[0.0, 2.0]], "h": [[0.0]],
               "dh": [[7.0]], "dgate_up": [[7.0, 0.0]]},
          note="a = 0, b = 2, dh = 7, da = 7 / 2 * 2", clause=["G1", "G4", "L4"])
    f.add("by-hand-three-tokens", "dense_ffn_backward", {**VANILLA, "d": 2, "f": 1},
          {"x": [[1.0, -1.0], [-2.0, 2.0], [0.5, -0.5]], **EXACT,
           "dy": [[1.0, 1.0], [0.0, 1.0], [-4.0, 2.0]]},
          out={"dx": [[7.0, 7.0], [-10.0, -10.0], [1.0, 1.0]], "dw_gate": [[27.5, -27.5]],
               "dw_up": [[0.0, 0.0]], "dw_out": [[0.0], [0.0]]},
          note="da is 7, -10 and 1; dw_gate is (7 + 20 + 1/2) (1, -1)", clause=["G4", "L4"])
    f.add("by-hand-situ", "dense_ffn_backward", {"d": 3, "f": 2},
          {"x": [[1.0, -1.0, 2.0]], "w_gate": [[1.0, 1.0, 0.0], [2.0, 0.0, -1.0]],
           "w_up": [[2.0, 0.0, -1.0], [0.0, 2.0, 1.0]], "w_out": [[1.0, 2.0]] * 3,
           "dy": [[1.0, 1.0, -4.0]]},
          out={"dx": [[0.0] * 3], "dw_gate": [[0.0] * 3] * 2, "dw_up": [[0.0] * 3] * 2,
               "dw_out": [[0.0, 0.0]] * 3, "dh": [[-2.0, -4.0]]},
          note="a = b = 0 twice: a saddle of the activation")
    source = GITHUB + "MooreThreads/torchada/pull/84"
    shared = {"w_gate": [[1.0, 1.0], [0.0, 1.0]], "w_up": [[2.0, 0.0], [1.0, 0.0]],
              "w_out": [[1.0, 3.0], [2.0, -1.0]]}
    for name, profile in (("two-shared-as-one", {}), ("two-shared-swiglu", VANILLA)):
        f.add(name, "dense_ffn_backward", {**profile, "d": 2, "f": 2},
              {"x": [[1.0, -0.5]], **shared, "dy": [[1.0, -2.0]]}, source=source)
    for d, width, tokens in ((12, 20, 3), (33, 7, 2), (8, 8, 4), (17, 9, 5)):
        config, inputs = seeded(d, width, tokens, 531)
        f.add(f"seeded-{d}-{width}", "dense_ffn_backward", config, inputs,
              want=("dx", "dw_gate", "dw_out")[: 2 if d == 12 else 3],
              source=GITHUB + "ml-explore/mlx/pull/4009" if d == 33 else None)
    config, inputs = seeded(13, 11, 3, 532, **VANILLA)
    f.add("seeded-swiglu", "dense_ffn_backward", config, inputs)
    config, inputs = seeded(10, 6, 3, 533)
    f.add("taps", "dense_ffn_backward", config, inputs)
    config, inputs = seeded(6, 5, 2, 534)
    inputs["x"] = gen((2, 6), 534, 12, 2.0**-5)
    f.add("saturated", "dense_ffn_backward", config, inputs, note="inner values at both caps")
    config, inputs = seeded(16, 10, 3, 535, bits=7, dtype="bf16")
    f.add("bf16", "dense_ffn_backward", config, inputs,
          note="gradients of weights are not bf16")
    f.add("no-tokens", "dense_ffn_backward", {"d": 2, "f": 1},
          {"x": empty(0, 2), **EXACT, "dy": empty(0, 2)},
          out={"dx": empty(0, 2), "dw_gate": [[0.0, 0.0]], "dw_up": [[0.0, 0.0]],
               "dw_out": [[0.0], [0.0]]}, clause=["G5", "R5"],
          note="gradients of weights are zeros and must be written")
    f.add("dy-of-zeros", "dense_ffn_backward", {"d": 2, "f": 1},
          {"x": [[1.0, 2.0], [3.0, -1.0]], **EXACT, "dy": [[0.0, 0.0]] * 2},
          out={"dx": [[0.0, 0.0]] * 2, "dw_gate": [[0.0, 0.0]], "dw_up": [[0.0, 0.0]],
               "dw_out": [[0.0], [0.0]]})
    return f


def families() -> list[Family]:
    return [values()]
