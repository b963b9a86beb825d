# SPDX-License-Identifier: Apache-2.0
"""layer_backward (G4): gradients of experts' weights that are larger than a kernel's tile."""

from golden.cases import Family

from .gradients_layer import add


def tiled(family, id, seed, counts, note, **sizes):
    """Expert e has counts[e] rows, those of other experts between them."""
    ids = sorted(([e] for e, n in enumerate(counts) for _ in range(n)),
                 key=lambda row: row[0] % 2)
    add(family, id, {**sizes, "d": 3, "n": len(counts), "k": 1, "S": 0, "fs": 0}, len(ids),
        seed, ids=ids, bits=7, want=("dx", "dgamma"), note=note, tier="full")


def tiles() -> Family:
    f = Family("layer/gradient-tiles",
               "Gradients of experts' weights beyond tiles of 64 and of 128, in one direction "
               "and in both, over no row, one and some: what a tile leaves over counts.",
               ["G4", "G5"])
    tiled(f, "f32-64-both-ways", 574, (0, 1, 24), "dw_expert is 70 x 70",
          profile="linear", l=70)
    tiled(f, "f32-64-one-way", 575, (0, 1, 24), "dw_gate is 66 x 9", l=9, f=66)
    tiled(f, "bf16-128-both-ways", 589, (0, 1, 24, 40), "dw_expert is 140 x 140",
          profile="linear", dtype="bf16", l=140)
    tiled(f, "bf16-128-one-way", 590, (0, 1, 24), "dw_gate is 150 x 12",
          dtype="bf16", l=12, f=150)
    return f


def families() -> list[Family]:
    return [tiles()]
