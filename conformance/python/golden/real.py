# SPDX-License-Identifier: Apache-2.0
"""Real numbers: rounding once to a binary format, and enclosures that decide it.

Rational steps are Fractions. A transcendental value is an *enclosure*, a pair of integers
(lo, hi) in units of 2^-bits with lo <= value <= hi; it is final when both ends round to the
same element, else everything is repeated with more bits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Callable, Iterable, Sequence

from mpmath import libmp

Interval = tuple[int, int]

# (significant bits, least exponent of a normal number, largest exponent)
BINARY32 = (24, -126, 127)
BINARY64 = (53, -1022, 1023)
BFLOAT16 = (8, -126, 127)

SCHEDULE = (384, 1280, 2560, 5120, 20480)  # bits after the point, tried in this order


class Unproved(ArithmeticError):
    """No precision of the schedule decides a rounding: a midpoint, or nearly one."""


def round_once(x: Fraction, form: tuple[int, int, int]) -> float:
    """To nearest, ties to even, subnormals and overflow as in IEEE 754 (clause X3)."""
    digits, least, largest = form
    if x == 0:
        return 0.0
    n, d = abs(x.numerator), x.denominator
    exponent = n.bit_length() - d.bit_length()
    if (n << max(-exponent, 0)) < (d << max(exponent, 0)):
        exponent -= 1  # now 2^exponent <= |x| < 2^(exponent + 1)
    unit = max(exponent, least) - digits + 1
    whole, rest = divmod(n << max(-unit, 0), d << max(unit, 0))
    half = 2 * rest - (d << max(unit, 0))
    if half > 0 or (half == 0 and whole & 1):
        whole += 1
    if whole.bit_length() + unit > largest + 1:
        return math.copysign(math.inf, x)
    return math.copysign(math.ldexp(whole, unit), x)


def rn32(x: Fraction) -> float:
    return round_once(x, BINARY32)


def rn64(x: Fraction) -> float:
    return round_once(x, BINARY64)


def decimal(text: str) -> Fraction:
    """The exact value of a decimal numeral."""
    return Fraction(text)


def f32(value):
    """Nearest binary32 of a decimal numeral, a number, or (nested) lists of them."""
    if isinstance(value, (list, tuple)):
        return [f32(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return value
    if isinstance(value, float) and value == 0:
        return value  # keeps the sign of a zero
    return rn32(Fraction(value))


class Enclosing:
    """Interval arithmetic on integers scaled by 2^bits; every result is outward."""

    def __init__(self, bits: int):
        self.bits = bits
        self.one = 1 << bits

    def of(self, x: Fraction | float) -> Interval:
        if isinstance(x, float):  # a stored element: exact, its denominator is 2^j
            n, d = x.as_integer_ratio()
            if d <= self.one:
                return n * (self.one // d), n * (self.one // d)
            x = Fraction(n, d)
        lo, rest = divmod(x.numerator << self.bits, x.denominator)
        return lo, lo + (rest != 0)

    def _narrow(self, lo: int, hi: int) -> Interval:
        return lo >> self.bits, -((-hi) >> self.bits)

    def add(self, a: Interval, b: Interval) -> Interval:
        return a[0] + b[0], a[1] + b[1]

    def sum(self, terms: Iterable[Interval]) -> Interval:
        lo = hi = 0
        for a in terms:
            lo += a[0]
            hi += a[1]
        return lo, hi

    @staticmethod
    def _product(a: Interval, b: Interval) -> Interval:
        if a[0] == a[1]:
            lo, hi = a[0] * b[0], a[0] * b[1]
            return (lo, hi) if lo <= hi else (hi, lo)
        ends = a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]
        return min(ends), max(ends)

    def mul(self, a: Interval, b: Interval) -> Interval:
        return self._narrow(*self._product(a, b))

    def dot(self, w: Sequence[Interval], x: Sequence[Interval]) -> Interval:
        lo = hi = 0
        for a, b in zip(w, x, strict=True):
            p = self._product(a, b)
            lo += p[0]
            hi += p[1]
        return self._narrow(lo, hi)

    def div(self, a: Interval, b: Interval) -> Interval:
        """a / b for b > 0 throughout."""
        if b[0] <= 0:
            raise Unproved("a divisor whose enclosure reaches 0")
        lo = (a[0] << self.bits) // (b[1] if a[0] >= 0 else b[0])
        hi = -((-a[1] << self.bits) // (b[0] if a[1] >= 0 else b[1]))
        return lo, hi

    def sqrt(self, a: Interval) -> Interval:
        root = math.isqrt(a[1] << self.bits)
        return math.isqrt(max(a[0], 0) << self.bits), root + 1

    def _exp_end(self, x: int) -> Interval:
        """exp of one end x <= 0."""
        if x < -((self.bits + 16) << self.bits):
            return 0, 1
        working = self.bits + 40
        value = libmp.mpf_exp(libmp.from_man_exp(x, -self.bits), working)
        fixed = libmp.to_fixed(value, self.bits)
        return max(fixed - 2, 0), fixed + 2  # the error of mpf_exp is far below a unit

    def _monotone(self, f: Callable[[int], Interval], a: Interval) -> Interval:
        return f(a[0])[0], f(a[1])[1]

    def exp(self, a: Interval) -> Interval:
        """exp(a) for a <= 0 up to rounding."""
        return self._monotone(lambda x: self._exp_end(min(x, 0)), a)

    def _sigmoid_end(self, x: int) -> Interval:
        e = self._exp_end(-abs(x))
        top = e if x < 0 else (self.one, self.one)
        return self.div(top, (self.one + e[0], self.one + e[1]))

    def sigmoid(self, a: Interval) -> Interval:
        return self._monotone(self._sigmoid_end, a)

    def _tanh_end(self, x: int) -> Interval:
        e = self._exp_end(-2 * abs(x))
        lo, hi = self.div(
            (self.one - e[1], self.one - e[0]), (self.one + e[0], self.one + e[1])
        )
        return (-hi, -lo) if x < 0 else (lo, hi)

    def tanh(self, a: Interval) -> Interval:
        return self._monotone(self._tanh_end, a)


def settle(
    compute: Callable[[Enclosing], dict[str, list[Interval | float]]],
    forms: dict[str, tuple[int, int, int]] | None = None,
) -> dict[str, list[float]]:
    """Repeat `compute` until every enclosure rounds to one element.

    An element that is already a float (an infinity, NaN) is passed on as it is.
    """
    for bits in SCHEDULE:
        try:
            enclosures = compute(Enclosing(bits))
        except Unproved:
            continue
        rounded: dict[str, list[float]] = {}
        for name, values in enclosures.items():
            form = (forms or {}).get(name, BINARY64)
            rounded[name] = [_element(v, bits, form) for v in values]
        if not any(v is None for values in rounded.values() for v in values):
            return rounded
    raise Unproved("a midpoint, or nearly one")


def _element(
    v: Interval | float, bits: int, form: tuple[int, int, int]
) -> float | None:
    if isinstance(v, float):
        return v
    lo = round_once(Fraction(v[0], 1 << bits), form)
    hi = lo if v[0] == v[1] else round_once(Fraction(v[1], 1 << bits), form)
    if lo != hi:
        return None
    return 0.0 if lo == 0 else lo


def root_once(square: Fraction, form: tuple[int, int, int] = BINARY64) -> float:
    """sqrt(square) rounded once: exact when it is rational, else enclosed."""
    n, d = math.isqrt(square.numerator), math.isqrt(square.denominator)
    if n * n == square.numerator and d * d == square.denominator:
        return round_once(Fraction(n, d), form)
    return settle(
        lambda ar: {"root": [ar.sqrt(ar.of(square))]}, {"root": form}
    )["root"][0]
