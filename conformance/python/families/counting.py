# SPDX-License-Identifier: Apache-2.0
"""qb_hist_accumulate, qb_hist_merge, qb_hist_solve (Q3, C1)."""

from fractions import Fraction as F

from golden.balance import qb_hist_accumulate
from golden.cases import Family, Tensor, empty, fill, gen, resolve
from golden.real import f32

from .balancing import centred
from .documents import sparse

GITHUB = "https://github.com/"


def nothing(n, bins):
    return fill((n, bins), 0)


def edges() -> Family:
    f = Family("hist/edges",
               "A required bias on an edge belongs to the bin above, computed exactly.",
               ["Q3"], ["edge-by-multiplication", "edge-by-division", "bins-closed-above"])
    source = GITHUB + "pytorch/pytorch/pull/87832"
    b3 = [0.0, 3 / 16, 3 / 8]
    f.add("zero-is-an-edge", "qb_hist_accumulate", {"n": 2, "k": 1},
          {"score": [[0.75, 0.25], [0.25, 0.5]], "bias": [0.0, 0.0],
           "hist": nothing(2, 1000)},
          out={"hist": sparse(1000, {250: 1, 500: 1}, {500: 1, 375: 1})},
          provenance="public-report", source=source,
          note="r = 0 lands in bin 500 of 1000, on the edge and above it", tags=["probe"])
    f.add("three-sixteenths", "qb_hist_accumulate", {"n": 3, "k": 1},
          {"score": [[0.75, 0.25, 0.0]], "bias": b3, "hist": nothing(3, 1000)},
          out={"hist": sparse(1000, {289: 1}, {500: 1}, {605: 1})},
          note="binary64 multiplication gives 499 for r = 3/16")
    f.add("undecided-in-binary64", "qb_hist_accumulate", {"n": 3, "k": 1},
          {"score": [[1.0, float.fromhex("0x1.78d4fep-5"), float.fromhex("0x1.89374cp-34")]],
           "bias": [0.0] * 3, "hist": nothing(3, 1000)},
          out={"hist": sparse(1000, {23: 1}, {500: 1}, {522: 1})},
          note="alpha - s of expert 2 rounds to an edge that it lies below")
    eight = {"n": 3, "k": 1, "B": 8}
    f.add("dyadic-edges", "qb_hist_accumulate", eight,
          {"score": [[1.0, 0.5, s] for s in (0.5, 0.25, 0.0)], "bias": [0.0] * 3,
           "hist": nothing(3, 8)},
          out={"hist": sparse(8, {2: 3}, {4: 3}, {4: 1, 5: 1, 6: 1})},
          note="r of expert 2 is 0, 1/4, 1/2")
    f.add("one-ulp-below-the-edges", "qb_hist_accumulate", eight,
          {"score": [[1.0, 0.5, 0.25 + 2.0**-24], [1.0, 0.5, 2.0**-30],
                     [1.0, 0.25, 0.25 - 2.0**-26]],
           "bias": [0.0] * 3, "hist": nothing(3, 8)},
          out={"hist": sparse(8, {2: 2, 1: 1}, {4: 3}, {4: 2, 5: 1})},
          note="r of expert 2 is just below 1/4 and 1/2, and just above 0")
    table = [[1.0, 0.5, f32(F(1, 2) - F(t, 500))] for t in range(251)]
    f.add("every-edge-up", "qb_hist_accumulate", {"n": 3, "k": 1},
          {"score": table, "bias": [0.0] * 3, "hist": nothing(3, 1000)}, source=source,
          note="expert 2 lies a rounding away from each edge of [0, 1/2]")
    table = [[f32(F(1, 2) + F(t, 500)), 0.5, 0.25] for t in range(1, 251)]
    f.add("every-edge-down", "qb_hist_accumulate", {"n": 3, "k": 1},
          {"score": table, "bias": [0.0] * 3, "hist": nothing(3, 1000)}, source=source)
    return f


