#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manual knows every verb, option and exit code, and formats without a warning; spec/bugs.md lists the mutants of today;
# relative links of the documents lead somewhere.
set -u
cd "$SOURCE" || exit 1
fail() { echo "docs: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

manual=conformance/slmoe.1
if command -v groff >/dev/null; then
    groff -man -ww -z -Tutf8 "$manual" 2>"$out/warnings" || fail "groff cannot format $manual"
    [ ! -s "$out/warnings" ] || { cat "$out/warnings"; fail "$manual has warnings"; }
fi
plain=$(sed -e 's/\\-/-/g' -e 's/\\f[BIR]//g' "$manual")
"$SLMOE" --help >"$out/help" || fail "no --help"
verbs=$(sed -n 's/^  \([a-z]*\) .*/\1/p' "$out/help")
for verb in $verbs; do
    grep -qx "\.B $verb" <<<"$plain" || fail "$manual does not describe the verb $verb"
    "$SLMOE" "$verb" --help >>"$out/help" || fail "no help of $verb"
done
for option in $(grep -oE -- '--[a-z][a-z-]+' "$out/help" | sort -u); do
    grep -qE -- "^\.(TP|B|BI|BR) .*$option( |\[|\$)" <<<"$plain" || fail "$manual does not describe $option"
done
for code in $(sed -n '/^exit:/,$p' "$out/help" | grep -oE '(^exit: |, |^      )[0-9]+ ' | grep -oE '[0-9]+' | sort -u); do
    grep -qx "\.B $code" <<<"$plain" || fail "$manual does not list exit code $code"
done

conformance/bugs.sh >"$out/bugs.md" || fail "conformance/bugs.sh failed"
diff "$out/bugs.md" spec/bugs.md || fail "spec/bugs.md is old: conformance/bugs.sh >spec/bugs.md"

broken=$(for page in README.md spec/*.md; do
    grep -oE '\]\([^)#: ]+(#[^)]*)?\)' "$page" | sed -E 's/^\]\(([^)#]*).*/\1/' | while read -r target; do
        [ -e "$(dirname "$page")/$target" ] || echo "$page: $target is not there"
    done
done)
[ -z "$broken" ] || { echo "$broken"; fail "a link leads nowhere"; }
echo "docs: manual, bugs and links are those of this tree"
