#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu/check/resources.sh - what ptxas gave each kernel; a line a kernel and generation:
#
#   KERNEL SM REGISTERS STATIC_SHARED STACK
#
#   gpu/check/resources.sh LOG...          logs of nvcc.sh
set -eu
cat "$@" | c++filt | awk '
/Compiling entry function/ {
    name = $0
    sub(/^[^\x27]*\x27(void )?/, "", name)
    sub(/\(anonymous namespace\)::/, "", name)
    sub(/\(.*/, "", name)
    gsub(/, /, ",", name)
    gsub(/ /, "_", name)
    sm = $0
    sub(/.*\x27sm_/, "", sm)
    sm += 0
    stack = "?"
}
/bytes stack frame/ { if (stack == "?") stack = $1 + $5 + $9 }
/Used [0-9]+ registers/ {
    registers = $0
    sub(/.*Used /, "", registers)
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
    print name, sm, registers + 0, shared, stack
}' | LC_ALL=C sort -k1,1 -k2,2n
