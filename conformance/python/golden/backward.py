# SPDX-License-Identifier: Apache-2.0
"""The backward operations: gradients of L = sum dy . y at a fixed choice (G1-G5).

The real gradients, rounded once to binary64. What is rational or the root of a rational
is computed as such; everything else as enclosures, forward pass included.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

from .forward import Config, Inputs, Outputs, Refusal, exact_dot, mixture, rows, softcap
from .real import Enclosing, Interval, decimal, rn64, root_once, settle

Row = list[Interval]
Matrix = list[Row]
Token = SimpleNamespace
ZERO: Interval = (0, 0)


def check_finite(inp: Inputs, names: tuple[str, ...]) -> None:
    for name in names:
        for i, v in enumerate(inp.get(name, [])):
            if not math.isfinite(v):
                raise Refusal("SLM_ERR_NONFINITE", name, i)


# ---- linear algebra on enclosures ----


def negative(a: Interval) -> Interval:
    return -a[1], -a[0]


def matrix(ar: Enclosing, flat: list[float], width: int) -> Matrix:
    return [[ar.of(v) for v in row] for row in rows(flat, width)]


def through(ar: Enclosing, w: Matrix, x: Row) -> Row:
    """x W^T, W [out, in]."""
    return [ar.dot(row, x) for row in w]


def back(ar: Enclosing, w: Matrix, dy: Row) -> Row:
    """dy W: the gradient of x in y = x W^T."""
    return [ar.dot(column, dy) for column in zip(*w)]


def outer(ar: Enclosing, dy: Matrix, x: Matrix, shape: tuple[int, int]) -> Row:
    """Sum over the tokens of dy^T x: the gradient of W; zeros when there are none."""
    if not dy:
        return [ZERO] * (shape[0] * shape[1])
    return [ar.dot(a, b) for a in zip(*dy) for b in zip(*x)]


def total(ar: Enclosing, parts: Matrix) -> Row:
    return [ar.sum(column) for column in zip(*parts)]


def scaled(ar: Enclosing, p: Interval, row: Row) -> Row:
    return [ar.mul(p, v) for v in row]


# ---- G1: the activation ----


def sech2(ar: Enclosing, x: Interval) -> Interval:
    """1 / cosh(x)^2 = 4 q / (1 + q)^2 with q = e^(-2|x|): no cancellation."""
    near = 0 if x[0] <= 0 <= x[1] else min(abs(x[0]), abs(x[1]))
    far = max(abs(x[0]), abs(x[1]))
    q = ar.exp((-2 * far, -2 * near))
    sum_ = ar.one + q[0], ar.one + q[1]
    quarter = ar.div(ar.div(q, sum_), sum_)
    return 4 * quarter[0], 4 * quarter[1]


def gate_of(ar: Enclosing, cfg: Config, a: Interval) -> tuple[Interval, Interval]:
    """G and G' of the gate."""
    sigma, rest = ar.sigmoid(a), ar.sigmoid(negative(a))
    if cfg.expert == "swiglu":
        capped, slope = a, (ar.one, ar.one)
    else:
        capped = softcap(ar, a, cfg.beta_gate)
        slope = sech2(ar, ar.div(a, ar.of(cfg.beta_gate)))
    value = ar.mul(capped, sigma)
    return value, ar.add(ar.mul(sigma, slope), ar.mul(value, rest))


def up_of(ar: Enclosing, cfg: Config, b: Interval) -> tuple[Interval, Interval]:
    """U and U' of the up part."""
    if cfg.expert == "swiglu":
        return b, (ar.one, ar.one)
    return softcap(ar, b, cfg.beta_up), sech2(ar, ar.div(b, ar.of(cfg.beta_up)))


