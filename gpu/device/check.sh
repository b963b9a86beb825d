#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh - everything that only a device can show, in ten minutes: a table on stdout, logs in a
# folder.
#
#   check.sh [LOGS [STEP...]]      LOGS: device-check, made where you are; STEP: a row of the table
#                                  instead of all, `device` always comes first
#
# Runs in the folder of gpu/device/prebuild.sh and needs nothing but bash, coreutils, grep, sed, awk,
# the driver and cuBLAS. It builds nothing and asks no network. Exit: 0 all is well (a tool that does
# not take the device is `not available`, and no failure), 1 something failed, 3 the folder does not
# run here, 77 no device, and says what is missing.
#
# SLM_CHECK=rehearsal: the smoke tier and a small shape, to try this script where `gpu` is the
# emulator. SLM_CHECK_TORCH=cpu: PyTorch's part on the CPU, for the same reason.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-device-check}" && logs=$(cd "${1:-device-check}" && pwd) || exit 3
[ $# = 0 ] || shift
ALL=(suite bench-decode bench-prefill bench-route bench-tail bench memcheck racecheck initcheck synccheck)
steps=("$@")
[ $# -gt 0 ] || steps=("${ALL[@]}")
for step in "${steps[@]}"; do
    [[ " ${ALL[*]} " == *" $step "* ]] || { echo "check: $step is no step; there are: ${ALL[*]}"; exit 3; }
done
IN_ALL=600 # seconds
began=$SECONDS started=$SECONDS code=0 failed=0
tier=full seconds=3
[ "${SLM_CHECK:-}" = rehearsal ] && tier=smoke seconds=0.3
table=$logs/table.md
slmoe=$here/bin/slmoe
loaded=${LD_LIBRARY_PATH:-}

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
    run suite 150 "$slmoe" run -b gpu --tier "$tier" -j 4 --format human --format jsonl="$logs/suite.jsonl"
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

# What PyTorch's peer is called with; empty, and a row says why, where there is none.
find_torch() {
    local device=${SLM_CHECK_TORCH:-cuda}
    torch=
    started=$SECONDS
    export PYTHONPATH="$here/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
    if LD_LIBRARY_PATH=$loaded timeout 60 python3 -c '
import sys, numpy, torch
assert sys.argv[1] == "cpu" or torch.cuda.is_available(), "this PyTorch has no CUDA device"
print(torch.__version__, torch.version.cuda)' "$device" >"$logs/torch.log" 2>&1; then
        torch="cmd:env LD_LIBRARY_PATH='$loaded' python3 -m slm.serve slm.torch_peer:TorchPeer device=$device"
        row torch ok "$(took)" "PyTorch $(last torch)"
    else
        row torch 'not available' "$(took)" "$(last torch)"
    fi
}

# $1: step; $2: its seconds; $3: shape; $4: dtypes; $5: batch sizes of a rehearsal; rest: operations,
# or none: the layer beside its peers. slmoe exits 1 when what is to be timed is wrong.
bench() {
    local step=$1 limit=$2 shape=$3 dtype tokens=$5 options=()
    for dtype in $4; do options+=(--dtype "$dtype"); done
    if [ $# = 5 ]; then
        options+=(-b gpu-loop)
        [ "$step" != bench ] && [ -n "$torch" ] && options+=(-b "$torch dtype=$dtype")
        options+=(--vs gpu)
    fi
    for op in "${@:6}"; do options+=(--op "$op"); done
    [ "${SLM_CHECK:-}" = rehearsal ] && shape=rehearsal options+=(--tokens "$tokens")
    run "$step" "$limit" "$slmoe" bench -b gpu "${options[@]}" --shapes "$here/shapes.yaml" --shape "$shape" \
        --seconds "$seconds" --timeout 100 --format table --format jsonl="$logs/$step.jsonl"
    case $code in
    0) row "$step" ok "$(took)" "$(awk -f "$here/summary.awk" "$logs/$step.jsonl")" ;;
    124 | 137) row "$step" 'time out' "$(took)" "so far $(awk -f "$here/summary.awk" "$logs/$step.jsonl")" ;;
    *) ended "$step" || row "$step" FAILED "$(took)" "$(last "$step")" ;;
    esac
}

step() { # $1: its name
    case $1 in
    suite) suite ;;
    bench-decode) bench "$1" 130 k3-decode bf16 1,4 ;;
    bench-prefill) bench "$1" 180 k3-prefill bf16 64 ;;
    bench-route) bench "$1" 50 k3-route bf16 32 route ;;
    bench-tail) bench "$1" 60 k3-tail f32 32 select qb_exact qb_hist_accumulate ;;
    bench) bench "$1" 60 device 'f32 bf16' 32 ;;
    *) sanitizer "$1" ;;
    esac
}

# What the device did, and who else used it.
look() {
    command -v nvidia-smi >/dev/null || return
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu,power.draw \
        --format=csv,noheader 2>&1 | head -n 4
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader 2>&1 | head -n 8
}

# ---- all of it ----

{
    date -u +%Y-%m-%dT%H:%M:%SZ
    uname -srm
    find_cublas
    look
} >"$logs/machine.txt"
find_cublas >/dev/null
"$slmoe" --version >"$logs/version.log" 2>&1 ||
    { echo "check: slmoe does not start here: $(tail -n 1 "$logs/version.log")"; exit 3; }
run device 60 "$slmoe" run -b gpu --tier smoke
if [ "$code" = 77 ] || [ "$code" = 4 ]; then
    # A library that is broken; or a device is here, and the software that comes with one is not.
    what="no device"
    [ "$code" = 77 ] && ! { compgen -G '/dev/nvidia[0-9]*' >/dev/null && grep -q 'gpu: .*: lib' "$logs/device.log"; } ||
        what="does not run here"
    echo "check: $what: $(grep -m 1 'gpu: ' "$logs/device.log")"
    grep '^cuBLAS' "$logs/machine.txt"
    [ "$what" = "no device" ] && exit 77 || exit 3
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
    torch=
    [[ " ${steps[*]} " == *" bench-"* ]] && find_torch
    for step in "${steps[@]}"; do step "$step"; done
    look >"$logs/machine-after.txt"
fi
echo
[ "$failed" = 0 ] && echo "all is well; logs: $logs" || echo "not all is well; logs: $logs"
exit $failed
