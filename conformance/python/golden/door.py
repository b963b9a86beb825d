# SPDX-License-Identifier: Apache-2.0
"""The lowest element outside its domain (X1, L5, Q1, Q3, Q5, Q6, Q8, C1)."""

from __future__ import annotations

from .balance import TRAINING, EVALUATION, checksum, counted
from .forward import Config, Inputs, rows

LAST = 2**63 - 1


def _scores(cfg: Config, inp: Inputs) -> list[int]:
    table = rows(inp["score"], cfg.n)
    return [t * cfg.n + j for t in counted(cfg, inp)
            for j, s in enumerate(table[t]) if s < 0 or s > 1]


def _ids(cfg: Config, inp: Inputs) -> list[int]:
    """Out of range, or the later of two equal ids of a token (L5)."""
    table = rows(inp["ids"], cfg.k)
    return [t * cfg.k + j for t in counted(cfg, inp) for j, e in enumerate(table[t])
            if not 0 <= e < cfg.n or e in table[t][:j]]


def _stamp(inp: Inputs) -> list[int]:
    """Of another bias, or not to be counted up (Q8)."""
    version, crc, micro_batches, tokens = inp["stamp"]
    bad = [not 0 <= version < LAST, crc != checksum(inp["bias"]),
           not 0 <= micro_batches < LAST, tokens < 0]
    return [i for i, is_bad in enumerate(bad) if is_bad]


def _ticket(inp: Inputs) -> list[int]:
    """No mode; or not that of the bias in force, whose stamp is right (Q8)."""
    mode, version, crc, micro_batch = inp["ticket"]
    if not TRAINING <= mode <= EVALUATION:
        return [0]
    if _stamp(inp):
        return []
    bad = [False, version != inp["stamp"][0], crc != inp["stamp"][1],
           not 0 <= micro_batch <= inp["stamp"][2]]
    return [i for i, is_bad in enumerate(bad) if is_bad]


def _negative(counts: list[int]) -> list[int]:
    return [i for i, c in enumerate(counts) if c < 0]


def _histogram(cfg: Config, op: str, inp: Inputs) -> list[int]:
    """A negative count, or the first element of a row with a wrong sum (Q3, Q8)."""
    bad = _negative(inp["hist"])
    for j, row in enumerate(rows(inp["hist"], cfg.B)):
        if op == "qb_hist_solve":
            wrong = sum(row) != cfg.T
        else:
            wrong = sum(row) + len(counted(cfg, inp)) > LAST
        if op == "qb_observe":
            wrong = wrong or sum(row) != inp["stamp"][3]
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
        "score": lambda: _scores(cfg, inp),
        "ids": lambda: _ids(cfg, inp),
        "load": lambda: _negative(inp["load"]),
        "ticket": lambda: _ticket(inp),
        "stamp": lambda: _stamp(inp),
        "hist": lambda: _histogram(cfg, op, inp) if op != "qb_commit" else [],
        "parts": lambda: _parts(cfg, inp["parts"]),
        "mask": lambda: [i for i, m in enumerate(inp["mask"]) if m not in (0, 1)],
    }
    for name, look in found.items():
        bad = look() if name in inp else []
        if bad:
            return name, min(bad)
    return None