def ends() -> Family:
    f = Family("hist/ends", "lo and hi themselves, and what rounding pushes beyond.",
               ["Q3"], ["edge-past-last-bin", "range-without-bias", "fixed-range"])
    four = {"n": 3, "k": 1, "B": 4}
    zero = [0.0] * 3
    f.add("highest", "qb_hist_accumulate", four,
          {"score": [[1.0, 1.0, 0.0]], "bias": zero, "hist": nothing(3, 4)},
          out={"hist": sparse(4, {2: 1}, {2: 1}, {3: 1})},
          note="r = hi = 1 is counted in the last bin")
    f.add("lowest", "qb_hist_accumulate", four,
          {"score": [[1.0, 0.0, 0.0]], "bias": zero, "hist": nothing(3, 4)},
          out={"hist": sparse(4, {0: 1}, {2: 1}, {2: 1})}, note="r = lo = -1")
    f.add("adapted-range", "qb_hist_accumulate", four,
          {"score": [[0.5, 0.25, 0.75], [1.0, 0.0, 0.0]], "bias": [-1.0, 3.0, 3.0],
           "hist": nothing(3, 4)},
          out={"hist": sparse(4, {2: 1, 3: 1}, {3: 2}, {3: 2})},
          note="lo = -2, hi = 4, and r = 5/2 is the edge of bin 3")
    f.add("key-past-hi", "qb_hist_accumulate", {"n": 3, "k": 1, "B": 4},
          {"score": [[1.0, 1.0, 0.0]], "bias": f32(["0.1", "0.1", "-0.3"]),
           "hist": nothing(3, 4)}, note="alpha = RN32(1 + b) may pass max b + 1")
    f.add("one-bin", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 1},
          {"score": [[0.5, 0.25], [0.25, 1.0], [0.0, 0.0]], "bias": [0.0, 0.5],
           "hist": nothing(2, 1)}, out={"hist": [[3], [3]]})
    f.add("two-bins", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 2},
          {"score": [[0.5, 0.25], [0.25, 1.0]], "bias": [0.0, 0.0], "hist": nothing(2, 2)},
          out={"hist": [[1, 1], [1, 1]]})
    return f


def accumulate() -> Family:
    f = Family("hist/accumulate",
               "Counts are added to what is there; any split gives the same.",
               ["Q3", "Q4"], ["tokens-past-256-uncounted", "counts-overwritten",
                              "counts-doubled", "counts-16-bit", "counts-binary32",
                              "counts-32-bit"])
    score = [[0.75, 0.5, 0.25], [0.25, 0.75, 0.5]]
    base = {"n": 3, "k": 1, "B": 8}
    before = [[0, 2**16 - 1, 0, 2**24, 2**31 - 1, 0, 7, 2**40]] * 3
    after = [list(row) for row in before]
    after[0][3] += 1  # r = -1/4
    after[0][5] += 1  # r = 1/4
    after[1][4] += 1  # r = 0
    after[1][3] += 1  # r = -1/4
    after[2][5] += 1  # r = 1/4
    after[2][4] += 1  # r = 0
    f.add("onto-large-counts", "qb_hist_accumulate", base,
          {"score": score, "bias": [0.0] * 3, "hist": before}, out={"hist": after},
          source=GITHUB + "pytorch/pytorch/issues/96613")
    bias = gen((6,), 7, 10, 2.0**-13)
    whole = gen((20, 6), 7, 20, 2.0**-22, 0.5)
    values = whole.values("score")
    config = {"n": 6, "k": 2, "B": 40}
    f.add("whole", "qb_hist_accumulate", config,
          {"score": whole, "bias": bias, "hist": nothing(6, 40)},
          note="same counts as second-part")
    first = Tensor((7, 6), data=values[:42])
    f.add("first-part", "qb_hist_accumulate", config,
          {"score": first, "bias": bias, "hist": nothing(6, 40)})
    counts = qb_hist_accumulate(resolve({**config, "T": 7}), {
        "score": values[:42], "bias": bias.values("bias"), "hist": [0] * 240})["hist"]
    f.add("second-part", "qb_hist_accumulate", config,
          {"score": Tensor((13, 6), data=values[42:]), "bias": bias,
           "hist": Tensor((6, 40), data=counts)})
    f.add("no-tokens", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 3},
          {"score": empty(0, 2), "bias": [0.0, 0.0], "hist": [[1, 2, 3], [4, 5, 6]]},
          out={"hist": [[1, 2, 3], [4, 5, 6]]}, clause=["Q3", "R5"],
          kills=["empty-batch-fails", "counts-overwritten"])
    f.add("seeded-896", "qb_hist_accumulate", {"n": 896, "k": 16},
          {"score": gen((6, 896), 8, 22, 2.0**-23, 0.5), "bias": gen((896,), 8, 12, 2.0**-15),
           "hist": nothing(896, 1000)}, tier="full")
    f.add("three-hundred-in-a-bin", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 4},
          {"score": fill((300, 2), 0.5), "bias": [0.0, 0.0], "hist": nothing(2, 4)},
          out={"hist": [[0, 0, 300, 0]] * 2}, kills=["tokens-past-256-uncounted"])
    f.add("uneven-range", "qb_hist_accumulate", {"n": 5, "k": 2},
          {"score": gen((40, 5), 9, 22, 2.0**-23, 0.5),
           "bias": f32(["0.1", "-0.7", "0.33", "0.05", "-0.021"]), "hist": nothing(5, 1000)})
    return f