def situ_glu_backward(cfg: Config, inp: Inputs) -> Outputs:
    for i, v in enumerate(inp["gate_up"]):
        if math.isnan(v):
            raise Refusal("SLM_ERR_NONFINITE", "gate_up", i)
    check_finite(inp, ("dh",))
    situ = SimpleNamespace(expert="situ", beta_gate=cfg.beta_gate, beta_up=cfg.beta_up)

    def gate(ar: Enclosing, a: float) -> tuple[Interval, Interval]:
        if math.isinf(a):
            return ar.of(cfg.beta_gate if a > 0 else 0.0), ZERO
        return gate_of(ar, situ, ar.of(a))

    def up(ar: Enclosing, b: float) -> tuple[Interval, Interval]:
        if math.isinf(b):
            return ar.of(math.copysign(cfg.beta_up, b)), ZERO
        return up_of(ar, situ, ar.of(b))

    def compute(ar: Enclosing) -> dict[str, list[Interval | float]]:
        out: list[Interval | float] = []
        for pair, dh in zip(rows(inp["gate_up"], 2 * cfg.f), rows(inp["dh"], cfg.f)):
            gates = [gate(ar, a) for a in pair[: cfg.f]]
            ups = [up(ar, b) for b in pair[cfg.f :]]
            d = [ar.of(v) for v in dh]
            out += [ar.mul(v, ar.mul(g[1], u[0])) for v, g, u in zip(d, gates, ups)]
            out += [ar.mul(v, ar.mul(g[0], u[1])) for v, g, u in zip(d, gates, ups)]
        return {"dgate_up": out}

    return settle(compute)


def _inner(ar: Enclosing, cfg: Config, gate: Row, up: Row) -> Row:
    """h of gate sums and up sums."""
    return [ar.mul(gate_of(ar, cfg, a)[0], up_of(ar, cfg, b)[0]) for a, b in zip(gate, up)]


def _inner_back(
    ar: Enclosing, cfg: Config, gate: Row, up: Row, dh: Row
) -> tuple[Row, Row]:
    """Gradients of gate sums and of up sums (G1)."""
    da, db = [], []
    for a, b, d in zip(gate, up, dh):
        (g, g_slope), (u, u_slope) = gate_of(ar, cfg, a), up_of(ar, cfg, b)
        da.append(ar.mul(d, ar.mul(g_slope, u)))
        db.append(ar.mul(d, ar.mul(g, u_slope)))
    return da, db


def dense_ffn_backward(cfg: Config, inp: Inputs) -> Outputs:
    check_finite(inp, ("x", "w_gate", "w_up", "w_out", "dy"))
    width = {"w_gate": cfg.d, "w_up": cfg.d, "w_out": cfg.f, "x": cfg.d, "dy": cfg.d}

    def compute(ar: Enclosing) -> dict[str, list[Interval | float]]:
        m = SimpleNamespace(**{n: matrix(ar, inp[n], w) for n, w in width.items()})
        gate = [through(ar, m.w_gate, x) for x in m.x]
        up = [through(ar, m.w_up, x) for x in m.x]
        h = [_inner(ar, cfg, a, b) for a, b in zip(gate, up)]
        dh = [back(ar, m.w_out, dy) for dy in m.dy]
        pairs = [_inner_back(ar, cfg, a, b, d) for a, b, d in zip(gate, up, dh)]
        da, db = [p[0] for p in pairs], [p[1] for p in pairs]
        dx = [total(ar, [back(ar, m.w_gate, a), back(ar, m.w_up, b)]) for a, b in pairs]
        return {
            "dx": sum(dx, []), "dw_gate": outer(ar, da, m.x, (cfg.f, cfg.d)),
            "dw_up": outer(ar, db, m.x, (cfg.f, cfg.d)),
            "dw_out": outer(ar, m.dy, h, (cfg.d, cfg.f)),
            "gate_up": sum((a + b for a, b in zip(gate, up)), []),
            "h": sum(h, []), "dh": sum(dh, []),
            "dgate_up": sum((a + b for a, b in pairs), []),
        }

    return settle(compute)


# ---- G2: RMSNorm ----


def _root_of(square: Fraction) -> Fraction | None:
    """The root of a rational, when it is one."""
    n, d = math.isqrt(square.numerator), math.isqrt(square.denominator)
    return Fraction(n, d) if Fraction(n * n, d * d) == square else None


def _signed_root(value: Fraction, square: Fraction) -> float:
    """value / sqrt(square), rounded once."""
    return math.copysign(root_once(value * value / square), value) if value else 0.0


