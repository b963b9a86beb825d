#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The oracle: golden vectors from designs, written from spec/spec.md and not from ref/.

    oracle.py write VECTORS_DIR [NAME...]   write the families (of these design files)
    oracle.py check VECTORS_DIR [NAME...]   compare them, and every typed value, instead
    oracle.py quick VECTORS_DIR             the same, less families of tier full alone

A design file families/NAME.py has families() -> list[Family]. Cases of provenance oracle
get their expected values here. Those of other provenances are typed in the design file, by
hand or from a document; `check` and `write` recompute them and refuse a difference.
Needs Python 3.10 and mpmath. Building, running and testing the suite needs neither.
"""

from __future__ import annotations

import collections
import importlib
import math
import pkgutil
import sys
from pathlib import Path
from typing import Any

import families
from golden import backward, balance, door, forward, text
from golden.cases import ARGUMENTS, Case, Family, Tensor, infer_sizes, size_of
from golden.mutants import MUTANTS

OPERATIONS = {
    **{n: getattr(forward, n) for n in ("route", "select", "permute", "situ_glu",
                                         "dense_ffn", "rmsnorm", "layer_forward",
                                         "load_metrics")},
    **{n: getattr(balance, n) for n in ("qb_exact", "qb_hist_accumulate", "qb_hist_merge",
                                         "qb_hist_solve", "sign_step", "qb_observe",
                                         "qb_commit")},
    **{n: getattr(backward, n) for n in ("situ_glu_backward", "rmsnorm_backward",
                                          "select_backward", "dense_ffn_backward",
                                          "layer_backward")},
}
# Refused at the door, where a frame of memory is looked at and not a number.
DOOR = {"SLM_ERR_SHAPE", "SLM_ERR_ALIAS", "SLM_ERR_DOMAIN"}


def compute(case: Case) -> dict[str, Tensor]:
    """Every output of a case, by the oracle."""
    cfg = infer_sizes(case)
    inputs = {name: t.values(name) for name, t in case.inputs.items()}
    flat = OPERATIONS[case.op](cfg, inputs)
    tensors = {}
    for name, dims, _ in ARGUMENTS[case.op]:
        if name in flat and None not in flat[name]:
            shape = tuple(size_of(letter, cfg) for letter in dims)
            tensors[name] = Tensor(shape, data=flat[name])
    return tensors


def _same(case: Case, name: str, typed: Tensor, mine: Tensor) -> bool:
    kind = text.element_type(case, name, True)
    for a, b in zip(typed.values(name), mine.values(name), strict=True):
        a = text.stored(a, kind)
        if a != "any" and a != b and not (math.isnan(a) and math.isnan(b)):
            return False
    return True


def _verify(family: Family, case: Case, outcomes: list[dict[str, Any]]) -> None:
    """A typed outcome must be what the oracle finds; of several, one must."""
    where = f"{family.name}/{case.id}"
    try:
        mine = compute(case)
    except forward.Refusal as refusal:
        found = [o for o in outcomes if o.get("status") == refusal.status
                 and o.get("field") in (None, refusal.field)
                 and o.get("index") in (None, refusal.index)]
        if not found:
            raise SystemExit(f"{where}: the oracle refuses: {refusal}")
        return
    for outcome in outcomes:
        out = outcome.get("out")
        if out is not None and all(_same(case, n, t, mine[n]) for n, t in out.items()):
            return
    for name, t in (outcomes[0].get("out") or {}).items():
        if not _same(case, name, t, mine[name]):
            kind = text.element_type(case, name, True)
            typed = [text.stored(v, kind) for v in t.values(name)]
            found = mine[name].values(name)
            raise SystemExit(f"{where}: {name}\n typed {typed[:48]}\n found {found[:48]}")
    raise SystemExit(f"{where}: expected {outcomes[0].get('status')}, found a result")


def _verify_element(family: Family, case: Case) -> None:
    """An element outside its domain must be the one that the oracle finds."""
    if case.status != "SLM_ERR_DOMAIN" or case.field not in case.inputs:
        if case.index:
            raise SystemExit(f"{family.name}/{case.id}: {case.field} has no elements")
        return
    found = door.first_outside(
        case.op, infer_sizes(case), {n: t.values(n) for n, t in case.inputs.items()})
    if (case.field, case.index) != found:
        raise SystemExit(f"{family.name}/{case.id}: typed {case.field}[{case.index}], "
                         f"found {found}")


def complete(family: Family) -> None:
    """Fill in what the oracle computes; verify what was typed."""
    for case in family.cases:
        if case.status in DOOR:
            _verify_element(family, case)
            continue
        if case.status or case.either or case.out is not None:
            typed = {"out": case.out} if case.out is not None else {
                "status": case.status, "field": case.field, "index": case.index}
            _verify(family, case, case.either or [typed])
            continue
        if case.provenance != "oracle":
            raise SystemExit(f"{family.name}/{case.id}: nothing expected")
        mine = compute(case)
        case.out = {name: mine[name] for name in case.want or mine}


def load(names: list[str]) -> list[Family]:
    found = sorted(names or (m.name for m in pkgutil.iter_modules(families.__path__)))
    result = []
    for name in found:
        for family in importlib.import_module(f"families.{name}").families():
            family.origin = name
            for case in family.cases:
                unknown = set(case.kills or family.kills) - set(MUTANTS)
                if unknown:
                    raise SystemExit(f"{family.name}/{case.id}: no such mutant: {unknown}")
                if f"{family.name}/{case.id}" in families.SMOKE:
                    case.tier = "smoke"
            result.append(family)
    if not names:
        known = {f"{f.name}/{c.id}" for f in result for c in f.cases}
        if families.SMOKE - known:
            raise SystemExit(f"no such case: {sorted(families.SMOKE - known)}")
    doubles = [n for n, c in collections.Counter(f.name for f in result).items() if c > 1]
    if doubles:
        raise SystemExit(f"two families of one name: {doubles}")
    return result


def report(all_families: list[Family]) -> None:
    """Counts by provenance and by operation, on standard error."""
    cases = [case for family in all_families for case in family.cases]
    for title, key in (("provenance", lambda c: c.provenance), ("operation", lambda c: c.op),
                       ("tier", lambda c: c.tier or "quick")):
        counts = collections.Counter(map(key, cases))
        print(f"{title}: " + ", ".join(f"{k} {v}" for k, v in sorted(counts.items())),
              file=sys.stderr)
    print(f"{len(all_families)} families, {len(cases)} cases", file=sys.stderr)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("write", "check", "quick"):
        print(__doc__, file=sys.stderr)
        return 2
    verb, root = arguments[0], Path(arguments[1])
    status = 0
    all_families = load(arguments[2:])
    for family in all_families:
        if verb == "quick" and all(case.tier == "full" for case in family.cases):
            print(f"{family.name}: tier full, not checked", file=sys.stderr)
            continue
        complete(family)
        path = root / f"{family.name}.yaml"
        content = text.family_text(family)
        if verb == "write":
            head = f"{text.MARK} from families/"
            old = path.read_text(encoding="utf-8") if path.exists() else content
            if old.startswith(head) and not old.startswith(f"{head}{family.origin}.py."):
                raise SystemExit(f"{path}: is a family of another design file; "
                                 f"name this one of families/{family.origin}.py otherwise")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != content:
            print(f"{path}: differs from families/{family.origin}.py")
            status = 1
    if not arguments[2:]:
        known = {root / f"{family.name}.yaml" for family in all_families}
        for path in sorted(root.glob("*/*.yaml")):
            if path not in known and path.read_text(encoding="utf-8").startswith(text.MARK):
                print(f"{path}: no design file has this family")
                status = 1
    report(all_families)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
