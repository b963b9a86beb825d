#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutants that no person chose: the suite against a CPU backend with one token changed.

    automutants.py --slmoe BUILD/slmoe [--backend cpu|cpu-blas] [--seed N] [--count N]
                   [--jobs N] [--only GLOB] [--table FILE]

Makes every one-token change of the backend's files in cpu/ that the operators below allow,
draws --count of them (200) by --seed, spread over the files, builds each as a plug-in and
judges it with `slmoe run --tier quick --max-fail 1`. `cpu` (the default) means what is its
own, at the best level of this machine; `cpu-blas` what both have in common. The draw depends
on the seed and on the text of the changed line alone: an edit elsewhere does not change it. A
mutant that does not compile, or whose object code is that of the original, is drawn again.
--only judges the mutants whose name matches, all of them. Standard output gets the counts and
the survivors, --table every mutant. Exits 0 when nothing survived, 1 when something did.
Needs Python 3.10, a C compiler, pkg-config and OpenBLAS. Nothing is built from this file.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
# The backend `cpu` alone, as this machine runs it: no file of another level, nothing that only
# says which level it is or how long a part took.
OWN = ["acts.c", "cut.h", "gemm.h", "gemm_amx.h", "gemm_few.h", "gemm_factors.h", "gemm_tile.h",
       "native.c", "native_flow.c", "native_layer.c", "native_panels.c", "native_parts.c",
       "native_products.c", "pack.c", "real.c", "rows_tile.h", "situ_tile.h", "topk_tile.h",
       "widen.c", "widen_weights.c"]