def _sum_of_quotients(terms: list[tuple[Fraction, Fraction]]) -> float:
    """Sum of v / sqrt(s) over the terms (v, s), rounded once."""
    roots = [_root_of(s) for _, s in terms]
    if None not in roots:
        return rn64(sum((v / root for (v, _), root in zip(terms, roots)), Fraction(0)))
    if len(terms) == 1:
        return _signed_root(*terms[0])
    return settle(lambda ar: {"sum": [ar.sum(
        [ar.div(ar.of(v), ar.sqrt(ar.of(s))) for v, s in terms])]})["sum"][0]


def rmsnorm_backward(cfg: Config, inp: Inputs) -> Outputs:
    check_finite(inp, ("u", "gamma", "dr"))
    gamma = [Fraction(v) for v in inp.get("gamma", [1.0] * cfg.l)]
    du: list[float] = []
    terms: list[list[tuple[Fraction, Fraction]]] = [[] for _ in range(cfg.l)]
    for u, dr in zip(rows(inp["u"], cfg.l), rows(inp["dr"], cfg.l)):
        u, dr = [Fraction(v) for v in u], [Fraction(v) for v in dr]
        square = sum(v * v for v in u) / cfg.l + decimal(cfg.eps)  # R^2
        g = [c * v for c, v in zip(gamma, dr)]
        along = sum(a * b for a, b in zip(g, u)) / cfg.l / square  # mean(g n) / R
        du += [_signed_root(a - b * along, square) for a, b in zip(g, u)]
        for i in range(cfg.l):
            terms[i].append((dr[i] * u[i], square))
    return {"du": du, "dgamma": [_sum_of_quotients(t) for t in terms]}


def _norm(ar: Enclosing, cfg: Config, u: Row) -> tuple[Interval, Row]:
    """R and n = u / R of real values."""
    mean = ar.div(ar.dot(u, u), (cfg.l * ar.one, cfg.l * ar.one))
    root = ar.sqrt(ar.add((max(mean[0], 0), mean[1]), ar.of(decimal(cfg.eps))))
    return root, [ar.div(v, root) for v in u]


# ---- G3: the weights of the chosen ----


def logit_gradients(
    ar: Enclosing, cfg: Config, logits: list[Fraction], ids: list[int], dp: Row
) -> Row:
    """One row: exactly 0 where not chosen."""
    p = mixture(ar, cfg, logits, ids)
    mean = ar.dot(p, dp)
    row = [ZERO] * len(logits)
    for e, weight, d in zip(ids, p, dp):
        slope = ar.mul(weight, ar.sigmoid(ar.of(-logits[e])))  # p (1 - s)
        if cfg.weighting == "release" and cfg.k == 1:
            row[e] = ar.mul(slope, d)  # p is s itself
        else:
            row[e] = ar.mul(slope, ar.add(d, negative(mean)))
    return row


def select_backward(cfg: Config, inp: Inputs) -> Outputs:
    check_finite(inp, ("logit", "dweight"))
    table = list(zip(rows(inp["logit"], cfg.n), rows(inp["ids"], cfg.k),
                     rows(inp["dweight"], cfg.k)))

    def compute(ar: Enclosing) -> dict[str, list[Interval | float]]:
        out: list[Interval | float] = []
        for logits, ids, dp in table:
            out += logit_gradients(ar, cfg, [Fraction(v) for v in logits], ids,
                                   [ar.of(v) for v in dp])
        return {"dlogit": out}

    return settle(compute)


# ---- G4, G5: the layer ----


