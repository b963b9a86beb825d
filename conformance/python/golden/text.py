# SPDX-License-Identifier: Apache-2.0
"""Families as YAML in the format `slm-vector/1` (spec/vectors.md)."""

from __future__ import annotations

import hashlib
import math
import struct
from fractions import Fraction
from typing import Any

from .cases import ARGUMENTS, Case, Family, Tensor, infer_sizes, size_of
from .real import BFLOAT16, BINARY32, rn32, rn64, round_once

FLOW = 64  # most expected values in a flow list; more become words
DIGEST = 1024  # most integers in words; more become a digest
WIDTH = 100
MARK = "# Written by conformance/python/oracle.py"


def hexadecimal(x: float) -> str:
    """A C hexadecimal float without idle zeros: 0x1.8p-1."""
    if math.isnan(x):
        return "nan"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    text = x.hex()
    mantissa, exponent = text.split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"


def element_type(case: Case, name: str, is_output: bool) -> str:
    kind = next(t for n, _, t in ARGUMENTS[case.op] if n == name)
    if kind != "real":
        return kind
    if is_output:
        return "f64"
    return case.config.get("dtype", "f32")


def stored(value: Any, kind: str) -> Any:
    """The element that stands in the file: a typed exact value is rounded once."""
    if value == "any" or kind.startswith("i"):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return value
    if isinstance(value, (int, Fraction)):
        return rn64(Fraction(value)) if kind == "f64" else rn32(Fraction(value))
    form = {"f32": BINARY32, "bf16": BFLOAT16}.get(kind)
    if form and value and round_once(Fraction(value), form) != value:
        raise ValueError(f"{value!r} is not a {kind}")
    return value


def _token(value: Any, kind: str) -> str:
    if value == "any" or kind.startswith("i"):
        return str(value)
    return hexadecimal(value)


def _remark(values: list[Any], kind: str) -> str:
    """Decimals for readers, where the hexadecimal is not plain to see."""
    if kind.startswith("i") or not 0 < len(values) <= 6:
        return ""
    shown = []
    for v in values:
        shown.append(v if v == "any" else f"{v:.9g}".replace("e-0", "e-").replace("e+0", "e+"))
    text = " ".join(shown)
    return f"  # {text}" if len(text) <= 60 else ""


def _packed(values: list[Any], kind: str) -> bytes:
    letter = {"f32": "f", "f64": "d", "i32": "i", "i64": "q"}[kind]
    return struct.pack(f"<{len(values)}{letter}", *values)


def _flow(tokens: list[str], row: int, indent: int, head: str) -> list[str]:
    """A flow list over several lines, broken at rows where they fit."""
    pad = " " * (indent + 2)
    lines = [f"{' ' * indent}{head}["]
    per_line = row if 1 < row and row * (max(map(len, tokens)) + 2) < WIDTH else 0
    line = ""
    for i, token in enumerate(tokens):
        item = token + ("," if i + 1 < len(tokens) else "]")
        full = len(pad) + len(line) + len(item) + 1 > WIDTH
        if line and (full or (per_line and i % per_line == 0)):
            lines.append(pad + line)
            line = ""
        line = f"{line} {item}".strip()
    lines.append(pad + line)
    return lines


