# SPDX-License-Identifier: Apache-2.0
"""Public bug reports about dispatch, experts, norm and shared path (L1-L6, A2, A3)."""

import math

from golden.cases import Family, Tensor, fill, gen

from .layers import SMALL, weights
from .routing import seeded_ids

GITHUB = "https://github.com/"
REPORT = {"provenance": "public-report"}


def grouped(ids, n):
    """counts, offsets, order of rows of ids."""
    flat = [e for row in ids for e in row]
    counts = [flat.count(e) for e in range(n)]
    order = sorted(range(len(flat)), key=lambda i: (flat[i], i))
    return {"counts": counts, "offsets": [sum(counts[:e]) for e in range(n + 1)],
            "order": order}


def crowded() -> Family:
    f = Family("permute/public-crowded",
               "All tokens at one expert, or at the first k, as near-equal scores at the start "
               "send them: nothing is dropped, no buffer is sized for the average.",
               ["L5", "Q7"], ["capacity-drops", "last-expert-dropped"])
    report = {**REPORT, "source": GITHUB + "deepspeedai/DeepSpeed/issues/1658"}
    for name, tokens, n, row in (("five-at-the-first", 5, 4, [0]), ("first-two", 64, 8, [0, 1]),
                                 ("thousand-at-the-last", 1024, 8, [7])):
        ids = [row] * tokens
        config = {"n": n, "k": len(row)}
        f.add(name, "permute", config, {"ids": ids}, out=grouped(ids, n), **report)
        f.add(f"{name}-measured", "load_metrics", config, {"ids": ids},
              out={"load": grouped(ids, n)["counts"]},
              **{**report, "source": GITHUB + "NVIDIA-NeMo/Automodel/pull/3731"})
    zero = {**REPORT, "source": GITHUB + "tenstorrent/tt-metal/pull/41434"}
    f.add("router-of-zeros", "route", {"d": 4, "n": 8, "k": 2},
          {"x": gen((64, 4), 511, 10, 2.0**-8), "w_router": fill((8, 4), 0.0),
           "bias": fill((8,), 0.0)}, out={"ids": [[0, 1]] * 64, "weight": [[0.5, 0.5]] * 64},
          clause=["R2", "L5"], kills=["higher-id-wins"], **zero)
    config = {"d": 4, "l": 2, "n": 8, "k": 2, "f": 2, "S": 0}
    f.add("layer-of-zeros", "layer_forward", config,
          {**weights(config, 64, 512), "w_router": fill((8, 4), 0.0), "bias": fill((8,), 0.0)},
          out={"ids": [[0, 1]] * 64, "weight": [[0.5, 0.5]] * 64}, **zero)
    last = {**config, "k": 1}
    f.add("layer-at-the-last", "layer_forward", last,
          {**weights(last, 64, 513), "bias": [0.0] * 7 + [4.0]},
          out={"ids": [[7]] * 64, "weight": [[1.0]] * 64}, **zero)
    return f


