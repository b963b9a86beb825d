#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh - everything that only a device can show, in ten minutes: a table on stdout, logs in a
# folder.
#
#   check.sh [LOGS]        LOGS: device-check, made where you are
#
# Runs in the folder of gpu/device/prebuild.sh and needs nothing but bash, coreutils, grep, sed, the
# driver and cuBLAS. It builds nothing and asks no network. Exit: 0 all is well (a tool that does
# not take the device is `not available`, and no failure), 1 something failed, 3 the folder does not
# run here, 77 no device, and says what is missing.
#
# SLM_CHECK=rehearsal: the smoke tier and a small shape, to try this script where `gpu` is the
# emulator.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-device-check}" && logs=$(cd "${1:-device-check}" && pwd) || exit 3
IN_ALL=600 # seconds
began=$SECONDS started=$SECONDS code=0 failed=0
tier=full shape=device seconds=4
[ "${SLM_CHECK:-}" = rehearsal ] && tier=smoke shape=rehearsal seconds=1
table=$logs/table.md
slmoe=$here/bin/slmoe

# ---- where cuBLAS is ----

folders_of_cublas() {
    local root
    for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-*; do
        [ -n "$root" ] && printf '%s\n' "$root/lib64" "$root/lib" "$root/targets/x86_64-linux/lib"
    done
    { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | sed -nE 's,.*libcublas\.so\.[0-9.]+ .*=> (/.*)/[^/]*$,\1,p'
    python3 -c '
import glob, sys
for path in sys.path:
    print(*glob.glob((path or ".") + "/nvidia/*/lib"), sep="\n")' 2>/dev/null
}

find_cublas() {
    local want folder
    want=$(cat "$here/cublas")
    while IFS= read -r folder; do
        [ -e "$folder/$want" ] || continue
        export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        echo "cuBLAS: $folder/$want"
        return
    done < <(folders_of_cublas)
    echo "cuBLAS: $want not found in CUDA_HOME, /usr/local/cuda, the loader's folders and python3's nvidia wheels"
}

# ---- steps ----

row() { # $1: step; $2: verdict; $3: seconds; $4: what it says
    printf '| %s | %s | %s | %s |\n' "$1" "$2" "$3" "${4//|//}" | tee -a "$table"
    case $2 in FAILED | 'time out' | 'not run') failed=1 ;; esac
}

# $1: step; $2: its seconds; rest: command. Its output is $logs/STEP.log, its exit code $code.
run() {
    local name=$1 limit=$2 left=$((IN_ALL - (SECONDS - began)))
    shift 2
    started=$SECONDS
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        code=out
        return
    fi
    timeout --kill-after=5 "$limit" "$@" >"$logs/$name.log" 2>&1 </dev/null
    code=$?
}

took() { echo $((SECONDS - started)); }

# The row of the last run, unless it is all right.
ended() { # $1: step
    case $code in
    out) row "$1" 'not run' 0 "the ten minutes are over" ;;
    124 | 137) row "$1" 'time out' "$(took)" "$(last "$1")" ;;
    *) return 1 ;;
    esac
}
last() { grep -v '^[[:space:]]*$' "$logs/$1.log" | tail -n 1 | cut -c1-160; }

suite() {
    run suite 200 "$slmoe" run -b gpu --tier "$tier" -j 4 --format human --format jsonl="$logs/suite.jsonl"
    ended suite || row suite "$([ "$code" = 0 ] && echo ok || echo FAILED)" "$(took)" "$(last suite)"
}

# One of compute-sanitizer's tools on the smoke tier. That it saw the process which holds the
# kernels is told by the number of its summaries; of none nothing is known.
sanitizer() {
    local tool=$1 found=$logs/$1.findings summaries errors
    if [ -z "$sanitize" ]; then
        row "$tool" 'not available' 0 "compute-sanitizer is not here"
        return
    fi
    rm -f "$found"*
    run "$tool" 60 "$sanitize" --tool "$tool" --target-processes all --log-file "$found.%p" --error-exitcode 86 \
        "$slmoe" run -b gpu --tier smoke --slow 20
    cat "$found".* >>"$logs/$tool.log" 2>/dev/null
    summaries=$(grep -cE '(ERROR|RACECHECK) SUMMARY: ' "$logs/$tool.log")
    errors=$(grep -E '(ERROR|RACECHECK) SUMMARY: ' "$logs/$tool.log" | grep -cvE 'SUMMARY: 0 (errors|hazards)')
    if [ "$code" != 0 ] && grep -qiE 'device (is )?not supported|not supported on (this|the) device|unsupported (device|driver)|unable to (load|find) injection' \
        "$logs/$tool.log"; then
        row "$tool" 'not available' "$(took)" "$(grep -iE 'support|injection' "$logs/$tool.log" | head -n 1 | cut -c1-160)"
    elif ended "$tool"; then
        return
    elif [ "$code" = 0 ] && [ "$summaries" -gt 0 ] && [ "$errors" = 0 ]; then
        row "$tool" ok "$(took)" "$summaries processes, no finding"
    else
        row "$tool" FAILED "$(took)" "exit $code, $summaries summaries, $errors with findings; $logs/$tool.log"
    fi
}

# ref judges 16 tokens of each batch before one is timed: slmoe exits 1 when they are wrong.
bench() {
    run bench 130 "$slmoe" bench -b gpu --shapes "$here/shapes.yaml" --shape "$shape" --dtype f32 --dtype bf16 \
        --seconds "$seconds" --timeout 60 --format table --format jsonl="$logs/bench.jsonl"
    ended bench || row bench "$([ "$code" = 0 ] && echo ok || echo FAILED)" "$(took)" "$(last bench)"
}

# ---- all of it ----

{
    date -u +%Y-%m-%dT%H:%M:%SZ
    uname -srm
    find_cublas
    command -v nvidia-smi >/dev/null &&
        nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 4
} >"$logs/machine.txt"
find_cublas >/dev/null
"$slmoe" --version >"$logs/version.log" 2>&1 ||
    { echo "check: slmoe does not start here: $(tail -n 1 "$logs/version.log")"; exit 3; }
run device 60 "$slmoe" run -b gpu --tier smoke
if [ "$code" = 77 ] || [ "$code" = 4 ]; then
    # Without cuBLAS the library does not load and cannot ask for a device.
    [ "$code" = 77 ] || ! compgen -G '/dev/nvidia[0-9]*' >/dev/null || code=3
    [ "$code" = 3 ] && what="does not run here" || what="no device"
    echo "check: $what: $(grep -m 1 'gpu: ' "$logs/device.log")"
    grep '^cuBLAS' "$logs/machine.txt"
    [ "$code" = 3 ] && exit 3 || exit 77
fi

cat "$logs/machine.txt"
{
    echo
    echo '| step | verdict | seconds | what |'
    echo '|---|---|---:|---|'
} | tee "$table"
ended device || row device "$([ "$code" = 0 ] && echo ok || echo FAILED)" "$(took)" "$(last device)"
if [ "$failed" = 0 ]; then
    sanitize=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    suite
    for tool in memcheck racecheck initcheck synccheck; do sanitizer $tool; done
    bench
fi
echo
[ "$failed" = 0 ] && echo "all is well; logs: $logs" || echo "not all is well; logs: $logs"
exit $failed
