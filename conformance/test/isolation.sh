#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A fault of a backend costs its own case, with the right state and words, and no other: the other cases of the run
# pass, and the run ends in time with exit code 1.
set -u
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
# A sanitized host is to die as any other does.
export ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_abort=0:detect_leaks=0
failed=0
fail() { echo "isolation: $*"; failed=1; }

build() { "$CC" -std=c17 -O1 -fPIC -shared -fno-stack-protector -I "$SOURCE/spec/include" "$@" "$SOURCE/conformance/test/plugin/faulty.c" -lm; }
build -o "$out/faulty.so" || { echo "isolation: the plug-in does not compile"; exit 1; }

count() { grep -c "$1" "$out/jsonl"; }

# $1: fault; $2: state of the faulty case; $3: words of its line (a basic regular expression); all else has to pass.
try() {
    local code want=1 line
    [ "$2" = PASS ] || [ "$2" = SKIP ] && want=0
    : >"$out/jsonl"
    SLM_FAULT=$1 timeout 60 "$SLMOE" run -b "$out/${4:-faulty.so}" --only 'rmsnorm/widths/*' --timeout "$limit" --format jsonl="$out/jsonl" \
        --format human="$out/human" >"$out/stdout" 2>"$out/stderr"
    code=$?
    [ $code = $want ] || fail "$1: exit code $code, expected $want"
    line=$(grep '"case":"rmsnorm/widths/thirty-three"' "$out/jsonl")
    [[ $line == *"\"state\":\"$2\""* ]] || fail "$1: not $2: $line"
    grep -q -- "$3" <<<"$line" || fail "$1: says nothing of '$3': $line"
    local all rest
    all=$(count '"kind":"result"')
    rest=$(count '"state":"PASS"')
    [ "$2" = PASS ] && rest=$((rest - 1))
    [ "$all" -ge 6 ] && [ "$rest" = $((all - 1)) ] || fail "$1: $rest of $((all - 1)) other cases passed"
}
limit=1
x86() { [ "$(uname -m)" = x86_64 ]; }

try none PASS ''
[ $failed = 0 ] || exit 1

# memory
if x86; then
    try segfault CRASH 'died of signal 11 .*wrote outside of every argument'
    try write-past CRASH 'wrote 0 bytes past the end of r'
    try read-past CRASH 'read 0 bytes past the end of u'
    try write-input CRASH 'wrote into u, which is an input'
    try unaligned CRASH 'died of signal 11'
    try flush FAIL 'rounding mode or flush-to-zero'
else
    try segfault CRASH 'died of signal 11'
    try write-past CRASH 'past the end of r'
    try read-past CRASH 'past the end of u'
    try write-input CRASH 'into u, which is an input'
fi
try recurse CRASH 'died of signal 11'
limit=20
try leak FAIL 'kept 5[0-9][0-9] MiB of memory after close(): a leak'
limit=1
try workspace-huge FAIL 'asks for 18446744073709551615 bytes of workspace'
# Strides are claimed: rows further apart than 32 bits count, where this process and the host have address space for them.
roomy=1
[ "$(ulimit -v)" = unlimited ] || roomy=
[ -z "$roomy" ] || try offsets-cut FAIL 'with rows 2^32 elements apart'
[ "${SANITIZED:-}" = ON ] || try no-address-space PASS ''

# the process
try exit CRASH 'exited with 0'
try abort CRASH 'died of signal 6'
try kill CRASH 'died of signal 9'
try divide CRASH 'died of signal 8'
try stop TIMEOUT 'no answer within 1 s'
try hang TIMEOUT 'no answer within 1 s'
try close-descriptors CRASH 'exited with 3'
try close-output PASS ''
try fork PASS ''
try fork-and-return PASS ''
try fork-and-crash PASS ''
try fork-then-crash CRASH 'died of signal 11'
try rounding FAIL 'rounding mode or flush-to-zero'

# what it says
try print PASS 'words on standard output.*words on standard error\|words on standard error.*words on standard output'
try print-json PASS '"output"'
try print-bytes PASS '??.*words'
try print-much PASS 'a line that says nothing'
try print-forever TIMEOUT 'no answer within 1 s'
try progress-forever TIMEOUT 'no answer within 1 s'
try reply-garbage FAIL 'its reply is not a line of JSON'
try reply-half FAIL 'its reply is not a line of JSON'
try reply-twice FAIL 'out of place'
try unknown-status FAIL 'a status that slm_status does not have: 77'
try negative-status FAIL 'a status that slm_status does not have: -1'
try unsupported FAIL 'SLM_ERR_UNSUPPORTED'
try unterminated FAIL 'SLM_ERR_INTERNAL'

# around the call
try supports-crash CRASH 'died of signal 11'
try supports-hang TIMEOUT 'no answer within 1 s'
try no-reason SKIP '"reason"'
try workspace-crash CRASH 'died of signal 11'
try workspace-hang TIMEOUT 'no answer within 1 s'
try open-crash CRASH 'died of signal 11'
try open-hang TIMEOUT 'no answer within 1 s'
try open-refuses FAIL 'SLM_ERR_MEMORY'
try close-crash CRASH 'died of signal 11'
try close-hang TIMEOUT 'no answer within 1 s'
try second-refuses FAIL 'opening a second handle: SLM_ERR_MEMORY'
try second-crash CRASH 'opening a second handle: .*died of signal 11'
try second-hang TIMEOUT 'opening a second handle: no answer within 1 s'
try second-close-crash CRASH 'closing a second handle: .*died of signal 11'
try second-close-hang TIMEOUT 'closing a second handle: no answer within 1 s'

# A library linked with -ffast-math turns flush-to-zero on while it loads: neither the judge nor other cases feel it.
build -ffast-math -fno-finite-math-only -o "$out/fast.so" || fail "no build with -ffast-math"
try none PASS '' fast.so

# What dies while it loads cannot be judged.
SLM_FAULT=load-crash timeout 60 "$SLMOE" run -b "$out/faulty.so" --only 'rmsnorm/widths/*' >"$out/stdout" 2>"$out/stderr"
[ $? = 4 ] && grep -q 'did not say hello: died of signal 11' "$out/stderr" || fail "load-crash: $(cat "$out/stderr")"

# Nothing is left behind, of the fault `fork` least of all.
if command -v pgrep >/dev/null && pgrep -f "slmoe-host $out/" >/dev/null; then fail "processes are left: $(pgrep -af "slmoe-host $out/")"; fi
[ $failed = 0 ] && echo "isolation: each fault cost its own case alone"
exit $failed