def merge() -> Family:
    f = Family("hist/merge", "Counts of parts are added as 64-bit integers, in any order.",
               ["C1"], ["counts-16-bit", "counts-binary32", "counts-32-bit",
                        "first-part-only", "mean-of-parts"])
    source = GITHUB + "NVIDIA/Megatron-LM/pull/7081"
    f.add("past-binary32", "qb_hist_merge", {"n": 1, "B": 3},
          {"parts": [[[2**24, 1, 0]], [[1, 2**31, 2**53]], [[0, 2**31, 1]]]},
          out={"hist": [[2**24 + 1, 2**32 + 1, 2**53 + 1]]}, provenance="public-report",
          source=source)
    f.add("sixty-four-ranks", "qb_hist_merge", {"n": 2, "B": 2},
          {"parts": fill((64, 2, 2), 638)}, out={"hist": [[40832] * 2] * 2},
          provenance="public-report", source=source)
    f.add("past-16-bits", "qb_hist_merge", {"n": 1, "B": 2},
          {"parts": [[[40000, 65535]], [[40000, 1]]]}, out={"hist": [[80000, 65536]]})
    f.add("one-part", "qb_hist_merge", {"n": 2, "B": 2}, {"parts": [[[1, 2], [3, 4]]]},
          out={"hist": [[1, 2], [3, 4]]})
    f.add("idle-parts", "qb_hist_merge", {"n": 2, "B": 3},
          {"parts": [[[0] * 3] * 2, [[1, 0, 2], [0, 3, 0]], [[0] * 3] * 2]},
          out={"hist": [[1, 0, 2], [0, 3, 0]]})
    f.add("largest-sum", "qb_hist_merge", {"n": 1, "B": 1},
          {"parts": [[[2**62]], [[2**62 - 1]]]}, out={"hist": [[2**63 - 1]]})
    return f