def _words(values: list[Any], kind: str, indent: int) -> list[str]:
    packed = _packed(values, kind)
    size = len(packed) // len(values)
    words = [packed[i : i + size][::-1].hex() for i in range(0, len(packed), size)]
    per_line = 8 if size == 4 else 4
    pad = " " * (indent + 2)
    return [pad + " ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]


def _gen(t: Tensor) -> str:
    g = t.gen
    assert g is not None
    add = f", add: {hexadecimal(g['add'])}" if g.get("add") else ""
    return (f"gen: {{seed: {g['seed']}, bits: {g['bits']}, "
            f"scale: {hexadecimal(g['scale'])}{add}}}")


def tensor_lines(case: Case, name: str, t: Tensor, is_output: bool, indent: int) -> list[str]:
    kind = element_type(case, name, is_output)
    pad = " " * indent
    shape = f"shape: [{', '.join(map(str, t.shape))}]"
    if t.fill is not None:
        value = _token(stored(t.fill, kind), kind)
        return [f"{pad}{name}: {{{shape}, fill: {value}}}"]
    if t.gen is not None:
        return [f"{pad}{name}: {{{shape}, {_gen(t)}}}"]
    assert t.data is not None
    if len(t.data) != t.count:
        raise ValueError(f"{case.id} {name}: {len(t.data)} values for {t.shape}")
    values = [stored(v, kind) for v in t.data]
    block = [f"{pad}{name}:", f"{pad}  {shape}"]
    plain = "any" not in values
    if is_output and plain and kind.startswith("i") and len(values) > DIGEST:
        digest = hashlib.sha256(_packed(values, kind)).hexdigest()
        return block + [f"{pad}  sha256: \"{digest}\""]
    if plain and (is_output and len(values) > FLOW or len(values) > 4096):
        return block + [f"{pad}  words: |"] + _words(values, kind, indent + 2)
    tokens = [_token(v, kind) for v in values]
    one = f"{pad}{name}: {{{shape}, data: [{', '.join(tokens)}]}}"
    if len(one) <= WIDTH:
        return [one + _remark(values, kind)]
    return block + _flow(tokens, t.shape[-1], indent + 2, "data: ")


def _scalar(text: str) -> str:
    if ": " in text or " #" in text or text[0] in "[]{}&*!|>%@`\"'#,-?:" or "\n" in text:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return text


def _config(config: dict[str, Any]) -> str:
    parts = []
    for key, value in config.items():
        if isinstance(value, float):
            value = hexadecimal(value)
        parts.append(f"{key}: {value}")
    return f"{{{', '.join(parts)}}}"


def _list(words: list[str]) -> str:
    return f"[{', '.join(words)}]"


def _outcome_lines(case: Case, out: dict[str, Tensor], indent: int) -> list[str]:
    order = [n for n, _, _ in ARGUMENTS[case.op]]
    lines = []
    for name in sorted(out, key=order.index):
        lines += tensor_lines(case, name, out[name], True, indent)
    return lines


def _result_lines(case: Case) -> list[str]:
    if case.status:
        lines = [f"    status: {case.status}"]
        if case.field:
            lines.append(f"    field: {case.field}")
        if case.index is not None:
            lines.append(f"    index: {case.index}")
        return lines
    if case.out is not None:
        return ["    out:"] + _outcome_lines(case, case.out, 6)
    lines = ["    either:"]
    for outcome in case.either or []:
        if "status" in outcome:
            words = [f"{key}: {outcome[key]}" for key in ("status", "field", "index")
                     if key in outcome]
            lines.append(f"      - {{{', '.join(words)}}}")
        else:
            lines.append("      - out:")
            lines += _outcome_lines(case, outcome["out"], 10)
    return lines


def _check_shapes(case: Case) -> None:
    """Shapes follow from the configuration, unless the case expects SHAPE."""
    if case.status == "SLM_ERR_SHAPE":
        return
    cfg = infer_sizes(case)
    dims = {n: d for n, d, _ in ARGUMENTS[case.op]}
    groups = [case.inputs, case.out or {}] + [o.get("out", {}) for o in case.either or []]
    for group in groups:
        for name, t in group.items():
            want = tuple(size_of(c, cfg) for c in dims[name])
            if t.shape != want:
                raise ValueError(f"{case.id}: {name} is {t.shape}, expected {want}")


def case_lines(case: Case) -> list[str]:
    _check_shapes(case)
    lines = [f"  - id: {case.id}"]
    if case.note:
        lines.append(f"    note: {_scalar(case.note)}")
    lines += [f"    op: {case.op}", f"    provenance: {case.provenance}"]
    if case.source:
        lines.append(f"    source: {_scalar(case.source)}")
    if case.tier:
        lines.append(f"    tier: {case.tier}")
    if case.clause:
        lines.append(f"    clause: {_list(case.clause)}")
    if case.kills:
        lines.append(f"    kills: {_list(case.kills)}")
    if case.tags:
        lines.append(f"    tags: {_list(case.tags)}")
    if case.config:
        lines.append(f"    config: {_config(case.config)}")
    lines.append("    in:")
    order = [n for n, _, _ in ARGUMENTS[case.op]]
    for name in sorted(case.inputs, key=order.index):
        lines += tensor_lines(case, name, case.inputs[name], False, 6)
    if case.alias:
        lines.append(f"    alias: {{output: {case.alias[0]}, with: {case.alias[1]}}}")
    return lines + _result_lines(case)


def family_text(family: Family) -> str:
    lines = [
        f"{MARK} from families/{family.origin}.py.",
        "schema: slm-vector/1",
        f"family: {family.name}",
        f"about: {_scalar(family.about)}",
        f"clause: {_list(family.clause)}",
    ]
    if family.kills:
        lines.append(f"kills: {_list(family.kills)}")
    lines.append("cases:")
    for i, case in enumerate(family.cases):
        lines += ([""] if i else []) + case_lines(case)
    return "\n".join(lines) + "\n"
