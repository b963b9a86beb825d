#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What takes long: the studies, every golden value made anew by three builds and by the oracle, each
# level of the backend cpu, the race build, the folder for a GPU, how cost grows, PyTorch in every
# way, the page of public cases, tier full, every mutant. A test that does less by default does all
# of it with LONG=1.
#
#   conformance/test/long.sh         after `conformance/quickstart test`; about half an hour on two cores
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
jobs=$(nproc 2>/dev/null || echo 2)
failed=0
say() { printf 'long: %s\n' "$*" >&2; }
fail() { say "FAILED: $*"; failed=1; }

# $1: folder; the rest: options of cmake
build() {
    local folder=$1
    shift
    mkdir -p "$folder"
    { cmake -S . -B "$folder" "$@" && cmake --build "$folder" -j "$jobs"; } >"$folder/long.log" 2>&1 && return
    tail -n 40 "$folder/long.log" >&2
    say "no build in $folder"
    return 1
}

# Every value of provenance ref becomes `pending`. stdin, stdout: a file of vectors. An empty line
# after a value stands between two cases.
forget() {
    awk '
        function indent() { match($0, /^ */); return RLENGTH }
        /^  - id:/ { if (value && empty) print ""; ref = 0; out = 0; value = 0 }
        { empty = !NF }
        /^    provenance: ref$/ { ref = 1 }
        NF && indent() <= 4 { out = ref && /^    out:$/; value = 0; print; next }
        out && NF && indent() == 6 { sub(/:.*/, ": pending"); print; value = 1; next }
        value { next }
        { print }
    '
}

# A copy of the vectors without what ref wrote, at $1.
forgotten() {
    rm -rf "$1"
    cp -r vectors "$1" || return 1
    find "$1" -name '*.yaml' | while read -r file; do
        forget <"$file" >"$file.cut" && mv "$file.cut" "$file"
    done
    [ "$(grep -rhE '^      [a-z_]+: pending$' "$1" | wc -l)" -gt 100 ] || fail "the vectors still hold what ref wrote"
}

# The values that a build writes are those in vectors/, to the last byte. $1: compiler and level, gcc-O2
made_anew() {
    local name=$1
    command -v "${name%-*}" >/dev/null || { say "${name%-*} is not installed: left out"; return; }
    say "golden values by $name"
    build "$work/$name" -DCMAKE_C_COMPILER="${name%-*}" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="-${name#*-}" -DBUILD_TESTING=OFF || { fail "$name does not build"; return; }
    forgotten "$work/vectors"
    "$work/$name/slmoe" gen --vectors "$work/vectors" --tier full >"$work/gen.log" 2>&1 ||
        { tail -n 20 "$work/gen.log" >&2; fail "gen by $name"; return; }
    diff -r -x MANIFEST vectors "$work/vectors" >"$work/diff" || { head -n 20 "$work/diff" >&2; fail "$name writes other bytes"; }
}

say "studies"
build build -DSLM_WERROR=ON || exit 1
find_program() { find build -type f -name "$1" -perm -u+x | head -n 1; }
"$(find_program study-rules)" --seeds 3 || fail "study of the rules"
"$(find_program study-alarms)" --long || fail "study of false alarms"

for name in gcc-O0 gcc-O2 clang-O2; do made_anew $name; done

say "every golden value of every provenance, by ref"
build/slmoe gen --check --tier full || fail "gen --check"
say "every golden value of the oracle, by the oracle"
LONG=1 bash conformance/test/oracle.sh
case $? in 0 | 77) ;; *) fail "oracle" ;; esac
export SLMOE=$PWD/build/slmoe SOURCE=$PWD BUILD=$PWD/build/conformance/test
say "the backend cpu at each level"
for level in plain avx2 avx512 amx amx-model; do
    LONG=1 SLM_CPU_LEVEL=$level bash conformance/test/cpu_level.bash
    case $? in 0 | 77) ;; *) fail "cpu at level $level" ;; esac
done
say "every backend under sanitizers, every case repeated"
build-asan/slmoe run -j "$jobs" || fail "under sanitizers"
if [ -f build/libslm-gpu-emu-race.so ]; then
    say "every access watched, also where a case is repeated"
    SLM_CANARY=0 SLM_EMU_SEED=5 build/slmoe run -b build/libslm-gpu-emu-race.so -j "$jobs" || fail "race build"
    say "the folder for a machine with a GPU"
    LONG=1 bash conformance/test/gpu_device.sh
    case $? in 0 | 77) ;; *) fail "gpu_device" ;; esac
fi
say "sigmoid and tanh of every binary32"
LONG=1 "$(find_program test_cpu_elements)" || fail "test_cpu_elements"
say "how the cost of cpu grows"
bash conformance/test/long_growth.sh
case $? in 0 | 77) ;; *) fail "growth" ;; esac
say "PyTorch in every way"
LONG=1 bash conformance/test/python.sh
case $? in 0 | 77) ;; *) fail "python" ;; esac
say "the page of public cases"
LONG=1 bash conformance/test/public_cases.sh || fail "public_cases"
say "a saving process, killed 200 times"
BUILD=build/conformance/test KILLS=200 bash conformance/test/kill_state.sh || fail "kill_state"
say "tier full, every built-in backend"
build/slmoe run --tier full || fail "run --tier full"
say "every mutant"
build/slmoe mutants -j "$jobs" || fail "mutants"
build/slmoe trace -j "$jobs" >/dev/null || fail "a clause that nothing shows, or that is none"
[ $failed = 0 ] && say "all of it is well"
exit $failed