def solve() -> Family:
    f = Family("hist/solve",
               "First bin whose cumulative count reaches ceil(q), the real q inside it.",
               ["Q3"], ["target-floor-not-ceil", "target-ceiled-inside-bin",
                        "no-interpolation", "no-centring", "range-without-bias",
                        "counts-binary32"])

    def case(id, n, k, hist, candidate, bias=None, **rest):
        m = sum(hist[0])
        config = {"n": n, "k": k, "B": len(hist[0]), "T": m}
        f.add(id, "qb_hist_solve", config, {"hist": hist, "bias": bias or [0.0] * n},
              out={"candidate": candidate, "new_bias": centred(*candidate)}, **rest)

    case("inside-and-at-the-end", 2, 1, [[1, 3, 0, 4], [2, 2, 2, 2]], [F(0), F(0)],
         note="q = 4, both cumulative counts reach it at the end of bin 1")
    case("interpolated", 2, 1, [[1, 1, 4, 2], [0, 8, 0, 0]],
         [F(-1) + F(5, 2) / 2, F(-1) + F(3, 2) / 2])
    case("fractional-q", 2, 1, [[1, 1, 1, 2], [0, 0, 5, 0]],
         [F(-1) + F(5, 2) / 2, F(-1) + F(5, 2) / 2],
         note="q = 5/2, its ceiling 3 finds bin 2, the fraction uses 5/2")
    case("fractional-q-unequal", 2, 1, [[1, 1, 3, 0], [0, 0, 5, 0]],
         [F(-1) + F(13, 6) / 2, F(-1) + F(5, 2) / 2],
         note="going on from the bin of floor(q) = 2 would give 5/2 bins in both rows")
    case("fractional-thirds", 3, 1, [[2, 0, 3], [0, 5, 0], [1, 1, 3]],
         [F(-1) + F(5, 3) / 2 * F(2, 3), F(-1) + (1 + F(1, 3)) * F(2, 3),
          F(-1) + (1 + F(2, 3)) * F(2, 3)], note="q = 5/3")
    case("sparse-rows", 2, 1, sparse(8, {0: 1, 7: 1}, {3: 2}),
         [F(-3, 4), F(-1, 8)], note="q = 1, bins of width 1/4")
    case("first-and-last-bin", 2, 1, [[6, 0, 0, 0], [0, 0, 0, 6]], [F(-3, 4), F(3, 4)])
    case("range-of-the-bias", 2, 1, [[4, 0, 0, 0], [0, 0, 0, 4]],
         [F(-2) + F(1, 2) * F(3, 2), F(-2) + F(7, 2) * F(3, 2)], bias=[-1.0, 3.0],
         note="lo = -2, hi = 4, bins of width 3/2")
    case("one-bin", 3, 2, [[3], [3], [3]], [F(1, 3)] * 3)
    case("past-binary32", 2, 1, [[2**24 + 1, 0, 1, 2**24], [2**24, 1, 1, 2**24]],
         [F(-1, 2), F(0)], kills=["counts-binary32"],
         note="q = 2^24 + 1, just reached in bin 0 and in bin 1")
    case("past-32-bits", 2, 1, [[2**33, 2**33], [0, 2**34]], [F(0), F(1, 2)],
         kills=["counts-32-bit"])
    case("product-past-64-bits", 4, 3, [[2**62, 0], [0, 2**62], [2**61, 2**61],
                                        [3 * 2**60, 2**60]],
         [F(-1, 4), F(3, 4), F(1, 2), F(0)], kills=["target-overflows"],
         note="m k is 3 * 2^62 and more than 2^63")
    for n, k, m in ((6, 2, 21), (5, 2, 40)):
        config = {"n": n, "k": k, "B": 100}
        bias = gen((n,), n, 12, 2.0**-13)
        counts = qb_hist_accumulate(resolve({**config, "T": m}), {
            "score": gen((m, n), n, 22, 2.0**-23, 0.5).values("score"),
            "bias": bias.values("bias"), "hist": [0] * (n * 100)})["hist"]
        f.add(f"seeded-n{n}", "qb_hist_solve", {**config, "T": m},
              {"hist": Tensor((n, 100), data=counts), "bias": bias})
    return f


def families() -> list[Family]:
    return [edges(), ends(), accumulate(), merge(), solve()]
