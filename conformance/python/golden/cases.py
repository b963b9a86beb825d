# SPDX-License-Identifier: Apache-2.0
"""Families, cases, tensors and recipes, as `spec/vectors.md` describes them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

Value = float | int | Fraction | str  # str: "any"

# Arguments of each operation in order: (name, dims, element type of the golden value).
# An input of type f64 here is a real one: stored as binary32 or bf16.
ARGUMENTS: dict[str, list[tuple[str, str, str]]] = {
    "route": [("x", "Td", "real"), ("w_router", "nd", "real"), ("bias", "n", "f32"),
              ("ids", "Tk", "i32"), ("weight", "Tk", "real"), ("cutoff", "T", "f32"),
              ("logit", "Tn", "real"), ("score", "Tn", "f32")],
    "select": [("score", "Tn", "f32"), ("logit", "Tn", "f32"), ("bias", "n", "f32"),
               ("ids", "Tk", "i32"), ("weight", "Tk", "real"), ("cutoff", "T", "f32")],
    "permute": [("ids", "Tk", "i32"), ("counts", "n", "i64"), ("offsets", "N", "i64"),
                ("order", "q", "i64")],
    "situ_glu": [("gate_up", "Tg", "real"), ("h", "Tf", "real")],
    "dense_ffn": [("x", "Td", "real"), ("w_gate", "fd", "real"), ("w_up", "fd", "real"),
                  ("w_out", "df", "real"), ("y", "Td", "real"), ("h", "Tf", "real")],
    "rmsnorm": [("u", "Tl", "real"), ("gamma", "l", "real"), ("r", "Tl", "real")],
    "layer_forward": [
        ("x", "Td", "real"), ("bias", "n", "f32"),
        ("w_router", "nd", "real"), ("w_down", "ld", "real"),
        ("w_gate", "nfl", "real"), ("w_up", "nfl", "real"), ("w_out", "nlf", "real"),
        ("w_expert", "nll", "real"), ("gamma", "l", "real"), ("w_lift", "dl", "real"),
        ("w_shared_gate", "sd", "real"), ("w_shared_up", "sd", "real"),
        ("w_shared_out", "ds", "real"), ("w_shared", "Sdd", "real"),
        ("ids", "Tk", "i32"), ("weight", "Tk", "real"), ("cutoff", "T", "f32"),
        ("logit", "Tn", "real"), ("score", "Tn", "f32"), ("z", "Tl", "real"),
        ("h", "Tkf", "real"), ("o", "Tkl", "real"), ("u", "Tl", "real"),
        ("r", "Tl", "real"), ("hs", "Ts", "real"), ("y", "Td", "real")],
    "qb_exact": [("score", "Tn", "f32"), ("bias", "n", "f32"), ("new_bias", "n", "f32"),
                 ("candidate", "n", "f64"), ("cutoff", "T", "f32"), ("mask", "T", "i32")],
    "qb_hist_accumulate": [("score", "Tn", "f32"), ("bias", "n", "f32"),
                           ("hist", "nB", "i64"), ("mask", "T", "i32")],
    "qb_hist_merge": [("parts", "RnB", "i64"), ("hist", "nB", "i64")],
    "qb_hist_solve": [("hist", "nB", "i64"), ("bias", "n", "f32"),
                      ("new_bias", "n", "f32"), ("candidate", "n", "f64")],
    "sign_step": [("bias", "n", "f32"), ("load", "n", "i64"), ("new_bias", "n", "f32")],
    "load_metrics": [("ids", "Tk", "i32"), ("load", "n", "i64"), ("metric", "4", "f64"),
                     ("mask", "T", "i32")],
    "qb_observe": [("score", "Tn", "f32"), ("bias", "n", "f32"), ("ticket", "4", "i64"),
                   ("stamp", "4", "i64"), ("hist", "nB", "i64"), ("mask", "T", "i32")],
    "qb_commit": [("new_bias", "n", "f32"), ("bias", "n", "f32"), ("stamp", "4", "i64"),
                  ("hist", "nB", "i64")],
    "situ_glu_backward": [("gate_up", "Tg", "real"), ("dh", "Tf", "real"),
                          ("dgate_up", "Tg", "real")],
    "rmsnorm_backward": [("u", "Tl", "real"), ("gamma", "l", "real"), ("dr", "Tl", "real"),
                         ("du", "Tl", "real"), ("dgamma", "l", "real")],
    "select_backward": [("logit", "Tn", "f32"), ("ids", "Tk", "i32"),
                        ("dweight", "Tk", "f32"), ("dlogit", "Tn", "real")],
    "dense_ffn_backward": [
        ("x", "Td", "real"), ("w_gate", "fd", "real"), ("w_up", "fd", "real"),
        ("w_out", "df", "real"), ("dy", "Td", "real"), ("dx", "Td", "real"),
        ("dw_gate", "fd", "real"), ("dw_up", "fd", "real"), ("dw_out", "df", "real"),
        ("gate_up", "Tg", "real"), ("h", "Tf", "real"), ("dh", "Tf", "real"),
        ("dgate_up", "Tg", "real")],
    "layer_backward": [
        ("x", "Td", "real"), ("ids", "Tk", "i32"), ("dy", "Td", "real"),
        ("w_router", "nd", "real"), ("w_down", "ld", "real"),
        ("w_gate", "nfl", "real"), ("w_up", "nfl", "real"), ("w_out", "nlf", "real"),
        ("w_expert", "nll", "real"), ("gamma", "l", "real"), ("w_lift", "dl", "real"),
        ("w_shared_gate", "sd", "real"), ("w_shared_up", "sd", "real"),
        ("w_shared_out", "ds", "real"), ("w_shared", "Sdd", "real"),
        ("dx", "Td", "real"), ("dw_router", "nd", "real"), ("dw_down", "ld", "real"),
        ("dw_gate", "nfl", "real"), ("dw_up", "nfl", "real"), ("dw_out", "nlf", "real"),
        ("dw_expert", "nll", "real"), ("dgamma", "l", "real"), ("dw_lift", "dl", "real"),
        ("dw_shared_gate", "sd", "real"), ("dw_shared_up", "sd", "real"),
        ("dw_shared_out", "ds", "real"), ("dw_shared", "Sdd", "real"),
        ("dbias", "n", "real"), ("logit", "Tn", "real"), ("weight", "Tk", "real"),
        ("z", "Tl", "real"), ("gate_up", "Tkg", "real"), ("h", "Tkf", "real"),
        ("o", "Tkl", "real"), ("u", "Tl", "real"), ("r", "Tl", "real"),
        ("shared_gate_up", "Tt", "real"), ("hs", "Ts", "real"), ("dr", "Tl", "real"),
        ("du", "Tl", "real"), ("dweight", "Tk", "real"), ("dlogit", "Tn", "real"),
        ("dh", "Tkf", "real"), ("dgate_up", "Tkg", "real"), ("dz", "Tl", "real"),
        ("dhs", "Ts", "real"), ("dshared_gate_up", "Tt", "real")],
}

PROFILES: dict[str, dict[str, Any]] = {
    "paper": {},
    "release": {"weighting": "release", "eps": "1e-5"},
    "vanilla": {"expert": "swiglu", "norm": "none"},
    "linear": {"expert": "linear"},
}
DEFAULTS: dict[str, Any] = {
    "d": 0, "l": 0, "n": 0, "k": 0, "f": 0, "S": 0, "fs": 0, "B": 1000,
    "score": "sigmoid", "weighting": "ratio", "expert": "situ", "norm": "rms",
    "balance": "strict", "tie_test": "note", "dtype": "f32", "eps": "1e-6",
    "beta_gate": 4.0, "beta_up": 25.0, "rate": 2.0**-10, "T": None, "R": None,
}


@dataclass
class Tensor:
    """A tensor in one of the forms of `spec/vectors.md`."""

    shape: tuple[int, ...]
    data: list[Value] | None = None
    fill: Value | None = None
    gen: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def values(self, name: str) -> list[Value]:
        if self.data is not None:
            return self.data
        if self.fill is not None:
            return [self.fill] * self.count
        assert self.gen is not None
        return [recipe(name, i, **self.gen) for i in range(self.count)]


def tensor(nested: Any) -> Tensor:
    """From nested lists of values."""
    if isinstance(nested, Tensor):
        return nested
    shape: list[int] = []
    level = nested
    while isinstance(level, (list, tuple)):
        shape.append(len(level))
        level = level[0] if level else None
    flat = nested
    for _ in shape[1:]:
        flat = [v for row in flat for v in row]
    if len(flat) != math.prod(shape):
        raise ValueError(f"ragged tensor of shape {shape}")
    return Tensor(tuple(shape), data=list(flat))


def empty(*shape: int) -> Tensor:
    return Tensor(shape, data=[])


def fill(shape: tuple[int, ...], value: Value) -> Tensor:
    return Tensor(shape, fill=value)


def gen(
    shape: tuple[int, ...], seed: int, bits: int, scale: float, add: float = 0.0
) -> Tensor:
    return Tensor(shape, gen={"seed": seed, "bits": bits, "scale": scale, "add": add})


MASK = (1 << 64) - 1


def _fnv1a(name: str) -> int:
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return h


def _mix(v: int) -> int:
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & MASK
    v = (v ^ v >> 27) * 0x94D049BB133111EB & MASK
    return v ^ v >> 31


def recipe(
    name: str, i: int, seed: int, bits: int, scale: float, add: float = 0.0
) -> float:
    """Element i of a recipe tensor: integers only (spec/vectors.md, Recipes)."""
    w = _mix((seed + _fnv1a(name) + (i + 1) * 0x9E3779B97F4A7C15) & MASK)
    j = ((w >> 32) * ((1 << bits + 1) - 1) >> 32) - ((1 << bits) - 1)
    value = Fraction(add) + Fraction(scale) * j
    result = float(value)
    packed = struct.unpack("<f", struct.pack("<f", result))[0]
    if Fraction(packed) != value:
        raise ValueError(f"{name}[{i}] is not a binary32")
    return result


@dataclass
class Case:
    """One case. `out` typed: worked out by hand or printed in a document; `out` absent
    with provenance oracle: computed, for the outputs named in `want`."""

    id: str
    op: str
    config: dict[str, Any]
    inputs: dict[str, Tensor]
    provenance: str = "oracle"
    want: tuple[str, ...] = ()
    out: dict[str, Tensor] | None = None
    status: str | None = None
    field: str | None = None
    index: int | None = None
    either: list[dict[str, Any]] | None = None
    note: str | None = None
    source: str | None = None
    tier: str | None = None
    clause: list[str] | None = None
    kills: list[str] | None = None
    tags: list[str] | None = None
    alias: tuple[str, str] | None = None


@dataclass
class Family:
    name: str
    about: str
    clause: list[str]
    kills: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    origin: str = ""

    def add(self, id: str, op: str, config: dict[str, Any], inputs: dict[str, Any],
            **rest: Any) -> "Family":
        inputs = {name: tensor(value) for name, value in inputs.items()}
        if rest.get("out") is not None:
            rest["out"] = {name: tensor(v) for name, v in rest["out"].items()}
        for outcome in rest.get("either") or []:
            if "out" in outcome:
                outcome["out"] = {n: tensor(v) for n, v in outcome["out"].items()}
        if any(case.id == id for case in self.cases):
            raise ValueError(f"{self.name}: two cases {id}")
        if "provenance" not in rest and (rest.get("out") or rest.get("status")):
            rest["provenance"] = "hand"
        self.cases.append(Case(id, op, config, inputs, **rest))
        return self


def resolve(config: dict[str, Any]) -> SimpleNamespace:
    """The configuration that a case's keys denote."""
    unknown = set(config) - set(DEFAULTS) - {"profile"}
    if unknown:
        raise ValueError(f"unknown config keys {unknown}")
    whole = dict(DEFAULTS)
    whole.update(PROFILES[config.get("profile", "paper")])
    whole.update({key: v for key, v in config.items() if key != "profile"})
    return SimpleNamespace(**whole)


def size_of(letter: str, cfg: SimpleNamespace) -> int:
    derived = {"N": lambda: cfg.n + 1, "g": lambda: 2 * cfg.f,
               "s": lambda: cfg.S * cfg.fs, "t": lambda: 2 * cfg.S * cfg.fs,
               "q": lambda: cfg.T * cfg.k, "4": lambda: 4}
    return derived[letter]() if letter in derived else getattr(cfg, letter)


def infer_sizes(case: Case) -> SimpleNamespace:
    """resolve(), with T and R from the first input whose dims begin with them."""
    cfg = resolve(case.config)
    for letter in "TR":
        if getattr(cfg, letter) is None:
            for name, dims, _ in ARGUMENTS[case.op]:
                if dims[0] == letter and name in case.inputs:
                    setattr(cfg, letter, case.inputs[name].shape[0])
                    break
    cfg.T = cfg.T or 0
    return cfg
