#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run becomes a page that is well-formed, whole or not there, and asks the network for nothing; two runs are compared.
set -u
fail() { echo "report: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
export SOURCE_DATE_EPOCH=1700000000

# $1: exit code; rest: command.
expect() {
    local want=$1 got
    shift
    "$@" >"$out/stdout" 2>"$out/stderr"
    got=$?
    [ "$got" = "$want" ] || { cat "$out/stdout" "$out/stderr"; fail "'$*' exited $got, expected $want"; }
}
says() { grep -qF -- "$2" "$out/$1" || { cat "$out/$1"; fail "$1 does not say: $2"; }; }

expect 0 "$SLMOE" run -b ref --tier smoke --format jsonl="$out/good.jsonl"
expect 1 "$SLMOE" run -b mutant:hard-clamp --only 'situ/*' --format jsonl="$out/bad.jsonl"
expect 0 "$SLMOE" run -b mutant:bias-ignored --only 'situ/*' --format jsonl="$out/right.jsonl"

# A page says what its run says, and the same run gives the same page.
for run in good bad; do
    expect 0 "$SLMOE" report "$out/$run.jsonl" --html="$out/$run.html"
    expect 0 "$SLMOE" report --html "$out/$run.jsonl"
    cmp -s "$out/stdout" "$out/$run.html" || fail "$run: stdout and file differ"
    if command -v xmllint >/dev/null; then xmllint --noout "$out/$run.html" || fail "$run: the page is not well-formed"; fi
done
grep -q '<strong>Conforms</strong>' "$out/good.html" || fail "the right run conforms"
grep -q '2023-11-14T22:13:20Z' "$out/good.html" || fail "the date is not that of SOURCE_DATE_EPOCH"
grep -q 'balanced load 2' "$out/good.html" || fail "no loads are drawn"
grep -q '<strong>Does not conform</strong>' "$out/bad.html" || fail "the mutant does not conform"
grep -q 'hard-clamp</code>' "$out/bad.html" || fail "the nearest mutant is not named"
failures=$(grep -c '"state":"FAIL"' "$out/bad.jsonl")
[ "$(grep -c '<details class="failure item"' "$out/bad.html")" = "$failures" ] || fail "not every one of $failures failures is told"
[ "$(grep -c '<tr class="item"' "$out/good.html")" = "$(grep -c '"kind":"result"' "$out/good.jsonl")" ] || fail "not every case is listed"

# Two runs.
expect 0 "$SLMOE" diff "$out/right.jsonl" "$out/right.jsonl"
says stdout '0 worse, 0 better, 0 changed, 0 new, 0 gone'
expect 1 "$SLMOE" diff "$out/right.jsonl" "$out/bad.jsonl"
says stdout 'PASS -> FAIL'
says stdout 'again: slmoe run -b mutant:hard-clamp'

# What it prints to be pasted can be pasted, whatever the names are.
mkdir "$out/it's" && cp -r "$SOURCE/vectors" "$out/it's/vectors"
expect 1 "$SLMOE" run -b mutant:hard-clamp --vectors "$out/it's/vectors" --only 'situ/*'
again=$(sed -n 's/^ *again: slmoe //p' "$out/stdout" | head -n 1)
expect 1 sh -c "'$SLMOE' $again"
says stdout '1 failed'
expect 0 "$SLMOE" diff "$out/bad.jsonl" "$out/right.jsonl"
says stdout 'FAIL -> PASS'

# Not a run, half a run, nowhere to write: exit code, place, what to do; and no file is touched.
expect 2 "$SLMOE" report "$out/good.jsonl"
expect 2 "$SLMOE" report --html="$out/x.html"
expect 2 "$SLMOE" diff "$out/good.jsonl"
expect 2 "$SLMOE" report "$out/none.jsonl" --html="$out/x.html"
head -n 5 "$out/good.jsonl" >"$out/half.jsonl"
cp "$out/good.html" "$out/kept.html"
expect 2 "$SLMOE" report "$out/half.jsonl" --html="$out/kept.html"
says stderr 'half.jsonl:5: the file ends before its total'
says stderr '--format jsonl=FILE'
expect 2 "$SLMOE" diff "$out/good.jsonl" "$out/half.jsonl"
expect 3 "$SLMOE" report "$out/good.jsonl" --html="$out/no/folder/x.html"
mkdir "$out/folder"
expect 3 "$SLMOE" report "$out/good.jsonl" --html="$out/folder"
cmp -s "$out/good.html" "$out/kept.html" || fail "a page was touched without a run"
ls "$out" | grep -q 'html\..' && fail "a temporary file is left behind"
ln -s kept.html "$out/link.html"
expect 0 "$SLMOE" report "$out/bad.jsonl" --html="$out/link.html"
[ -L "$out/link.html" ] && cmp -s "$out/bad.html" "$out/kept.html" || fail "a link was replaced by a file"
mkfifo "$out/pipe.html"
cat "$out/pipe.html" >"$out/piped.html" &
expect 0 "$SLMOE" report "$out/good.jsonl" --html="$out/pipe.html"
wait
[ -p "$out/pipe.html" ] && cmp -s "$out/good.html" "$out/piped.html" || fail "a pipe did not take the page"
if [ -w /dev/full ]; then "$SLMOE" report "$out/good.jsonl" --html >/dev/full 2>/dev/null; [ $? = 3 ] || fail "a full disk must be told"; fi

# In a browser: the filter answers, and a policy that forbids all that is not in the page has nothing to object to.
open_page() { # $1: address
    timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$out/profile" --enable-logging=stderr --v=0 \
        --dump-dom "$1" >"$out/stdout" 2>"$out/stderr"
}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ] || ! open_page about:blank; then
    echo "report: pages and differences hold; skipped: no browser here to open a page in"
    exit 0
fi
policy="<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\"/>"
probe="<script>
var input = document.querySelector('.filter input');
input.value = 'clause:L1';
input.dispatchEvent(new Event('input'));
var all = document.querySelectorAll('.failure:not([hidden])').length;
input.value = 'no such words';
input.dispatchEvent(new Event('input'));
var none = document.querySelectorAll('.failure:not([hidden])').length;
document.title = 'shown ' + all + ', then ' + none;
</script>"
page=$(<"$out/bad.html")
page=${page/'<meta charset="utf-8"/>'/"<meta charset=\"utf-8\"/>$policy"}
printf '%s' "${page/'</body>'/"$probe</body>"}" >"$out/probe.html"
open_page "file://$out/probe.html" || { cat "$out/stderr"; fail "the page cannot be opened"; }
grep CONSOLE "$out/stderr" && fail "the page complains in its console"
says stdout "<title>shown $failures, then 0</title>"
# That a request would be seen.
printf '%s' "${page/'</body>'/'<img src="https://example.invalid/x.png"/></body>'}" >"$out/probe.html"
open_page "file://$out/probe.html"
grep -q CONSOLE "$out/stderr" || fail "a request to the outside is not noticed"
echo "report: pages and differences hold, in a browser too"
