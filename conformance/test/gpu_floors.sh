#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each CUDA kernel moves the bytes that gpu/floors.txt says, within a quarter, as the race build
# counts them; gpu/floors.md is what comes of it. And the check can fail: for a kernel that moves
# more, one without a line, a line without a kernel.
set -u
build=$BUILD/../..
program=$build/gpu/gpu-traffic library=$build/libslm-gpu-emu-race.so
[ -x "$program" ] && [ -f "$library" ] || { echo "gpu_floors: skipped, no race build of the emulator here"; exit 77; }
command -v python3 >/dev/null || { echo "gpu_floors: skipped, no python3 here"; exit 77; }
fail() { echo "gpu_floors: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

"$SOURCE/gpu/check/floors.py" measure "$program" "$library" >"$out/counted" || exit 1
"$SOURCE/gpu/check/floors.py" check "$out/counted" || exit 1

mkdir -p "$out/gpu/check" && cp "$SOURCE"/gpu/*.cu "$SOURCE"/gpu/floors.* "$out/gpu" &&
    cp "$SOURCE/gpu/check/floors.py" "$out/gpu/check" || exit 1
refused() { # $1: what it says; rest: sed's program for floors.txt
    local text=$1
    shift
    sed "$@" "$SOURCE/gpu/floors.txt" >"$out/gpu/floors.txt"
    cmp -s "$SOURCE/gpu/floors.txt" "$out/gpu/floors.txt" && fail "'$*' changes nothing"
    "$out/gpu/check/floors.py" check "$out/counted" >"$out/log" && fail "'$*' passes"
    grep -qF "$text" "$out/log" || { cat "$out/log"; fail "'$*' does not say: $text"; }
}
refused 'situ_rows: moved' 's/3\*T\*f\*E  0/2*T*f*E  0/'
refused 'situ_rows: no line' '/^situ_rows /d'
refused 'no_kernel: a line' 's/^situ_rows \(.*\)/&\nno_kernel \1/'
refused 'rmsnorm_rows: streams' 's/^rmsnorm_rows  *cached/rmsnorm_rows stream/'
refused 'floors.md is not' 's/^product .* lift/&ing/'
echo "gpu_floors: it can fail"
