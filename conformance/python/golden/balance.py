# SPDX-License-Identifier: Apache-2.0
"""Quantile Balancing in exact rationals (Q1-Q5), the sign step (Q6), a step's state (Q8)."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

from .forward import Config, Inputs, Outputs, Refusal, check_bias, choose, key, rows
from .real import decimal, rn32, rn64


def quantile_index(m: int, n: int, k: int) -> int:
    """0-based ascending index of the order statistic, in integers (Q1)."""
    return (k * (m - 1) + n - 1) // n


def counted(cfg: Config, inp: Inputs) -> list[int]:
    """The tokens that the mask does not leave out (Q5)."""
    mask = inp.get("mask")
    return [t for t in range(cfg.T) if mask is None or mask[t]]


def required_biases(cfg: Config, inp: Inputs) -> tuple[list[float], list[list[Fraction]]]:
    """alpha_i, and r_ij = alpha_i - s_ij exactly, one row a counted token (Q1, Q5)."""
    if cfg.k >= cfg.n:
        raise Refusal("SLM_ERR_DOMAIN", "top_k")
    table_of_scores = rows(inp["score"], cfg.n)
    for t in counted(cfg, inp):
        for j, s in enumerate(table_of_scores[t]):
            if not (math.isnan(s) or 0 <= s <= 1):
                raise Refusal("SLM_ERR_DOMAIN", "score", t * cfg.n + j)
    for t in counted(cfg, inp):
        for j, s in enumerate(table_of_scores[t]):
            if not math.isfinite(s):
                raise Refusal("SLM_ERR_NONFINITE", "score", t * cfg.n + j)
    check_finite(inp, ("bias",))
    cutoffs, table = [], []
    for t in counted(cfg, inp):
        s = table_of_scores[t]
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


def _refuse_ties(cfg: Config, m: int, columns: list[list[Fraction]]) -> None:
    """Strict mode: an integral target and no tie at the boundary (Q2)."""
    n, k = cfg.n, cfg.k
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
    m = len(table)
    alpha: list[float | str] = ["any"] * cfg.T  # not written where a token is left out
    for t, value in zip(counted(cfg, inp), cutoffs):
        alpha[t] = value
    if m == 0:
        bias = list(inp["bias"])
        return {"new_bias": bias, "candidate": bias, "cutoff": alpha}
    columns = [sorted(column) for column in zip(*table)]
    if cfg.balance == "strict":
        _refuse_ties(cfg, m, columns)
    index = quantile_index(m, cfg.n, cfg.k)
    candidate = [column[index] for column in columns]
    return {"new_bias": centre(candidate), "candidate": [rn64(c) for c in candidate],
            "cutoff": alpha}


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


TRAINING, RECOMPUTATION, EVALUATION = 0, 1, 2


def checksum(bias: list[float]) -> int:
    """CRC-64/XZ of the binary32's bytes, as a signed pattern of 64 bits (Q8): long division
    by the polynomial, lowest bit of each byte first."""
    data = struct.pack(f"<{len(bias)}f", *bias)
    polynomial, top = 0x142F0E1EBA9EA3693, 1 << 64
    dividend = 0
    for byte in data:
        for bit in range(8):
            dividend = dividend << 1 | (byte >> bit & 1)
    dividend <<= 64
    if data:  # all ones added to the first 64 bits
        dividend ^= (top - 1) << 8 * len(data)
    for power in range(8 * len(data) + 63, 63, -1):
        if dividend >> power & 1:
            dividend ^= polynomial << power - 64
    value = int(f"{dividend ^ (top - 1):064b}"[::-1], 2)
    return value - top if value >> 63 else value


def fresh_stamp(bias: list[float], version: int = 0) -> list[int]:
    """The stamp that a step begins with (Q8)."""
    return [version, checksum(bias), 0, 0]


def qb_observe(cfg: Config, inp: Inputs) -> Outputs:
    """Counts and stamp after a forward pass with this ticket (Q4, Q8). Whether ticket and
    stamp fit together is for the door."""
    stamp, hist = list(inp["stamp"]), list(inp["hist"])
    mode, _, _, micro_batch = inp["ticket"]
    if mode != TRAINING:
        return {"stamp": stamp, "hist": hist}
    new = qb_hist_accumulate(cfg, inp)["hist"]
    if micro_batch < stamp[2]:
        return {"stamp": stamp, "hist": hist}
    stamp[2] += 1
    stamp[3] += len(counted(cfg, inp))
    return {"stamp": stamp, "hist": new}


def qb_commit(cfg: Config, inp: Inputs) -> Outputs:
    """The new bias in force, and the stamp of the next step (Q4, Q8)."""
    check_finite(inp, ("new_bias", "bias"))
    bias = list(inp["new_bias"])
    return {"bias": bias, "stamp": fresh_stamp(bias, inp["stamp"][0] + 1),
            "hist": [0] * (cfg.n * cfg.B)}
