# SPDX-License-Identifier: Apache-2.0
"""The lowest element outside its domain (X1, L5, Q1, Q3, Q6, C1)."""

from __future__ import annotations

from .forward import Config, Inputs, rows

LAST = 2**63 - 1


def _scores(values: list[float]) -> list[int]:
    return [i for i, s in enumerate(values) if s < 0 or s > 1]


def _ids(cfg: Config, ids: list[int]) -> list[int]:
    """Out of range, or the later of two equal ids of a token (L5)."""
    return [t * cfg.k + j for t, row in enumerate(rows(ids, cfg.k))
            for j, e in enumerate(row) if not 0 <= e < cfg.n or e in row[:j]]


def _negative(counts: list[int]) -> list[int]:
    return [i for i, c in enumerate(counts) if c < 0]


def _histogram(cfg: Config, op: str, hist: list[int]) -> list[int]:
    """A negative count, or the first element of a row with a wrong sum (Q3)."""
    bad = _negative(hist)
    for j, row in enumerate(rows(hist, cfg.B)):
        wrong = sum(row) != cfg.T if op == "qb_hist_solve" else sum(row) + cfg.T > LAST
        if wrong and min(row) >= 0:
            bad.append(j * cfg.B)
    return bad


def _parts(cfg: Config, parts: list[int]) -> list[int]:
    """A negative count, else the element that takes a sum past the last int64 (C1)."""
    bad = _negative(parts)
    sums = [0] * (cfg.n * cfg.B)
    for i, count in enumerate(parts if not bad else []):
        sums[i % len(sums)] += count
        if sums[i % len(sums)] > LAST:
            bad.append(i)
    return bad


def first_outside(op: str, cfg: Config, inp: Inputs) -> tuple[str, int] | None:
    """Field and row-major position: tensors in the order of the arguments."""
    found = {
        "score": lambda: _scores(inp["score"]),
        "ids": lambda: _ids(cfg, inp["ids"]),
        "load": lambda: _negative(inp["load"]),
        "hist": lambda: _histogram(cfg, op, inp["hist"]),
        "parts": lambda: _parts(cfg, inp["parts"]),
    }
    for name, look in found.items():
        bad = look() if name in inp else []
        if bad:
            return name, min(bad)
    return None
