# SPDX-License-Identifier: Apache-2.0
"""qb_exact of more than a thousand tokens (Q1, Q2, Q5): where a backend may look at a sample
of the rows first, the sample must decide nothing."""

from golden.cases import Family, Tensor, fill, gen

from .balancing import RELAXED

ROWS = 1032
U = 2.0**-24


def sampled(rows):
    """The rows that gpu/qb_sieve.cu samples: one of each eight."""
    return {8 * i + (i * 2654435761 % 2**32 >> 16) % 8 for i in range(rows // 8)}


def scattered(rows):
    return [int(t % 3 != 1 and t % 7 != 2) for t in range(rows)]


def table(rows):
    return Tensor((len(rows), len(rows[0])), data=[v for row in rows for v in row])


def misleading(rows):
    """Expert 0 leads in the rows that are not sampled, expert 1 in those that are."""
    inside = sampled(rows)
    result = []
    for t in range(rows):
        pair = (0.75 + t * 2.0**-13, 0.25 + t * 2.0**-14)
        result.append(pair[::-1] if t in inside else pair)
    return result


def outside_by_one(rows):
    """The element of rank 7 in the sample of column 0 is that of rank 344 in the column, so
    that the one below it lies outside whatever begins there. Experts 1 and 2 take turns."""
    inside = sampled(rows)
    at, below, above = {True: 0, False: 0}, 0, 344
    result = []
    for t in range(rows):
        own = t in inside
        low = at[own] < (7 if own else 337)
        if own and at[own] == 7:
            rank = 344
        elif low:
            rank, below = below, below + 1
        else:
            rank, above = above + 1, above + 1
        at[own] += 1
        first, second = 0.75 + t * 2.0**-13, 0.5 + t * 2.0**-14
        r = 0.125 + rank * 2.0**-12
        result.append([second - r, *((first, second) if t % 2 else (second, first))])
    return result


def deep(rows):
    """r of expert 0 is one of 64 values of alpha less next to nothing."""
    return [[(t * 7 % 61) * 2.0**-80, (1 + t * 5 % 64) / 128, 1.0] for t in range(rows)]


def exact() -> Family:
    f = Family("qb/many-tokens",
               "The order statistic of more than a thousand tokens: masks, ties, rows in an "
               "order that misleads a sample of them.",
               ["Q1", "Q2"])

    def case(id, n, k, score, config=None, bias=None, mask=None, **rest):
        inputs = {"score": score, "bias": bias or fill((n,), 0.0)}
        if mask:
            inputs["mask"] = mask
        f.add(id, "qb_exact", {"n": n, "k": k, **(RELAXED if config is None else config)},
              inputs, **({"want": ("new_bias", "candidate")} | rest))

    def random(rows, n, seed, bits=22):
        return gen((rows, n), seed, bits, 2.0 ** -(bits + 2), 0.5)

    case("seeded-n5-k2-m1101", 5, 2, random(1101, 5, 901), bias=gen((5,), 901, 16, 2.0**-20), tier="full")
    case("seeded-n40-k3-m1024", 40, 3, random(1024, 40, 902),
         bias=gen((40,), 902, 16, 2.0**-20), tier="full",
         note="more experts than a warp has lanes")
    case("few-values", 5, 2, random(1100, 5, 903, 5), note="each value many times", tier="full")
    case("masked", 5, 2, random(1100, 5, 904), mask=scattered(1100), clause=["Q1", "Q5"],
         tier="full")
    case("strict", 6, 2, random(1200, 6, 905), config={},
         bias=[0.25, -0.125, 0.0625, -0.0625, -0.25, 0.125], tier="full")
    case("one-expert-apart", 4, 1, random(1030, 4, 906), bias=[0.0, -1.0, 0.0, 0.0],
         tier="full")
    case("k-of-n-minus-one", 4, 3, random(1030, 4, 907), tier="full")
    case("all-equal", 3, 1, fill((1100, 3), 0.5), note="no bracket is narrow", tier="full")
    case("tie-in-strict", 3, 1, fill((1032, 3), 0.5), config={}, want=(),
         status="SLM_ERR_TIE", field="new_bias", index=0, clause=["Q2"], provenance="hand", tier="full")
    case("sample-misleads", 2, 1, table(misleading(ROWS)),
         note="the rows of the sample are alike and the others are not like them")
    case("sample-left-out", 2, 1, table(misleading(ROWS)), clause=["Q1", "Q5"],
         mask=[int(t not in sampled(ROWS)) for t in range(ROWS)])
    case("boundary-between-sample-ranks", 3, 1, table(outside_by_one(ROWS)), config={},
         note="the element below the chosen one is not near it in the sample")
    case("tiny-beside-large", 3, 1, table(deep(1056)),
         note="binary64 holds alpha - s in two parts only", tier="full")
    return f


def families() -> list[Family]:
    return [exact()]
