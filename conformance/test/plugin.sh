#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A plug-in in C, built here with one compiler command against the public headers, is judged: the right one conforms,
# the wrong one is caught at its stage, one of another ABI is refused.
set -u
fail() { echo "plugin: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

expect() { # $1: exit code; rest: command
    local want=$1 got
    shift
    "$@" >"$out/stdout" 2>"$out/stderr"
    got=$?
    [ "$got" = "$want" ] || { cat "$out/stdout" "$out/stderr"; fail "'$*' exited $got, expected $want"; }
}

flags=()
[ "${SANITIZED:-}" = ON ] && flags=(-fsanitize=address,undefined)
build() { "$CC" -std=c99 -O2 -fPIC -shared "${flags[@]}" -I "$SOURCE/spec/include" "$@" "$SOURCE/conformance/test/plugin/acme.c" -lm; }
build -o "$out/acme.so" || fail "the plug-in does not compile as C99"
expect 0 "$SLMOE" run -b "$out/acme.so" --only 'situ/*' --only 'rmsnorm/*'
grep -q ' 0 failed' "$out/stdout" || fail "no summary"
expect 0 "$SLMOE" run -v -b "$out/acme.so" --only 'situ/*' --only 'select/*'
grep -q 'the backend has no `select`' "$out/stdout" || fail "a missing operation must be skipped with its reason"
expect 0 "$SLMOE" probe -b "$out/acme.so"
grep -q '"acme 0.1"' "$out/stdout" || fail "probe must name it"

build -DACME_WRONG -o "$out/wrong.so" || fail "the wrong one does not compile"
expect 1 "$SLMOE" run -b "$out/wrong.so" --only 'situ/*'
grep -q 'L1  stage h' "$out/stdout" || fail "the clause and the stage must be named"
grep -q "again: slmoe run -b $out/wrong.so --only 'situ/" "$out/stdout" || fail "the repeating command must be printed"

build -DACME_ABI=99 -o "$out/other.so" || fail "the other ABI does not compile"
expect 4 "$SLMOE" run -b "$out/other.so"
grep -q 'speaks ABI 99, this harness ABI 1' "$out/stderr" || fail "the ABI message"
expect 4 "$SLMOE" run -b "$out/missing.so"
echo "plugin: judged through dlopen"