class Layer:
    """The layer's weights as enclosures, and what one token does with them."""

    def __init__(self, ar: Enclosing, cfg: Config, inp: Inputs):
        self.ar, self.cfg, self.linear = ar, cfg, cfg.expert == "linear"
        width = {"w_router": cfg.d, "w_down": cfg.d, "w_lift": cfg.l}
        wide = {"w_expert": (cfg.l, cfg.l)} if self.linear else {
            "w_gate": (cfg.f, cfg.l), "w_up": (cfg.f, cfg.l), "w_out": (cfg.l, cfg.f)}
        if cfg.S and self.linear:
            wide["w_shared"] = (cfg.d, cfg.d)
        elif cfg.S:
            width.update(w_shared_gate=cfg.d, w_shared_up=cfg.d, w_shared_out=cfg.S * cfg.fs)
        self.w = SimpleNamespace(**{n: matrix(ar, inp[n], v) for n, v in width.items()})
        self._stacks, self._inputs, self._read = wide, inp, {}
        self.gamma = [ar.of(v) for v in inp.get("gamma", [1.0] * cfg.l)]

    def part(self, name: str, e: int) -> Matrix:
        """Matrix e of a stack; of a routed expert only when somebody chose it."""
        if (name, e) not in self._read:
            height, width = self._stacks[name]
            at = e * height * width
            flat = self._inputs[name][at : at + height * width]
            self._read[name, e] = matrix(self.ar, flat, width)
        return self._read[name, e]

    def forward(self, t: Token) -> None:
        ar, cfg, w = self.ar, self.cfg, self.w
        t.p = mixture(ar, cfg, t.logits, t.ids)
        t.z = through(ar, w.w_down, t.x)
        t.gate, t.up, t.h, t.o = [], [], [], []
        for e in t.ids:
            if self.linear:
                t.o.append(through(ar, self.part("w_expert", e), t.z))
                continue
            t.gate.append(through(ar, self.part("w_gate", e), t.z))
            t.up.append(through(ar, self.part("w_up", e), t.z))
            t.h.append(_inner(ar, cfg, t.gate[-1], t.up[-1]))
            t.o.append(through(ar, self.part("w_out", e), t.h[-1]))
        t.u = [ar.dot(t.p, column) for column in zip(*t.o)]
        t.r = t.u
        if cfg.norm == "rms":
            t.root, t.n = _norm(ar, cfg, t.u)
            t.r = [ar.mul(g, v) for g, v in zip(self.gamma, t.n)]
        t.shared_gate, t.shared_up, t.hs = [], [], []
        if cfg.S and not self.linear:
            t.shared_gate = through(ar, w.w_shared_gate, t.x)
            t.shared_up = through(ar, w.w_shared_up, t.x)
            t.hs = _inner(ar, cfg, t.shared_gate, t.shared_up)

    def backward(self, t: Token) -> None:
        ar, cfg, w = self.ar, self.cfg, self.w
        t.dr = back(ar, w.w_lift, t.dy)
        t.du = t.dr
        if cfg.norm == "rms":
            g = [ar.mul(c, v) for c, v in zip(self.gamma, t.dr)]
            along = ar.div(ar.dot(g, t.n), (cfg.l * ar.one, cfg.l * ar.one))
            t.du = [ar.div(ar.add(a, negative(ar.mul(n, along))), t.root)
                    for a, n in zip(g, t.n)]
        t.dp = [ar.dot(t.du, o) for o in t.o]
        t.dlogit = logit_gradients(ar, cfg, t.logits, t.ids, t.dp)
        t.do = [scaled(ar, p, t.du) for p in t.p]
        t.dh, t.da, t.db, dz = [], [], [], []
        for q, e in enumerate(t.ids):
            if self.linear:
                dz.append(back(ar, self.part("w_expert", e), t.do[q]))
                continue
            t.dh.append(back(ar, self.part("w_out", e), t.do[q]))
            da, db = _inner_back(ar, cfg, t.gate[q], t.up[q], t.dh[q])
            t.da.append(da)
            t.db.append(db)
            dz += [back(ar, self.part("w_gate", e), da), back(ar, self.part("w_up", e), db)]
        t.dz = total(ar, dz)
        paths = [back(ar, w.w_down, t.dz), back(ar, w.w_router, t.dlogit)]
        t.dhs, t.da_s, t.db_s = [], [], []
        if cfg.S and self.linear:
            paths += [back(ar, self.part("w_shared", i), t.dy) for i in range(cfg.S)]
        elif cfg.S:
            t.dhs = back(ar, w.w_shared_out, t.dy)
            t.da_s, t.db_s = _inner_back(ar, cfg, t.shared_gate, t.shared_up, t.dhs)
            paths += [back(ar, w.w_shared_gate, t.da_s), back(ar, w.w_shared_up, t.db_s)]
        t.dx = total(ar, paths)

    def weight_gradients(self, tokens: list[Token]) -> dict[str, Row]:
        """Sums over the tokens; zeros where there are none (G5)."""
        ar, cfg = self.ar, self.cfg

        def over(dy: str, x: str, shape: tuple[int, int]) -> Row:
            return outer(ar, [getattr(t, dy) for t in tokens],
                         [getattr(t, x) for t in tokens], shape)

        def routed(dy: str, x: str, shape: tuple[int, int]) -> Row:
            result: Row = []
            for e in range(cfg.n):
                of = [(t, t.ids.index(e)) for t in tokens if e in t.ids]
                result += outer(ar, [getattr(t, dy)[q] for t, q in of],
                                [t.z if x == "z" else getattr(t, x)[q] for t, q in of],
                                shape)
            return result

        out = {"dw_router": over("dlogit", "x", (cfg.n, cfg.d)),
               "dw_down": over("dz", "x", (cfg.l, cfg.d)),
               "dw_lift": over("dy", "r", (cfg.d, cfg.l))}
        if cfg.norm == "rms":
            out["dgamma"] = [ar.sum(ar.mul(t.dr[i], t.n[i]) for t in tokens)
                             for i in range(cfg.l)]
        if self.linear:
            out["dw_expert"] = routed("do", "z", (cfg.l, cfg.l))
            if cfg.S:
                out["dw_shared"] = over("dy", "x", (cfg.d, cfg.d)) * cfg.S
            return out
        out["dw_gate"] = routed("da", "z", (cfg.f, cfg.l))
        out["dw_up"] = routed("db", "z", (cfg.f, cfg.l))
        out["dw_out"] = routed("do", "h", (cfg.l, cfg.f))
        if cfg.S:
            inner = cfg.S * cfg.fs
            out["dw_shared_gate"] = over("da_s", "x", (inner, cfg.d))
            out["dw_shared_up"] = over("db_s", "x", (inner, cfg.d))
            out["dw_shared_out"] = over("dy", "hs", (cfg.d, inner))
        return out

    def taps(self, tokens: list[Token]) -> dict[str, Row]:
        """Values and gradients of the stages, token by token."""
        def rows_of(name: str) -> Row:
            return sum((getattr(t, name) for t in tokens), [])

        def slots_of(*names: str) -> Row:
            return sum((part for t in tokens for group in zip(*(getattr(t, n) for n in names))
                        for part in group), [])

        out = {"weight": rows_of("p"), "dweight": rows_of("dp"), "o": slots_of("o"),
               **{name: rows_of(name) for name in ("dx", "z", "u", "r", "dr", "du",
                                                   "dlogit", "dz")}}
        if not self.linear:
            out |= {"gate_up": slots_of("gate", "up"), "h": slots_of("h"),
                    "dh": slots_of("dh"), "dgate_up": slots_of("da", "db")}
            if self.cfg.S:
                pairs = {"shared_gate_up": ("shared_gate", "shared_up"),
                         "dshared_gate_up": ("da_s", "db_s")}
                out |= {name: sum((getattr(t, a) + getattr(t, b) for t in tokens), [])
                        for name, (a, b) in pairs.items()}
                out |= {"hs": rows_of("hs"), "dhs": rows_of("dhs")}
        return out


def layer_backward(cfg: Config, inp: Inputs) -> Outputs:
    check_finite(inp, ("x", "dy"))
    logits = [[exact_dot(w, x) for w in rows(inp["w_router"], cfg.d)]
              for x in rows(inp["x"], cfg.d)]

    def compute(ar: Enclosing) -> dict[str, list[Interval | float]]:
        layer = Layer(ar, cfg, inp)
        x, dy = matrix(ar, inp["x"], cfg.d), matrix(ar, inp["dy"], cfg.d)
        tokens = [Token(x=a, dy=b, ids=c, logits=l)
                  for a, b, c, l in zip(x, dy, rows(inp["ids"], cfg.k), logits)]
        for t in tokens:
            layer.forward(t)
            layer.backward(t)
        return {**layer.weight_gradients(tokens), **layer.taps(tokens)}

    out = settle(compute)
    out["logit"] = [rn64(v) for row in logits for v in row]
    out["dbias"] = [0.0] * cfg.n
    return out
