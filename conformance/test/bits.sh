#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same bits whatever the schedule: the emulated device under eight seeds, the CPU backend with 1,
# 2 and 4 threads at each level that this CPU has. And bits can differ: those of other backends do.
# TIER: whose cases (smoke).
set -u
export LC_ALL=C
cd "$SOURCE" || exit 1
fail() { echo "bits: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
tier=${TIER:-smoke}

# "CASE BITS" of each case that gave numbers. $1: file; $2: backend
bits() {
    "$SLMOE" run -b "$2" --tier "$tier" --once --format jsonl="$out/jsonl" >"$out/log" 2>&1
    local code=$?
    [ $code = 0 ] || return $code
    sed -nE 's/.*"kind": ?"result".*"case": ?"([^"]*)".*"bits": ?"([0-9a-f]{16})".*/\1 \2/p' "$out/jsonl" | sort >"$1"
    [ "$(wc -l <"$1")" -ge 30 ] || fail "$2: bits of only $(wc -l <"$1") cases"
}
same() { # $1, $2: files; $3: what differs
    cmp -s "$1" "$2" || { diff "$1" "$2" | head; fail "$3: other bits"; }
}

# Whether this CPU has a level, which only the backend can say of those with instructions of their own.
has() { # $1: level
    SLM_CPU_LEVEL=$1 "$SLMOE" run -b cpu --only 'rmsnorm/eps/*' -v >"$out/log" 2>&1
    case $?:$1 in
    0:*) return 0 ;;
    5:avx2 | 5:avx512 | 5:amx) grep -q SLM_CPU_LEVEL "$out/log" && return 1 ;;
    esac
    cat "$out/log"
    fail "cpu, $1"
}

said=
"$SLMOE" run -b gpu-emu --only 'rmsnorm/eps/*' >"$out/log" 2>&1
code=$?
if [ $code = 4 ] && grep -q 'gpu-emu: left out: ' "$out/log"; then
    said="no gpu-emu here; "
else
    [ $code = 0 ] || { cat "$out/log"; fail "gpu-emu"; }
    for seed in 0 1 2 3 4 5 6 7; do
        SLM_EMU_SEED=$seed bits "$out/seed-$seed" gpu-emu || { cat "$out/log"; fail "gpu-emu, seed $seed"; }
        same "$out/seed-0" "$out/seed-$seed" "gpu-emu, seed $seed"
    done
    said="gpu-emu, $(wc -l <"$out/seed-0") cases, 8 seeds; "
fi
for level in plain avx2 avx512 amx amx-model; do
    has $level || continue
    for threads in 1 2 4; do
        SLM_CPU_LEVEL=$level OMP_NUM_THREADS=$threads bits "$out/cpu-$threads" cpu ||
            { cat "$out/log"; fail "cpu, $level, $threads threads"; }
        same "$out/cpu-1" "$out/cpu-$threads" "cpu, $level, $threads threads"
    done
    said="${said}cpu at $level, $(wc -l <"$out/cpu-1") cases, 1, 2, 4 threads; "
done

bits "$out/ref" ref || { cat "$out/log"; fail "ref"; }
[ -n "$(join "$out/ref" "$out/cpu-1" | awk '$2 != $3')" ] || fail "all bits are ref's: nothing is compared"
echo "bits: the same: ${said%; }"
