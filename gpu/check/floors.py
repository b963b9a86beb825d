#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes that each kernel must move against those that it moved; gpu/floors.md.

    gpu/check/floors.py measure TRAFFIC LIBRARY >COUNTED      TRAFFIC: of traffic.c; LIBRARY: the race build's backend
    gpu/check/floors.py check COUNTED                         exit 1 when something does not hold
    gpu/check/floors.py write COUNTED                         and write gpu/floors.md"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GPU = Path(__file__).resolve().parent.parent
ALLOWED = 1.25
BANDWIDTH = 4.3e12  # bytes a second: a copy on an H200, bytes read and written, measured
PRODUCTS = 780e12   # bf16 products on an H200, measured at 8192 x 8192 x 8192


def ceil(a, b):
    return -(-a // b)


def names_of(sizes):
    """What a formula may use, at those sizes."""
    known = dict(sizes, ceil=ceil, P=sizes["T"] * sizes["k"], Q=sizes["S"] * sizes["fs"])
    pairs, n = known["P"], sizes["n"]
    chunk = 1
    while chunk < 128 and chunk * 2 <= pairs // n:
        chunk *= 2
    known["C"] = (pairs + min(pairs, n) * (chunk - 1)) // chunk
    known["X"] = known["C"] * chunk
    known["H"] = min(ceil(sizes["B"] // 2 + 1, 32) * 32, sizes["B"])
    known["W"] = lambda width: 256 if width > 224 else ceil(width, 32) * 32
    known["G"] = lambda count: 256 * min(count // 256 + 1, 1024)
    known["tiles"] = lambda width: ceil(width, 64)
    known["bits"] = int.bit_length
    return known


def read_sizes(words, base):
    sizes = dict(base)
    for word in words:
        letter, _, value = word.partition("=")
        if letter != "dtype":
            sizes[letter] = int(value)
    return sizes


class Floors:
    def __init__(self, path):
        self.sizes, self.cases, self.kernels, self.products = {}, {}, {}, []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split()
            if not words or line.startswith("#"):
                continue
            if words[0] == "sizes":
                self.sizes[words[1]] = read_sizes(words[2:], {})
            elif words[0] == "case":
                self.cases[words[1]] = words[2:]
            elif words[0] == "product":
                self.products.append((words[1], words[2], " ".join(words[3:])))
            elif len(words) < 6 or words[1] not in ("stream", "cached", "small"):
                sys.exit(f"{path.name}:{number}: KERNEL KIND CASE LEAST AGAIN WHY")
            elif words[0] in self.kernels:
                sys.exit(f"{path.name}:{number}: {words[0]} a second time")
            else:
                self.kernels[words[0]] = (*words[1:5], " ".join(words[5:]))

    def value(self, formula, where):
        return eval(formula, {"__builtins__": {}}, names_of(where))

    def case_sizes(self, case):
        return read_sizes(self.cases[case][1:], self.sizes["test"])


def plain(kernel):
    """The name of a kernel without its template arguments."""
    return re.sub(r"<.*", "", kernel.strip("()"))


def measure(program, library, operation, words, sizes):
    """Kernel: bytes that one call loaded and stored."""
    arguments = [f"{letter}={size}" for letter, size in sizes.items() if letter != "E"]
    arguments += [word for word in words if word.startswith("dtype=")]
    counted = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bytes")
        subprocess.run([program, library, operation, *arguments], check=True,
                       env=dict(os.environ, SLM_EMU_BYTES=str(file), SLM_EMU_SEED="0"))
        for line in file.read_text().splitlines()[1:]:
            kernel, _, loaded, stored = line.split("\t")
            counted[plain(kernel)] = counted.get(plain(kernel), 0) + int(loaded) + int(stored)
    return counted


def kernels_of_source():
    """Every __global__ of gpu/*.cu."""
    found = set()
    for file in sorted(GPU.glob("*.cu")):
        found |= set(re.findall(r"__global__[^;{]*?\b([a-z_]+)\([^()]*(?:\([^()]*\)[^()]*)*\)\s*\{",
                                re.sub(r"__launch_bounds__\([^)]*\)", "", file.read_text())))
    return found


def check(floors, counted):
    wrong = [f"{name}: no line in floors.txt" for name in sorted(kernels_of_source() - set(floors.kernels))]
    wrong += [f"{name}: a line in floors.txt and no such kernel"
              for name in sorted(set(floors.kernels) - kernels_of_source())]
    for name, (kind, case, least, again, _) in floors.kernels.items():
        if kind == "stream":
            must, more = (floors.value(x, floors.sizes["k3"]) for x in (least, again))
            if must + more > ALLOWED * must:
                wrong.append(f"{name}: streams, and loads {more / must:.2f} of its least again at the sizes k3")
        if case == "-":
            if kind != "small":
                wrong.append(f"{name}: only a small kernel goes unmeasured")
            continue
        must, more = (floors.value(x, floors.case_sizes(case)) for x in (least, again))
        moved = counted[case].get(name, 0)
        if not must <= moved <= ALLOWED * (must + more):
            wrong.append(f"{name}: moved {moved} bytes in case {case}, least {must}, again {more}")
    return wrong


def page(floors, counted):
    k3 = floors.sizes["k3"]
    sizes = ", ".join(f"{letter} {size}" for letter, size in k3.items() if letter != "E")
    lines = [
        "# Floors of the CUDA kernels", "",
        "Below these times no kernel can be, whatever it does; nobody has said that one comes near. Made by `gpu/check/floors.py`",
        "from [floors.txt](floors.txt) and from bytes that the emulator counted; no device took part. One launch costs some",
        "microseconds besides.", "",
        f"Sizes: {sizes}, bf16. A floor is the larger of bytes over {BANDWIDTH / 1e12:.1f} TB/s and of operations over",
        f"{PRODUCTS / 1e12:.0f} TFLOP/s: a copy and a bf16 product as measured on an H200.", "",
        "- *counted*: what lanes loaded and stored in the emulator at the sizes of the test, over each byte once",
        "- *with again*: the same over what floors.txt expects; at most 1.25, or the test fails",
        "- *least*: each byte of inputs and outputs once; *again*: what lanes load besides, from cache, over that", "",
        "| kernel | kind | counted | with again | least | floor | again | what comes again |",
        "|---|---|---:|---:|---:|---:|---:|---|"]
    for name, (kind, case, least, again, why) in sorted(floors.kernels.items()):
        must, more = (floors.value(x, k3) for x in (least, again))
        if case == "-":
            ratio = expected = "-"
        else:
            small, extra = (floors.value(x, floors.case_sizes(case)) for x in (least, again))
            ratio = f"{counted[case][name] / small:.2f}"
            expected = f"{counted[case][name] / (small + extra):.2f}"
        lines.append(f"| `{name}` | {kind} | {ratio} | {expected} | {must / 1e6:.3g} MB | "
                     f"{must / BANDWIDTH * 1e6:.3g} us | {more / must:.2f} | {'' if why == '-' else why} |")
    lines += ["", "Products, by cuBLAS:", "", "| product | bytes | operations | floor |", "|---|---:|---:|---:|"]
    for least, flops, name in floors.products:
        must, work = (floors.value(x, k3) for x in (least, flops))
        lines.append(f"| {name} | {must / 1e6:.4g} MB | {work / 1e12:.3g} TFLOP | "
                     f"{max(must / BANDWIDTH, work / PRODUCTS) * 1e6:.4g} us |")
    return "\n".join(lines) + "\n"


def unmeasured(text):
    """Without what was counted, which a compiler may change a little."""
    return re.sub(r"^(\| `[^|]*\|[^|]*\|)[^|]*\|[^|]*\|", r"\1", text, flags=re.M)


def measure_all(floors, program, library):
    return {case: measure(program, library, words[0], words[1:], floors.case_sizes(case))
            for case, words in floors.cases.items()}


def main():
    floors = Floors(GPU / "floors.txt")
    if len(sys.argv) == 4 and sys.argv[1] == "measure":
        json.dump(measure_all(floors, *sys.argv[2:]), sys.stdout)
        return 0
    if len(sys.argv) != 3 or sys.argv[1] not in ("check", "write"):
        sys.exit(__doc__)
    counted = json.loads(Path(sys.argv[2]).read_text())
    wrong = check(floors, counted)
    if not wrong:
        text, file = page(floors, counted), GPU / "floors.md"
        if sys.argv[1] == "write":
            file.write_text(text)
        elif not file.exists() or unmeasured(file.read_text()) != unmeasured(text):
            wrong.append("floors.md is not what comes out: gpu/check/floors.py write")
    for line in wrong:
        print("floors:", line)
    if not wrong:
        print(f"floors: {len(floors.kernels)} kernels in {len(floors.cases)} calls move what they must")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