LEVELS = ["dispatch.c", "gemm_*.c", "kernels_*.c", "phases.c", "topk_*.c"]
# Of the compiler, for the files of an instruction set: CMakeLists.txt.
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]
FLAGS_OF = {"*_avx2.c": ["-mavx2", "-mfma"], "*_avx512.c": AVX512,
            "gemm_amx.c": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mamx-tile", "-mamx-bf16"]}
# Not reached through the table: the tool's choice of BLAS kernels before main().
OUTSIDE = {"slm_cpu_blas_core", "slm_cpu_blas_wanted_core"}
WRAPPER = """
#include <slm/backend.h>
#include "cpu.h"
SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major);
const slm_backend *slm_backend_get(uint32_t host_major)
{
    return host_major == SLM_ABI_MAJOR ? TABLE() : NULL;
}
"""
TABLES = {"cpu": "slm_cpu_backend", "cpu-blas": "slm_cpu_blas_backend"}
FLAGS = ["-std=c17", "-O2", "-w", "-fPIC", "-fopenmp", "-fno-fast-math", "-ffp-contract=off",
         "-fvisibility=hidden"]
# A call has 5 seconds; a whole run that takes longer than this is ended from outside.
CALL_SECONDS, RUN_SECONDS = 5, 180


def matches(name: str, patterns) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def files_of(backend: str) -> list[str]:
    if backend == "cpu":
        return OWN
    return sorted(path.name for path in (ROOT / "cpu").glob("*.c")
                  if not matches(path.name, OWN + LEVELS))


def text_of(file: str) -> str:
    return (ROOT / "cpu" / file).read_text(encoding="utf-8")


def order_of(seed: int, mutant: Mutant) -> bytes:
    """A draw that an edit of another line does not change."""
    lines = text_of(mutant.file).split("\n")
    key = (seed, mutant.file, mutant.function, lines[mutant.line - 1].strip(),
           mutant.column - len(lines[mutant.line - 1]) + len(lines[mutant.line - 1].lstrip()),
           mutant.operator, mutant.new)
    return hashlib.sha256(repr(key).encode()).digest()


def quotas(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Half of the draw even over the files, half by the number of their mutants."""
    total = sum(sizes.values())
    share = {f: count / 2 / len(sizes) + count / 2 * n / total for f, n in sizes.items()}
    quota = {f: min(int(s), sizes[f]) for f, s in share.items()}
    for f in sorted(share, key=lambda f: (quota[f] - share[f], f)):
        if sum(quota.values()) < count and quota[f] < sizes[f]:
            quota[f] += 1
    return quota


class Builder:
    """Builds plug-ins in a folder of its own."""

    def __init__(self, folder: Path, compiler: str, backend: str):
        blas = subprocess.run(["pkg-config", "--cflags", "--libs", "openblas"], check=True,
                              capture_output=True, text=True).stdout.split()
        self.folder, self.compiler = folder, compiler
        self.includes = [f"-I{ROOT / 'cpu'}", f"-I{ROOT / 'spec/include'}"] + [
            word for word in blas if word.startswith(("-I", "-D"))]
        self.libraries = [word for word in blas if not word.startswith(("-I", "-D"))] + ["-lm"]
        (folder / "wrapper.c").write_text(WRAPPER)
        self.common = [self._object(folder / "wrapper.c", "wrapper", f"-DTABLE={TABLES[backend]}")]
        self.common += [self._object(path, f"spec-{path.stem}", "-D_GNU_SOURCE")
                        for path in sorted((ROOT / "spec").glob("*.c"))]
        self.originals = {path.name: self._object(path, f"cpu-{path.name}", "-D_GNU_SOURCE")
                          for path in sorted((ROOT / "cpu").glob("*.c"))}
        self.codes = {f: code(o) for f, o in self.originals.items()}
        self.readers = {f: self._includes(f) for f in self.originals}

    def _command(self, source: Path, *more: str) -> list[str]:
        special = [flag for pattern, flags in FLAGS_OF.items()
                   if fnmatch.fnmatchcase(source.name, pattern) for flag in flags]
        return [self.compiler, *FLAGS, *special, *more, *self.includes, str(source)]

    def _compile(self, source: Path, target: Path, *more: str) -> bool:
        command = [*self._command(source, *more), "-c", "-o", str(target)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def _includes(self, file: str) -> set[str]:
        """The files of cpu/ that this one is made of."""
        command = [*self._command(ROOT / "cpu" / file), "-MM"]
        rule = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {Path(word).name for word in rule.split() if "/cpu/" in word}

    def _object(self, source: Path, name: str, *more: str) -> Path:
        target = self.folder / f"{name}.o"
        if not self._compile(source, target, *more):
            raise SystemExit(f"{source}: does not compile")
        return target

    def link(self, changed: dict[str, Path], target: Path) -> bool:
        parts = [str(o) for o in (self.originals | changed).values()]
        command = [self.compiler, "-shared", "-fopenmp", "-Wl,-Bsymbolic", "-o", str(target),
                   *parts, *map(str, self.common), *self.libraries]
        return subprocess.run(command, capture_output=True).returncode == 0

    def build(self, mutant: Mutant, number: int) -> Path | str:
        """The plug-in, or the reason why there is none."""
        text = text_of(mutant.file)
        library = self.folder / f"m{number}.so"
        changed: dict[str, Path] = {}
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            copy = Path(name)
            for path in (ROOT / "cpu").glob("*.[ch]"):
                shutil.copy(path, copy)
            (copy / mutant.file).write_text(text[:mutant.begin] + mutant.new + text[mutant.end:])
            for file in (f for f, of in self.readers.items() if mutant.file in of):
                changed[file] = copy / f"{file}.o"
                if not self._compile(copy / file, changed[file], "-D_GNU_SOURCE"):
                    return "does not compile"
            if all(code(o) == self.codes[f] for f, o in changed.items()):
                return "same object code"
            if not self.link(changed, library):
                return "does not link"
        return library


def code(target: Path) -> bytes:
    """The object without its file symbol, which holds the source's name."""
    bare = target.with_suffix(".bare")
    subprocess.run(["objcopy", "--strip-unneeded", "--remove-section=.comment", str(target),
                    str(bare)], check=True)
    content = bare.read_bytes()
    bare.unlink()
    return content


@dataclasses.dataclass(frozen=True)
class Verdict:
    how: str       # FAIL, CRASH, TIMEOUT, ... of the first failure; "survived"
    clause: str
    case: str
    passed: int
    skipped: int


def judge(slmoe: Path, library: Path) -> Verdict:
    report = library.with_suffix(".jsonl")
    env = os.environ | {"OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE", "SkylakeX"),
                        "OMP_WAIT_POLICY": "passive"}
    command = [str(slmoe), "run", "-b", str(library), "-j", "1", "--tier", "quick", "--timeout",
               str(CALL_SECONDS), "--max-fail", "1", "--format", f"jsonl={report}"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True,
                              timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        return Verdict("HANG", "", "", 0, 0)
    if done.returncode not in (0, 1, 3, 4, 5):
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    if done.returncode == 5:
        return Verdict("NOTHING EXECUTED", "", "", 0, 0)
    if done.returncode in (3, 4):
        return Verdict("NOT LOADED", "", done.stderr.split("\n")[0], 0, 0)
    states: collections.Counter[str] = collections.Counter()
    for line in report.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        if result["kind"] != "result":
            continue
        states[result["state"]] += 1
        if result["state"] not in ("PASS", "SKIP"):
            clause = result.get("clause") or ",".join(result["clauses"])
            return Verdict(result["state"], clause, result["case"], states["PASS"],
                           states["SKIP"])
    return Verdict("survived", "", "", states["PASS"], states["SKIP"])


def draw(builder: Builder, pool, wanted: dict[str, int], ordered: dict[str, list[Mutant]]):
    """Builds in the order of the draw, in rounds, until each file has its number."""
    made: list[tuple[Mutant, Path]] = []
    refused: collections.Counter[str] = collections.Counter()
    position = dict.fromkeys(ordered, 0)
    missing, number = dict(wanted), 0
    while True:
        batch = []
        for file, n in missing.items():
            batch += ordered[file][position[file]:position[file] + n]
            position[file] += n
        if not batch:
            return made, refused
        numbers = range(number, number + len(batch))
        number += len(batch)
        built = collections.Counter()
        for mutant, result in zip(batch, pool.map(builder.build, batch, numbers)):
            if isinstance(result, Path):
                made.append((mutant, result))
                built[mutant.file] += 1
            else:
                refused[result] += 1
        missing = {f: n - built[f] for f, n in missing.items() if n > built[f]}


def show(mutant: Mutant) -> str:
    squeeze = " ".join
    return f"`{squeeze(mutant.old.split())}` -> `{squeeze(mutant.new.split()) or '(nothing)'}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slmoe", type=Path, required=True)
    parser.add_argument("--backend", choices=sorted(TABLES), default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", metavar="GLOB")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    options = parser.parse_args()
    ordered = {f: sorted(mutants_of(f, text_of(f), OUTSIDE), key=lambda m: order_of(options.seed, m))
               for f in files_of(options.backend)}
    wanted = quotas({f: len(m) for f, m in ordered.items()}, options.count)
    if options.only:
        ordered = {f: [m for m in all_of if matches(m.name, options.only)]
                   for f, all_of in ordered.items()}
        wanted = {f: len(m) for f, m in ordered.items()}
    with tempfile.TemporaryDirectory(prefix="automutants-") as name, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        builder = Builder(Path(name), options.cc, options.backend)
        original = Path(name) / "original.so"
        if not builder.link({}, original):
            raise SystemExit("the original does not link")
        right = judge(options.slmoe, original)
        if right.how != "survived" or not right.passed:
            raise SystemExit(f"the original does not conform: {right}")
        made, refused = draw(builder, pool, wanted, ordered)
        verdicts = list(pool.map(lambda pair: judge(options.slmoe, pair[1]), made))
    return summarise(options, ordered, made, refused, verdicts, right)


def summarise(options, ordered, made, refused, verdicts, right: Verdict) -> int:
    rows = sorted(((m, v) for (m, _), v in zip(made, verdicts)),
                  key=lambda row: (row[0].file, row[0].line, row[0].column, row[0].new))
    if options.table:
        lines = ["mutant\tfunction\told\tnew\tresult\tclause\tcase"]
        lines += ["\t".join([m.name, m.function, " ".join(m.old.split()),
                             " ".join(m.new.split()), v.how, v.clause, v.case]) for m, v in rows]
        options.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kills = collections.Counter(v.how for _, v in rows)
    print(f"{sum(map(len, ordered.values()))} candidates, seed {options.seed}: "
          f"{len(rows)} judged; drawn again: " +
          (", ".join(f"{n} {why}" for why, n in sorted(refused.items())) or "none"))
    print(", ".join(f"{n} {how}" for how, n in kills.most_common()))
    for title, key in (("file", lambda m: m.file), ("operator", lambda m: m.operator)):
        judged = collections.Counter(key(m) for m, _ in rows)
        alive = collections.Counter(key(m) for m, v in rows if v.how == "survived")
        print(f"{title}: " + ", ".join(f"{k} {n - alive[k]}/{n}" for k, n in
                                       sorted(judged.items())))
    clauses = collections.Counter(v.clause for _, v in rows if v.clause)
    print("first clause: " + ", ".join(f"{c} {n}" for c, n in clauses.most_common()))
    survivors = [(m, v) for m, v in rows if v.how == "survived"]
    for m, v in survivors:
        less = right.passed - v.passed
        note = f"  ({less} cases skipped)" if less else ""
        print(f"SURVIVED  cpu/{m.file}:{m.line}  {m.function}  {show(m)}{note}  [{m.name}]")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