def idle() -> Family:
    f = Family("layer/public-idle-experts",
               "Tokens at experts 0 and 2, five in all; the weights of experts 1 and 3 are NaN "
               "and nobody reads them.",
               ["L5", "R4"], ["runs-every-expert", "empty-expert-corrupts-next",
                              "assumes-balanced-load"])
    report = {**REPORT, "source": GITHUB + "tgale96/grouped_gemm/issues/36"}
    sign = [1.0, -1.0, -1.0, 1.0, -1.0]
    ids = [[0 if v > 0 else 2] for v in sign]
    f.add("grouped", "permute", {"n": 4, "k": 1}, {"ids": ids}, out=grouped(ids, 4), **report)
    router = [[4.0, 0.0, 0.0], [0.0] * 3, [-4.0, 0.0, 0.0], [0.0] * 3]
    rest = gen((5, 3), 514, 10, 2.0**-10).values("x")
    x = [[s, *rest[3 * t + 1: 3 * t + 3]] for t, s in enumerate(sign)]
    for name, kind in (("situ", {}), ("swiglu", {"expert": "swiglu"}),
                       ("relu", {"expert": "relu"}), ("linear", {"expert": "linear"})):
        config = {"d": 3, "l": 2, "n": 4, "k": 1, "f": 3, "S": 0, **kind}
        if name == "linear":
            config.pop("f")
        given = weights(config, 5, 515)
        for w in ("w_gate", "w_up", "w_out", "w_expert"):
            if w not in given:
                continue
            values = given[w].values(w)
            each = len(values) // 4
            bad = [math.nan if e % 2 else v for e in range(4)
                   for v in values[e * each:(e + 1) * each]]
            given[w] = Tensor(given[w].shape, data=bad)
        given.update(x=x, w_router=router, bias=[0.0, -1.0, 0.0, -1.0])
        f.add(name, "layer_forward", config, given, want=("ids", "weight", "u", "y"),
              source=GITHUB + "pytorch/pytorch/issues/154557")
    return f


def tokens() -> Family:
    f = Family("permute/public-token-counts",
               "Numbers of tokens about the sizes of blocks, two or all of eight experts a "
               "token: the exact stable order, and every row of y.",
               ["L5", "R5"], ["unstable-order", "tile-tail-unwritten"])
    report = {**REPORT, "source": GITHUB + "tenstorrent/tt-metal/issues/50669"}
    for k, counts in ((2, (1, 2, 8, 9, 63, 64, 65, 130, 255, 256, 257, 258, 513)),
                      (8, (1, 9, 63, 65, 257))):
        for T in counts:
            ids = seeded_ids(T, 8, k)
            f.add(f"t{T}-k{k}", "permute", {"n": 8, "k": k}, {"ids": ids},
                  out=grouped(ids, 8), tier="full" if T > 66 else None, **report)
    layer = {"source": GITHUB + "deepseek-ai/DeepGEMM/issues/268"}
    for k, counts in ((2, (1, 7, 8, 9, 15, 63, 65, 129, 257, 513)), (8, (1, 9, 65, 513))):
        config = {"d": 3, "l": 2, "n": 8, "k": k, "f": 2, "S": 0}
        for T in counts:
            f.add(f"layer-t{T}-k{k}", "layer_forward", config, weights(config, T, 516),
                  want=("ids",), tier="full" if T > 66 else None, **layer)
    return f


def tails() -> Family:
    f = Family("layer/public-tails",
               "Inner widths that leave a rest after every block: 20 and 12, 33 and 7, and each "
               "from 1 to 9.",
               ["L6"], ["tail-dropped"])
    report = {"source": GITHUB + "ml-explore/mlx/pull/4009"}

    def ffn(id, d, h, seed):
        f.add(id, "dense_ffn", {"d": d, "f": h},
              {"x": gen((2, d), seed, 10, 2.0**-9), "w_gate": gen((h, d), seed, 10, 2.0**-10),
               "w_up": gen((h, d), seed, 10, 2.0**-10),
               "w_out": gen((d, h), seed, 10, 2.0**-10)}, clause=["L3"], **report)

    for l, h in ((20, 12), (33, 7)):
        config = {"d": 9, "l": l, "n": 4, "k": 2, "f": h, "S": 1, "fs": h}
        f.add(f"layer-{l}-{h}", "layer_forward", config, weights(config, 3, 517),
              want=("ids", "u", "y"), **report)
        ffn(f"ffn-{l}-{h}", l, h, 518)
    for w in range(1, 10):
        config = {"d": 10 - w, "l": w, "n": 3, "k": 1, "f": 10 - w, "S": 1, "fs": w}
        f.add(f"layer-each-{w}", "layer_forward", config, weights(config, 2, 519),
              want=("ids", "y"), **report)
        ffn(f"ffn-each-{w}", w, 10 - w, 520)
    return f


