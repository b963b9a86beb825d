#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# spec/public-cases.md is of today: every public report stands in the suite, passes on every built-in backend and its mutants die.
# The script that says so refuses a mapping that lacks something; all else takes a minute, with LONG=1 only.
set -u
cd "$SOURCE" || exit 1
fail() { echo "public_cases: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

# $1: what is changed, as a sed command; $2: what must be said
refuses() {
    sed -E "$1" conformance/public_cases.yaml >"$out/cases.yaml"
    cmp -s "$out/cases.yaml" conformance/public_cases.yaml && fail "'$1' changes nothing"
    CASES=$out/cases.yaml conformance/public_cases.sh >"$out/page" 2>"$out/told" && fail "'$1' is accepted"
    grep -qF "$2" "$out/told" || { cat "$out/told"; fail "'$1' is refused for another reason"; }
    [ ! -s "$out/page" ] || fail "'$1' is refused after a page"
}
refuses '/^O39:/,$d' '38 cases, 39 expected'
refuses 's|select/public-underflow/|select/public-overflow/|' 'O02: no vector select/public-overflow/*'
refuses 's/- zero-over-zero$/- zero-over-one/' 'O02: no mutant zero-over-one'
refuses '/^O01:/,/^O02:/{/ https:/d}' 'O01 needs a title, links, mutants'
refuses 's|pull/12002|commit/12002|' 'O01: no link'

[ -n "${LONG:-}" ] || { echo "public_cases: the mapping is whole; the page is made anew by conformance/quickstart test --long"; exit 0; }
conformance/public_cases.sh >"$out/page" || fail "a case does not stand"
columns() { sed -n 's/^| case |.*| how many | \(.*\) | killed by them |$/\1/p' "$1"; }
if [ "$(columns "$out/page")" != "$(columns spec/public-cases.md)" ]; then
    echo "public_cases: every case stands; this build has other backends ($(columns "$out/page")), the page was not compared"
    exit 0
fi
diff "$out/page" spec/public-cases.md || fail "spec/public-cases.md is old: conformance/public_cases.sh >spec/public-cases.md"
echo "public_cases: every case stands, and the page says so"
