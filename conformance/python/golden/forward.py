# SPDX-License-Identifier: Apache-2.0
"""The forward operations: routing (R1-R5), experts and layer (L1-L5), load (Q7).

Each takes the resolved configuration and flat row-major inputs and gives flat outputs.
Real-valued outputs are the exact real number rounded once to binary64; score, cutoff and
the keys are binary32 by R2.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from .real import BINARY32, Enclosing, Interval, decimal, rn32, rn64, root_once, settle

Config = SimpleNamespace
Inputs = dict[str, list[Any]]
Outputs = dict[str, list[Any]]


class Refusal(Exception):
    """The call must return this status and name this field."""

    def __init__(self, status: str, field: str, index: int = 0):
        super().__init__(f"{status} {field}[{index}]")
        self.status, self.field, self.index = status, field, index


def rows(flat: list[Any], width: int) -> list[list[Any]]:
    return [flat[i : i + width] for i in range(0, len(flat), width)] if width else []


def exact_dot(w: list[float], x: list[float]) -> Fraction:
    """sum w x, exactly; stored elements are integers in units of 2^-149."""
    total = 0
    for a, b in zip(w, x, strict=True):
        n, d = a.as_integer_ratio()
        p, q = b.as_integer_ratio()
        total += n * (2**149 // d) * p * (2**149 // q)
    return Fraction(total, 2**298)


# ---- R2, R3: score, choose, weigh ----

Logit = Fraction | float  # float: an infinity


def _real_scores(ar: Enclosing, logits: list[Logit], function: str) -> list[Interval]:
    """Sigmoid of each logit, or (L4, a control) softmax over the row."""
    if function == "softmax":
        top = max(logits)
        powers = [ar.exp(ar.of(v - top)) for v in logits]
        total = ar.sum(powers)
        return [ar.div(p, total) for p in powers]
    limit = {math.inf: (ar.one, ar.one), -math.inf: (0, 0)}
    return [limit[v] if v in limit else ar.sigmoid(ar.of(v)) for v in logits]


def scores(logits: list[Logit], function: str) -> list[float]:
    """s = RN32 of the real score (R2)."""
    return settle(
        lambda ar: {"s": _real_scores(ar, logits, function)}, {"s": BINARY32}
    )["s"]


def key(score: float, bias: float) -> float:
    """RN32(s + b) (R2)."""
    return rn32(Fraction(score) + Fraction(bias))


def choose(keys: list[float], k: int) -> tuple[list[int], float | None]:
    """Key descending, then lower expert id; the (k+1)-th key is the cutoff (R2)."""
    order = sorted(range(len(keys)), key=lambda j: (-keys[j], j))
    return order[:k], keys[order[k]] if k < len(keys) else None


def _release(ar: Enclosing, s: list[Interval]) -> list[Interval]:
    """Profile release (R3): s / (sum + 1e-20), and s itself when k = 1."""
    if len(s) == 1:
        return s
    total = ar.add(ar.sum(s), ar.of(decimal("1e-20")))
    return [ar.div(v, total) for v in s]


def mixture(
    ar: Enclosing, cfg: Config, logits: list[Logit], ids: list[int]
) -> list[Interval]:
    """p from the real scores of the row (R3)."""
    if cfg.weighting == "release":
        s = _real_scores(ar, logits, cfg.score)
        return _release(ar, [s[j] for j in ids])
    chosen = [logits[j] for j in ids]
    if math.inf in chosen or all(v == -math.inf for v in chosen):
        s = _real_scores(ar, chosen, "sigmoid")
        total = ar.sum(s)
        return [ar.div(v, total) for v in s]
    if cfg.score == "softmax":
        return _real_scores(ar, chosen, "softmax")
    # sigma(l) = e^min(l,0) / (1 + e^-|l|); a common factor keeps the sum near 1
    least = [v if v < 0 else Fraction(0) for v in chosen]
    top = max(least)
    parts = [
        (0, 0)
        if v == -math.inf
        else ar.mul(ar.exp(ar.of(m - top)), ar.sigmoid(ar.of(abs(v))))
        for v, m in zip(chosen, least)
    ]
    total = ar.sum(parts)
    return [ar.div(p, total) for p in parts]


def given_mixture(cfg: Config, chosen: list[float]) -> list[Fraction]:
    """p from given scores: their exact ratio, 1/k when all are 0 (R3)."""
    s = [Fraction(v) for v in chosen]
    total = sum(s)
    if cfg.weighting == "release":
        return s if len(s) == 1 else [v / (total + decimal("1e-20")) for v in s]
    return [v / total if total else Fraction(1, len(s)) for v in s]


def check_bias(inp: Inputs) -> None:
    """A bias of an infinity or NaN is refused (R5)."""
    for i, b in enumerate(inp["bias"]):
        if not math.isfinite(b):
            raise Refusal("SLM_ERR_NONFINITE", "bias", i)


def select(cfg: Config, inp: Inputs) -> Outputs:
    check_bias(inp)
    field = "score" if "score" in inp else "logit"
    for i, v in enumerate(inp[field]):
        if math.isnan(v):
            raise Refusal("SLM_ERR_NONFINITE", field, i)
    out: Outputs = {"ids": [], "weight": [], "cutoff": []}
    for row in rows(inp[field], cfg.n):
        exact = [Fraction(v) if math.isfinite(v) else v for v in row]
        s = row if field == "score" else scores(exact, cfg.score)
        ids, cutoff = choose([key(a, b) for a, b in zip(s, inp["bias"])], cfg.k)
        if field == "score":
            weight = [rn64(p) for p in given_mixture(cfg, [row[j] for j in ids])]
        else:
            weight = settle(lambda ar: {"p": mixture(ar, cfg, exact, ids)})["p"]
        out["ids"] += ids
        out["weight"] += weight
        out["cutoff"].append(cutoff)
    return out


def _choose_rows(cfg: Config, inp: Inputs) -> tuple[Outputs, list[list[Fraction]]]:
    """Everything of a row up to its choice."""
    check_bias(inp)
    out: Outputs = {"ids": [], "cutoff": [], "logit": [], "score": []}
    exact_rows = []
    for t, x in enumerate(rows(inp["x"], cfg.d)):
        if not all(math.isfinite(v) for v in x):
            raise Refusal("SLM_ERR_NONFINITE", "logit", t * cfg.n)
        for e, w in enumerate(rows(inp["w_router"], cfg.d)):
            if not all(math.isfinite(v) for v in w):
                raise Refusal("SLM_ERR_NONFINITE", "logit", t * cfg.n + e)
        exact = [exact_dot(w, x) for w in rows(inp["w_router"], cfg.d)]
        s = scores(exact, cfg.score)
        ids, cutoff = choose([key(a, b) for a, b in zip(s, inp["bias"])], cfg.k)
        exact_rows.append(exact)
        out["ids"] += ids
        out["cutoff"].append(cutoff)
        out["logit"] += [rn64(v) for v in exact]
        out["score"] += s
    return out, exact_rows


def route(cfg: Config, inp: Inputs) -> Outputs:
    out, exact_rows = _choose_rows(cfg, inp)
    choices = rows(out["ids"], cfg.k)
    out["weight"] = settle(
        lambda ar: {
            "p": [p for l, c in zip(exact_rows, choices) for p in mixture(ar, cfg, l, c)]
        }
    )["p"]
    return out


def permute(cfg: Config, inp: Inputs) -> Outputs:
    """(token, slot) pairs by expert, ascending within an expert (R5, L5)."""
    for i, e in enumerate(inp["ids"]):
        row = inp["ids"][i - i % cfg.k : i]
        if not 0 <= e < cfg.n or e in row:
            raise Refusal("SLM_ERR_DOMAIN", "ids", i)
    order = sorted(range(len(inp["ids"])), key=lambda i: (inp["ids"][i], i))
    counts = [inp["ids"].count(e) for e in range(cfg.n)]
    offsets = [sum(counts[:e]) for e in range(cfg.n + 1)]
    return {"counts": counts, "offsets": offsets, "order": order}


# ---- L1, L4: the activation ----


def softcap(ar: Enclosing, a: Interval, beta: float) -> Interval:
    """beta tanh(a / beta)."""
    b = ar.of(beta)
    return ar.mul(b, ar.tanh(ar.div(a, b)))


def activation(ar: Enclosing, cfg: Config, a: Interval | None, b: Interval) -> Interval:
    """SiTU-GLU; or a control: SwiGLU, or max(0, b) without a gate."""
    if cfg.expert == "relu":
        return max(b[0], 0), max(b[1], 0)
    assert a is not None
    if cfg.expert == "swiglu":
        return ar.mul(ar.mul(a, ar.sigmoid(a)), b)
    gate = ar.mul(softcap(ar, a, cfg.beta_gate), ar.sigmoid(a))
    return ar.mul(gate, softcap(ar, b, cfg.beta_up))


def situ_glu(cfg: Config, inp: Inputs) -> Outputs:
    def one(ar: Enclosing, a: float, b: float) -> Interval | float:
        if math.isnan(a) or math.isnan(b):
            return math.nan
        if math.isinf(a):
            gate = ar.of(cfg.beta_gate if a > 0 else 0.0)
        else:
            x = ar.of(a)
            gate = ar.mul(softcap(ar, x, cfg.beta_gate), ar.sigmoid(x))
        if math.isinf(b):
            up = ar.of(math.copysign(cfg.beta_up, b))
        else:
            up = softcap(ar, ar.of(b), cfg.beta_up)
        return ar.mul(gate, up)

    pairs = [
        (row[i], row[cfg.f + i])
        for row in rows(inp["gate_up"], 2 * cfg.f)
        for i in range(cfg.f)
    ]
    return settle(lambda ar: {"h": [one(ar, a, b) for a, b in pairs]})


def _linear(ar: Enclosing, w: list[float], x: list[Interval]) -> list[Interval]:
    """x W^T of one token, W [out, in]."""
    return [ar.dot([ar.of(v) for v in row], x) for row in rows(w, len(x))]


def _inner(
    ar: Enclosing, cfg: Config, inp: Inputs, names: tuple[str, str], x: list[Interval],
    part: slice = slice(None),
) -> list[Interval]:
    """Inner activations of one feed-forward network (L1)."""
    up = _linear(ar, inp[names[1]][part], x)
    if cfg.expert == "relu":
        return [activation(ar, cfg, None, b) for b in up]
    gate = _linear(ar, inp[names[0]][part], x)
    return [activation(ar, cfg, a, b) for a, b in zip(gate, up)]


def _check_elements(inp: Inputs, *names: str) -> None:
    """These arguments have numbers alone (R4)."""
    for name in names:
        for i, v in enumerate(inp.get(name, [])):
            if not math.isfinite(v):
                raise Refusal("SLM_ERR_NONFINITE", name, i)


def dense_ffn(cfg: Config, inp: Inputs) -> Outputs:
    _check_elements(inp, "x", "w_gate", "w_up", "w_out")

    def compute(ar: Enclosing) -> dict[str, list[Interval | float]]:
        out: dict[str, list[Interval | float]] = {"h": [], "y": []}
        for x in rows(inp["x"], cfg.d):
            h = _inner(ar, cfg, inp, ("w_gate", "w_up"), [ar.of(v) for v in x])
            out["h"] += h
            out["y"] += _linear(ar, inp["w_out"], h)
        return out

    return settle(compute)


# ---- L2: RMSNorm ----


def rmsnorm(cfg: Config, inp: Inputs) -> Outputs:
    """r = gamma u / sqrt(mean(u^2) + eps) for stored u: the root of a rational."""
    gamma = inp.get("gamma", [1.0] * cfg.l)
    _check_elements(inp, "u", "gamma")
    result = []
    for u in rows(inp["u"], cfg.l):
        total = exact_dot(u, u) / cfg.l + decimal(cfg.eps)
        for g, v in zip(gamma, u):
            product = Fraction(g) * Fraction(v)
            root = root_once(product * product / total)
            result.append(-root if product < 0 else root)
    return {"r": result}


def _rmsnorm(
    ar: Enclosing, cfg: Config, u: list[Interval], gamma: list[float]
) -> list[Interval]:
    mean = ar.div(ar.dot(u, u), (cfg.l * ar.one, cfg.l * ar.one))
    mean = max(mean[0], 0), mean[1]
    root = ar.sqrt(ar.add(mean, ar.of(decimal(cfg.eps))))
    return [ar.div(ar.mul(ar.of(g), v), root) for g, v in zip(gamma, u)]


# ---- L1-L5: the layer ----


def _expert(
    ar: Enclosing, cfg: Config, inp: Inputs, e: int, z: list[Interval]
) -> tuple[list[Interval], list[Interval]]:
    """Inner activations and output of routed expert e."""
    if cfg.expert == "linear":
        width = cfg.l * cfg.l
        return [], _linear(ar, inp["w_expert"][e * width : (e + 1) * width], z)
    part = slice(e * cfg.f * cfg.l, (e + 1) * cfg.f * cfg.l)
    h = _inner(ar, cfg, inp, ("w_gate", "w_up"), z, part)
    return h, _linear(ar, inp["w_out"][part], h)


def _shared(
    ar: Enclosing, cfg: Config, inp: Inputs, x: list[Interval]
) -> tuple[list[Interval], list[Interval]]:
    """Inner activations and sum of the shared experts: x at width d, unweighted (L3)."""
    none = [(0, 0)] * cfg.d
    if cfg.S == 0:
        return [], none
    if cfg.expert == "linear":
        parts = rows(_linear(ar, inp["w_shared"], x), cfg.d)
        return [], [ar.sum(column) for column in zip(*parts)]
    hs = _inner(ar, cfg, inp, ("w_shared_gate", "w_shared_up"), x)
    return hs, _linear(ar, inp["w_shared_out"], hs)


def _check_weights(cfg: Config, inp: Inputs, choices: list[list[int]]) -> None:
    """Where a weight that a token uses is no number: the first stage that it reaches (R4)."""

    def check(stage: str, at: int, width: int, *names: str, part: slice = slice(None)) -> None:
        """Row i of each of these makes element at + i of the stage."""
        for name in names:
            values = inp.get(name, [])[part]
            for i, v in enumerate(values):
                if not math.isfinite(v):
                    raise Refusal("SLM_ERR_NONFINITE", stage, at + i // width)

    inner = cfg.S * cfg.fs
    if cfg.norm == "rms":
        _check_elements(inp, "gamma")
    for t, ids in enumerate(choices):
        check("z", t * cfg.l, cfg.d, "w_down")
        for q, e in enumerate(ids, t * cfg.k):
            part = slice(e * cfg.f * cfg.l, (e + 1) * cfg.f * cfg.l)
            check("h", q * cfg.f, cfg.l, "w_gate", "w_up", part=part)
            check("o", q * cfg.l, cfg.f, "w_out", part=part)
            part = slice(e * cfg.l * cfg.l, (e + 1) * cfg.l * cfg.l)
            check("o", q * cfg.l, cfg.l, "w_expert", part=part)
        check("hs", t * inner, cfg.d, "w_shared_gate", "w_shared_up")
        check("y", t * cfg.d, cfg.l, "w_lift")
        check("y", t * cfg.d, inner, "w_shared_out")
        for j in range(cfg.S):
            check("y", t * cfg.d, cfg.d, "w_shared",
                  part=slice(j * cfg.d * cfg.d, (j + 1) * cfg.d * cfg.d))


def layer_forward(cfg: Config, inp: Inputs) -> Outputs:
    out, exact_rows = _choose_rows(cfg, inp)
    choices = rows(out["ids"], cfg.k)
    _check_weights(cfg, inp, choices)
    gamma = inp.get("gamma", [1.0] * cfg.l)

    def compute(ar: Enclosing) -> dict[str, list[Interval | float]]:
        names = ("weight", "z", "h", "o", "u", "r", "hs", "y")
        real: dict[str, list[Interval | float]] = {name: [] for name in names}
        for x, logits, ids in zip(rows(inp["x"], cfg.d), exact_rows, choices):
            p = mixture(ar, cfg, logits, ids)
            xs = [ar.of(v) for v in x]
            z = _linear(ar, inp["w_down"], xs)
            routed = [_expert(ar, cfg, inp, e, z) for e in ids]
            u = [ar.dot(p, list(c)) for c in zip(*(o for _, o in routed))]
            r = u if cfg.norm == "none" else _rmsnorm(ar, cfg, u, gamma)
            hs, shared = _shared(ar, cfg, inp, xs)
            lifted = _linear(ar, inp["w_lift"], r)
            real["weight"] += p
            real["z"] += z
            for h, o in routed:
                real["h"] += h
                real["o"] += o
            real["u"] += u
            real["r"] += r
            real["hs"] += hs
            real["y"] += [ar.add(a, b) for a, b in zip(lifted, shared)]
        return real

    out.update(settle(compute))
    return out


# ---- Q7: load ----


def load_metrics(cfg: Config, inp: Inputs) -> Outputs:
    """MaxVio, CV, dead experts, residual imbalance (Q7) of the counted tokens (Q5)."""
    mask = inp.get("mask") or [1] * cfg.T
    counted = [row for row, c in zip(rows(inp["ids"], cfg.k), mask) if c]
    load = [sum(row.count(e) for row in counted) for e in range(cfg.n)]
    dead = float(load.count(0))
    pairs = len(counted) * cfg.k
    if pairs == 0:
        return {"load": load, "metric": [0.0, 0.0, dead, 0.0]}
    mean = Fraction(pairs, cfg.n)
    variance = sum((v - mean) ** 2 for v in load) / cfg.n
    residual = sum(abs(v - mean) for v in load) / (2 * pairs)
    metric = [rn64((max(load) - mean) / mean), root_once(variance / mean**2),
              dead, rn64(residual)]
    return {"load": load, "metric": metric}