def combine() -> Family:
    f = Family("layer/public-combine-order",
               "Outputs of experts between 2^-10 and 2^10 of either sign: one order of the sum, "
               "the same bits in each call and in every batch.",
               ["L2", "A2"], ["order-by-call", "order-by-batch", "last-slot-dropped"])
    config = {"profile": "linear", "d": 4, "l": 4, "n": 16, "k": 8, "S": 0}
    flat = gen((16, 4, 4), 521, 10, 2.0**-10).values("w_expert")
    scaled = Tensor((16, 4, 4), data=[v * 2.0 ** (i // 16 * 4 % 21 - 10)
                                      for i, v in enumerate(flat)])
    for T in (24, 256):
        f.add(f"t{T}", "layer_forward", config, {**weights(config, T, 521), "w_expert": scaled},
              want=("ids", "u", "y") if T < 64 else ("ids",), tier="full" if T > 64 else None,
              source=GITHUB + "huggingface/transformers/pull/43362")
    for k in (2, 3, 4, 5):
        small = {**SMALL, "n": 6, "k": k}
        f.add(f"k{k}", "layer_forward", small, weights(small, 5, 527),
              want=("ids", "weight", "u", "y"),
              source=GITHUB + "intel/intel-xpu-backend-for-triton/issues/7455")
    return f


def norm() -> Family:
    f = Family("layer/public-norm",
               "Experts a thousand times louder leave y as it is: the norm stands between their "
               "sum and w_lift.",
               ["L2"], ["norm-missing", "norm-after-lift", "norm-on-latent"])
    report = {"source": GITHUB + "radixark/Megatron-LM/pull/94"}
    for name, shift in (("as-they-are", 0), ("times-1024", 10)):
        f.add(name, "layer_forward", SMALL, weights(SMALL, 3, 522, out_scale=shift),
              want=("ids", "u", "r", "y"), **report)
    f.add("six-eight", "layer_forward", {"profile": "linear", "d": 2, "l": 2, "n": 2, "k": 1,
                                         "S": 0, "eps": "0.75"},
          {"x": [[0.5, -0.5], [1.0, 0.0]], "w_router": [[0.0, 0.0], [0.0, 0.0]],
           "bias": [0.0, 0.0], "w_down": [[1.0, 0.0], [0.0, 1.0]],
           "w_expert": [[[1.0, 0.0], [0.0, 1.0]]] * 2, "w_lift": [[6.0, 0.0], [0.0, 8.0]]},
          want=("ids", "u", "r", "y"), **report)
    return f


def router_width() -> Family:
    f = Family("layer/public-widths",
               "Router and shared experts read x at width d, experts the latent z, also where "
               "d = l or l > d hides a mix-up; any number of shared experts, any width, summed.",
               ["R1", "L3", "L6"], ["router-fed-z", "shared-fed-z", "experts-fed-x",
                                    "shared-averaged", "shared-two-at-most"])
    report = {"source": GITHUB + "PaddlePaddle/PaddleFleet/pull/868"}
    down = [[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]
    router = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    f.add("logits", "layer_forward", {"profile": "linear", "d": 4, "l": 2, "n": 2, "k": 1, "S": 0},
          {"x": [[1.0, 2.0, 3.0, 4.0]], "w_router": router, "bias": [0.0, 0.0],
           "w_down": down, "w_expert": [[[1.0, 0.0], [0.0, 1.0]]] * 2,
           "w_lift": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]},
          out={"ids": [[1]], "logit": [[1.0, 4.0]], "z": [[4.0, 1.0]]}, **REPORT,
          source=GITHUB + "vllm-project/vllm/pull/34087", note="from z they would be 4 and 0")
    for name, d, l in (("equal", 5, 5), ("latent-wider", 4, 9), ("latent-narrower", 9, 4)):
        config = {"d": d, "l": l, "n": 5, "k": 2, "f": 4, "S": 2, "fs": l}
        f.add(name, "layer_forward", config, weights(config, 2, 523),
              want=("ids", "logit", "z", "hs", "y"), **report)
    whole = [[[100.0 * e + 10 * i + j for j in range(4)] for i in range(4)] for e in range(3)]
    f.add("gate-and-up-of-one-table", "layer_forward",
          {"d": 1, "l": 4, "n": 3, "k": 3, "f": 2, "S": 0},
          {"x": [[1.0], [-0.5]], "w_router": [[1.0], [0.5], [-1.0]], "bias": [0.0] * 3,
           "w_down": [[2.0**-6], [-(2.0**-7)], [2.0**-8], [-(2.0**-8)]],
           "w_gate": [w[:2] for w in whole], "w_up": [w[2:] for w in whole],
           "w_out": [[[1.0, 0.0], [0.0, 1.0], [0.5, 0.0], [0.0, 0.5]]] * 3,
           "w_lift": [[1.0, 0.5, -1.0, 2.0]]}, want=("ids", "z", "h", "u", "y"),
          source=GITHUB + "ml-explore/mlx/pull/3960", kills=["gate-of-first-expert"],
          note="W13[e,i,j] = 100 e + 10 i + j: rows 0 and 1 are gate, 2 and 3 up")
    for S, fs in ((1, 3), (3, 5), (4, 1)):
        config = {"d": 5, "l": 3, "n": 4, "k": 2, "f": 5, "S": S, "fs": fs}
        f.add(f"shared-{S}-of-{fs}", "layer_forward", config, weights(config, 2, 524),
              want=("ids", "hs", "y"), source=GITHUB + "vllm-project/vllm/pull/40794")
    linear = {"profile": "linear", "d": 2, "l": 1, "n": 2, "k": 1, "S": 3, "norm": "none"}
    eye = [[1.0, 0.0], [0.0, 1.0]]
    f.add("sum-of-three", "layer_forward", linear,
          {"x": [[1.0, -0.5]], "w_router": fill((2, 2), 0.0), "bias": [0.0, 0.0],
           "w_down": [[1.0, 0.0]], "w_expert": [[[2.0]], [[4.0]]], "w_lift": [[1.0], [0.0]],
           "w_shared": [eye, [[2.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [1.0, 0.0]]]},
          out={"ids": [[0]], "y": [[2.0 + 3.0 - 0.5, -1.5 + 1.0]]}, **REPORT,
          source=GITHUB + "MooreThreads/torchada/pull/84",
          note="the mean over the shared experts would be a third of it")
    return f


def gates() -> Family:
    f = Family("situ/public-gate",
               "The gate where exponentials and divisions overflow, the up half where a cheap "
               "tanh is wrong, and which half is which.",
               ["L1"], ["exp-overflow", "nan-at-infinity", "up-cap-missing", "halves-swapped",
                        "interleaved-halves", "tanh-in-bf16"])
    inf = math.inf
    overflow = {"source": GITHUB + "Neroued/ninfer/pull/194"}
    steps = [-104.0 + i / 4 for i in range(100)]
    f.add("every-quarter", "situ_glu", {"f": 100}, {"gate_up": [steps + [25.0] * 100]}, **overflow,
          note="from -104 to -79.25, past 2^-126 and past every subnormal")
    f.add("limits", "situ_glu", {"f": 8},
          {"gate_up": [[-inf, -1e4, 1e4, inf, inf, -inf, 1e4, -1e4]
                       + [1e4, inf, 1e4, inf, -inf, -inf, -1e4, -1e4]]},
          out={"h": [[0.0, 0.0, 100.0, 100.0, -100.0, 0.0, -100.0, 0.0]]}, **REPORT,
          source=GITHUB + "tenstorrent/tt-metal/issues/55711")
    f.add("swiglu-in-the-layer", "dense_ffn", {"profile": "vanilla", "d": 1, "f": 4},
          {"x": [[1.0], [-1.0]], "w_gate": [[-87.0], [-87.5], [-88.5], [-100.0]],
           "w_up": fill((4, 1), 1.0), "w_out": [[1.0, 1.0, 1.0, 1.0]]}, clause=["L4"],
          kills=["exp-overflow"], **overflow)
    cheap = {"source": GITHUB + "tenstorrent/tt-metal/issues/52754"}
    ups = [1.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0]
    ups += [-v for v in ups] + [v / 64 for v in range(1, 50)]
    f.add("up-everywhere", "situ_glu", {"f": 63}, {"gate_up": [[90.0] * 63 + ups]}, **cheap)
    halves = {"source": GITHUB + "ml-explore/mlx-lm/pull/767"}
    f.add("two-minus-three", "situ_glu", {"f": 1}, {"gate_up": [[2.0, -3.0], [-3.0, 2.0]]},
          **halves)
    for width in (3, 4, 5):
        f.add(f"halves-of-{width}", "situ_glu", {"f": width},
              {"gate_up": [[v * s for s in (1.0, -0.5) for v in range(1, width + 1)]]},
              **halves)
    f.add("halves-of-an-ffn", "dense_ffn", {"d": 1, "f": 2},
          {"x": [[1.0]], "w_gate": [[2.0], [-3.0]], "w_up": [[-3.0], [2.0]],
           "w_out": [[1.0, 2.0]]}, clause=["L3"], kills=["halves-swapped"],
          source=GITHUB + "NVIDIA/TensorRT-LLM/issues/1842")
    config = {**SMALL, "dtype": "bf16"}
    f.add("halves-of-a-layer", "layer_forward", config,
          {**weights(config, 2, 525, bits=7), "bias": fill((4,), 0.0), "gamma": fill((3,), 1.0)},
          want=("ids", "h", "hs"), clause=["L6", "L3"], kills=["halves-swapped"],
          source=GITHUB + "lightseekorg/tokenspeed/pull/423")
    return f


def scale_of_norm() -> Family:
    f = Family("rmsnorm/public-eps",
               "eps is added to the mean of squares as it is: not scaled by the largest "
               "element, not floored, and 1/rms is not rounded to bf16.",
               ["L2"], ["eps-inflated", "eps-floored", "inverse-root-in-bf16", "eps-missing",
                        "zero-over-zero"])
    report = {"source": GITHUB + "apple/coremltools/pull/2822"}
    f.add("zeros", "rmsnorm", {"l": 320}, {"u": fill((2, 320), 0.0)},
          out={"r": fill((2, 320), 0.0)}, **REPORT, **report)
    for name, width, value in (("hundred-of-320", 320, 100.0), ("thousandth-of-33", 33, 2.0**-10)):
        row = [value] + [0.0] * (width - 1)
        f.add(name, "rmsnorm", {"l": width}, {"u": [row]}, **report)
    f.add("three-four", "rmsnorm", {"l": 2}, {"u": [[3.0, 4.0], [6.0, 8.0], [6000.0, 8000.0]]},
          source=GITHUB + "amd/IRON/pull/139")
    # (u, v) with mean square 1/4: with eps 3/4 the root is 1.
    f.add("root-of-one", "rmsnorm", {"l": 2, "eps": "0.75"},
          {"u": [[0.5, -0.5], [-0.5, 0.5]], "gamma": [2.0, -4.0]},
          out={"r": [[1.0, 2.0], [-1.0, -2.0]]}, **REPORT,
          source=GITHUB + "nntrainer/nntrainer/pull/4318")
    config = {"d": 4, "l": 3, "n": 4, "k": 2, "f": 3, "S": 0}
    f.add("layer-tiny", "layer_forward", config, weights(config, 2, 526, out_scale=-12),
          want=("ids", "u", "r", "y"), **report)
    return f


def families() -> list[Family]:
    return [crowded(), idle(), tokens(), tails(), combine(), norm(), router_width(), gates(),
            scale_of_norm()]
