# SPDX-License-Identifier: Apache-2.0
"""Quantile Balancing in exact rationals (Q1-Q3) and the sign step (Q6)."""

from __future__ import annotations

import math
from fractions import Fraction

from .forward import Config, Inputs, Outputs, Refusal, check_bias, choose, key, rows
from .real import decimal, rn32, rn64


def quantile_index(m: int, n: int, k: int) -> int:
    """0-based ascending index of the order statistic, in integers (Q1)."""
    return (k * (m - 1) + n - 1) // n


def required_biases(cfg: Config, inp: Inputs) -> tuple[list[float], list[list[Fraction]]]:
    """alpha_i, and r_ij = alpha_i - s_ij exactly, one row a token (Q1)."""
    if cfg.k >= cfg.n:
        raise Refusal("SLM_ERR_DOMAIN", "top_k")
    for i, s in enumerate(inp["score"]):
        if not (math.isnan(s) or 0 <= s <= 1):
            raise Refusal("SLM_ERR_DOMAIN", "score", i)
    check_finite(inp, ("score", "bias"))
    cutoffs, table = [], []
    for s in rows(inp["score"], cfg.n):
        _, alpha = choose([key(a, b) for a, b in zip(s, inp["bias"])], cfg.k)
        assert alpha is not None
        cutoffs.append(alpha)
        table.append([Fraction(alpha) - Fraction(v) for v in s])
    return cutoffs, table


def check_finite(inp: Inputs, names: tuple[str, ...]) -> None:
    for name in names:
        for i, v in enumerate(inp[name]):
            if not math.isfinite(v):
                raise Refusal("SLM_ERR_NONFINITE", name, i)


def centre(candidate: list[Fraction]) -> list[float]:
    """Minus the mean over experts, exactly, then rounded once to binary32 (Q1)."""
    mean = sum(candidate) / len(candidate)
    return [rn32(c - mean) for c in candidate]


def _refuse_ties(cfg: Config, columns: list[list[Fraction]]) -> None:
    """Strict mode: an integral target and no tie at the boundary (Q2)."""
    m, n, k = cfg.T, cfg.n, cfg.k
    if m * k % n:
        raise Refusal("SLM_ERR_TARGET", "n_tokens")
    q = m * k // n
    for j, column in enumerate(columns):
        below, above = column[q - 1], column[q]  # ranks q and q + 1
        allowed = decimal("1e-8") + decimal("1e-5") * abs(above)
        if above - below <= (allowed if cfg.tie_test == "note" else 0):
            raise Refusal("SLM_ERR_TIE", "new_bias", j)


def qb_exact(cfg: Config, inp: Inputs) -> Outputs:
    cutoffs, table = required_biases(cfg, inp)
    if cfg.T == 0:
        bias = list(inp["bias"])
        return {"new_bias": bias, "candidate": bias, "cutoff": []}
    columns = [sorted(column) for column in zip(*table)]
    if cfg.balance == "strict":
        _refuse_ties(cfg, columns)
    index = quantile_index(cfg.T, cfg.n, cfg.k)
    candidate = [column[index] for column in columns]
    return {"new_bias": centre(candidate), "candidate": [rn64(c) for c in candidate],
            "cutoff": cutoffs}


def bounds(bias: list[float]) -> tuple[Fraction, Fraction]:
    """lo and hi of the histogram, exactly (Q3)."""
    return Fraction(min(bias)) - 1, Fraction(max(bias)) + 1


def bin_of(r: Fraction, lo: Fraction, hi: Fraction, bins: int) -> int:
    """clamp(floor((r - lo) B / (hi - lo)), 0, B - 1) (Q3)."""
    return min(max(math.floor((r - lo) * bins / (hi - lo)), 0), bins - 1)


def qb_hist_accumulate(cfg: Config, inp: Inputs) -> Outputs:
    _, table = required_biases(cfg, inp)
    hist = list(inp["hist"])
    lo, hi = bounds(inp["bias"])
    for row in table:
        for j, r in enumerate(row):
            hist[j * cfg.B + bin_of(r, lo, hi, cfg.B)] += 1
    return {"hist": hist}


def qb_hist_merge(cfg: Config, inp: Inputs) -> Outputs:
    return {"hist": [sum(c) for c in zip(*rows(inp["parts"], cfg.n * cfg.B))]}


def qb_hist_solve(cfg: Config, inp: Inputs) -> Outputs:
    """First bin with cumulative >= ceil(q), interpolated with the real q (Q3)."""
    if cfg.k >= cfg.n:
        raise Refusal("SLM_ERR_DOMAIN", "top_k")
    check_finite(inp, ("bias",))
    if cfg.T == 0:
        bias = list(inp["bias"])
        return {"new_bias": bias, "candidate": bias}
    lo, hi = bounds(inp["bias"])
    width = (hi - lo) / cfg.B
    q = Fraction(cfg.T * cfg.k, cfg.n)
    candidate = []
    for j, counts in enumerate(rows(inp["hist"], cfg.B)):
        if sum(counts) != cfg.T:
            raise Refusal("SLM_ERR_DOMAIN", "hist", j * cfg.B)
        before, t = 0, 0
        while before + counts[t] < math.ceil(q):
            before += counts[t]
            t += 1
        inside = min(max((q - before) / counts[t], Fraction(0)), Fraction(1))
        candidate.append(lo + (t + inside) * width)
    return {"new_bias": centre(candidate), "candidate": [rn64(c) for c in candidate]}


def sign_step(cfg: Config, inp: Inputs) -> Outputs:
    """b + rate sign(mean load - load), rounded once; sign(0) = 0 (Q6)."""
    check_bias(inp)
    mean = Fraction(sum(inp["load"]), cfg.n)
    new = []
    for b, load in zip(inp["bias"], inp["load"]):
        sign = (mean > load) - (mean < load)
        new.append(rn32(Fraction(b) + sign * Fraction(cfg.rate)) if sign else b)
    return {"new_bias": new}
