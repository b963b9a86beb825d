#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same bits whatever the schedule: the emulated device under eight seeds, the CPU backend with 1,
# 2 and 4 threads at each level that this CPU has. And bits can differ: those of other backends do.
set -u
cd "$SOURCE" || exit 1
fail() { echo "bits: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
tier=${TIER:-smoke}

# "CASE BITS" of each case that gave numbers. $1: file; $2: backend
bits() {
    "$SLMOE" run -b "$2" --tier "$tier" --format jsonl="$out/jsonl" >"$out/log" 2>&1
    local code=$?
    [ $code = 0 ] || return $code
    sed -nE 's/.*"kind": ?"result".*"case": ?"([^"]*)".*"bits": ?"([0-9a-f]{16})".*/\1 \2/p' "$out/jsonl" >"$1"
    [ "$(wc -l <"$1")" -ge 30 ] || fail "$2: bits of only $(wc -l <"$1") cases"
}
same() { # $1, $2: files; $3: what differs
    cmp -s "$1" "$2" || { diff "$1" "$2" | head; fail "$3: other bits"; }
}

said=
if "$SLMOE" run -b gpu-emu --only 'rmsnorm/eps/*' >"$out/log" 2>&1; then
    for seed in 0 1 2 3 4 5 6 7; do
        SLM_EMU_SEED=$seed bits "$out/seed-$seed" gpu-emu || { cat "$out/log"; fail "gpu-emu, seed $seed"; }
        same "$out/seed-0" "$out/seed-$seed" "gpu-emu, seed $seed"
    done
    said="gpu-emu, $(wc -l <"$out/seed-0") cases, 8 seeds; "
fi
for level in plain avx2 avx512 amx amx-model; do
    SLM_CPU_LEVEL=$level "$SLMOE" run -b cpu --only 'rmsnorm/eps/*' >"$out/log" 2>&1
    [ $? = 5 ] && continue
    for threads in 1 2 4; do
        SLM_CPU_LEVEL=$level OMP_NUM_THREADS=$threads bits "$out/cpu-$threads" cpu ||
            { cat "$out/log"; fail "cpu, $level, $threads threads"; }
        same "$out/cpu-1" "$out/cpu-$threads" "cpu, $level, $threads threads"
    done
    said="${said}cpu at $level, $(wc -l <"$out/cpu-1") cases, 1, 2, 4 threads; "
done
[ -n "$said" ] || { echo "bits: neither gpu-emu nor cpu is part of this build"; exit 77; }

bits "$out/ref" ref || { cat "$out/log"; fail "ref"; }
last=$out/cpu-1
[ -f "$last" ] || last=$out/seed-0
[ -n "$(join "$out/ref" "$last" 2>/dev/null | awk '$2 != $3')" ] || fail "all bits are ref's: nothing is compared"
echo "bits: the same: ${said%; }"
