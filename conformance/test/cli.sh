#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tool as its user meets it: exit codes, messages with file:line:column, filters, gen --check, show.
set -u
fail() { echo "cli: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

. "$SOURCE/conformance/test/expect.bash"

# Usage.
expect 2 "$SLMOE"
expect 2 "$SLMOE" dance
expect 2 "$SLMOE" run --tier slow
says stderr 'expected smoke, quick or full'
expect 2 "$SLMOE" run --flavour
expect 2 "$SLMOE" run extra
expect 2 "$SLMOE" run -j 0
expect 2 "$SLMOE" run --shard 5/4
expect 2 "$SLMOE" show
expect 0 "$SLMOE" --help
verbs=$(sed -n 's/^  \([a-z]*\) .*/\1/p' "$out/stdout")
[ "$(echo "$verbs" | wc -w)" -ge 6 ] || fail "--help lists no verbs"
for verb in $verbs; do
    expect 0 "$SLMOE" "$verb" --help
    says stdout "usage: slmoe $verb"
done
expect 0 "$SLMOE" --version
says stdout "specification $(sed -n 's/^| specification.*| \([0-9.]*\) |.*/\1/p' "$SOURCE/spec/CHANGELOG.md"), ABI"
[ "$(sed -n 's/^| vectors.*| \([0-9.]*\) |.*/\1/p' "$SOURCE/spec/CHANGELOG.md")" = "$(sed -n 's/^version //p' "$SOURCE/vectors/MANIFEST")" ] || fail "versions of the vectors"

# A full disk is told by every verb, and leaves no half of a project.
if [ -w /dev/full ]; then
    for verb in --help --version 'run --help' list 'show route/extremes/saturated' 'explain R2' 'probe -b ref' 'gen --check --only situ/tiny/*'; do
        # shellcheck disable=SC2086
        "$SLMOE" $verb >/dev/full 2>"$out/stderr"
        [ $? = 3 ] || fail "slmoe $verb does not mind a full disk"
        grep -q 'cannot be written: No space' "$out/stderr" || fail "slmoe $verb does not say that the disk is full: $(cat "$out/stderr")"
    done
fi
(trap '' XFSZ; ulimit -f 1; exec "$SLMOE" new backend "$out/halved") >"$out/stdout" 2>"$out/stderr"
[ $? = 3 ] || fail "slmoe new must fail where a file may have 1024 bytes"
grep -q 'File too large' "$out/stderr" && [ ! -s "$out/stdout" ] && [ ! -e "$out/halved" ] || fail "slmoe new leaves half a project: $(cat "$out/stdout" "$out/stderr")"

# Nothing executed, unknown backend, unknown case.
expect 5 "$SLMOE" mutants --only 'no/such/*'
expect 2 "$SLMOE" mutants hard-clamp
says stderr "takes no 'hard-clamp'"
expect 2 "$SLMOE" trace hard-clamp

# A handle that grows: its first call is the smallest.
expect 1 "$SLMOE" run -b mutant:sized-by-first-call --only layer/profiles/paper
says stdout 'of 12 on one handle: y[1,0] was never written'
expect 0 "$SLMOE" run -b variant:sequential --only layer/profiles/paper

# What is right alone: other contents on one handle, another handle, taps without the others.
expect 1 "$SLMOE" run -b mutant:first-mask-kept --only qb/sizes/mask-of-100
says stdout 'of 12 on one handle: wrote to cutoff'
expect 1 "$SLMOE" run -b mutant:last-weights-used --only layer/profiles/paper
says stdout 'after a call on another handle: another answer'
expect 1 "$SLMOE" run -b mutant:eps-at-hand --only 'layer/*s*' --max-fail 1
says stdout 'while another thread calls on another handle: another answer'
expect 1 "$SLMOE" run -b mutant:logit-told-as-score --only 'route/sizes/*'
says stdout 'without cutoff, logit: another answer'
expect 1 "$SLMOE" run -b mutant:value-told-as-gradient --only layer/gradient-sizes/width-140
says stdout 'dlogit, dh: another answer'

# The clauses are those of the specification.
cp -r "$SOURCE/vectors" "$out/clauses"
sed -i '0,/clause: \[L2\]/s//clause: [L22]/' "$out/clauses/rmsnorm/values.yaml"
expect 1 "$SLMOE" trace --vectors "$out/clauses" --only 'rmsnorm/values/six-eight'
says stderr 'case rmsnorm/values/six-eight names L22, which the specification does not have'
[ "$(grep -c L22 "$out/stderr")" = 1 ] || fail "a family's clause is told once"
grep -E '^### [A-Z]+[0-9]+ ' "$SOURCE/spec/spec.md" | cut -d' ' -f2 >"$out/headings"
[ "$(wc -l <"$out/headings")" -gt 20 ] || fail "spec.md has no headings"
sed -n 's/^| \([A-Z]*[0-9]*\) |.*/\1/p' "$out/stdout" | diff "$out/headings" - || fail "trace does not list the clauses of spec.md"
expect 0 "$SLMOE" explain
cut -d' ' -f1 "$out/stdout" | diff "$out/headings" - || fail "explain does not list the clauses of spec.md"
SLM_SPEC=/dev/null expect 3 "$SLMOE" explain
says stderr '/dev/null: has no clause'
expect 5 "$SLMOE" list --only 'no/such/*'
says stderr 'no case was selected'
expect 2 "$SLMOE" list --provenance me
says stderr 'expected one of hand document oracle'
expect 2 "$SLMOE" run -b ref --timeout 1e6
says stderr 'above 0 and below 1e6'
expect 2 "$SLMOE" bench --threads 9999
says stderr 'from 1 to 1024'
expect 2 "$SLMOE" bench --op dance
says stderr 'there are: route select'

# Where reports go: nothing is opened when one cannot be, and no file gets two.
echo kept >"$out/kept"
expect 2 "$SLMOE" run -b ref --only 'situ/tiny/*' --format jsonl="$out/kept" --format tap="$out/kept"
says stderr 'that file gets --format jsonl='
expect 2 "$SLMOE" run -b ref --only 'situ/tiny/*' --format jsonl="$out/kept" --format dance
expect 2 "$SLMOE" bench --format jsonl="$out/other" --format svg="$out/other"
[ ! -e "$out/other" ] && [ "$(cat "$out/kept")" = kept ] || fail "a report was opened in vain"
expect 3 "$SLMOE" run -b ref --only 'situ/tiny/*' --format jsonl="$out/no/folder"
says stderr 'no/folder: cannot be written: No such file'
expect 5 "$SLMOE" run -b ref --only 'no/such/*'
says stderr 'nothing was executed'
expect 4 "$SLMOE" run -b rfe
says stderr 'no such backend'
says stderr '-b ./librfe.so'
expect 4 "$SLMOE" run -b ref,cpu
says stderr 'one backend for each -b'
expect 4 "$SLMOE" run -b mutant:nosuch
says stderr 'spec/bugs.md lists mutants'
mv "$out/clauses/rmsnorm/values.yaml" "$out/clauses/rmsnorm/values.yml"
expect 6 "$SLMOE" list --vectors "$out/clauses"
says stderr 'rmsnorm/values.yml: would be left out: name it values.yaml'
expect 2 "$SLMOE" show no/such/case

# In one process, for a debugger: the same verdicts, and it says what they are not.
expect 0 "$SLMOE" run -b ref --tier smoke --in-process
says stdout 'not certifiable'

# A good run, both formats.
expect 0 "$SLMOE" run -b ref --tier smoke
tail -n 1 "$out/stdout" | grep -qE '^[0-9]+ passed, 0 failed, [0-9]+ skipped$' || fail "the last line is the total"
expect 0 "$SLMOE" run -b ref --tier smoke --format jsonl="$out/run.jsonl" --format human
[ "$(grep -c '"kind":"result"' "$out/run.jsonl")" -ge 10 ] || fail "no results as JSON lines"

# The union of four shards is the whole.
expect 0 "$SLMOE" run -b ref --only 'select/*' --once --format tap="$out/whole"
for i in 1 2 3 4; do expect 0 "$SLMOE" run -b ref --only 'select/*' --once --shard $i/4 --format tap="$out/part$i"; done
names() { grep -hoE 'select/[^ ]+' "$@" | sort; }
[ "$(names "$out/whole")" = "$(names "$out"/part?)" ] || fail "shards do not add up to the whole"

# Reports that other tools read.
expect 1 "$SLMOE" run -b mutant:hard-clamp --only 'situ/*' --format junit="$out/junit.xml" --format tap13="$out/tap" --format tap="$out/tap14"
if command -v xmllint >/dev/null; then
    xmllint --noout --schema "$SOURCE/conformance/test/junit.xsd" "$out/junit.xml" 2>"$out/stderr" || { cat "$out/stderr"; fail "JUnit is not valid"; }
fi
if command -v prove >/dev/null; then
    prove -e cat "$out/tap" >"$out/stdout" 2>&1 && fail "prove must see the failures"
    grep -q 'Parse errors' "$out/stdout" && { cat "$out/stdout"; fail "prove cannot parse the TAP"; }
fi
head -n 1 "$out/tap14" | grep -qx 'TAP version 14' || fail "TAP 14 says so"

# 256 failures are no success: exit codes are not counts.
mkdir -p "$out/many/situ"
{
    printf '%s\n' 'schema: slm-vector/1' 'family: situ/many' 'about: the same value 256 times' 'clause: [L1]' 'config: {f: 1}' 'in:' \
        '  gate_up: {shape: [1, 2], data: [0x1.8p+1, 0x1p+0]}' 'cases:'
    for i in $(seq 256); do printf '  - id: c%d\n    op: situ_glu\n    provenance: ref\n    out:\n      h: pending\n' "$i"; done
} >"$out/many/situ/many.yaml"
expect 0 "$SLMOE" gen --vectors "$out/many"
expect 1 "$SLMOE" run -b mutant:hard-clamp --vectors "$out/many" -j 2
says stdout '0 passed, 256 failed, 0 skipped'
expect 0 "$SLMOE" run -b variant:sequential --vectors "$out/many" -j 2
for jobs in 1 2; do
    expect 1 "$SLMOE" run -b mutant:hard-clamp --vectors "$out/many" -j $jobs --max-fail 3
    says stdout '0 passed, 3 failed, 0 skipped'
    says stderr 'stopped by --max-fail 3; 253 of 256 cases were not judged'
done
expect 2 "$SLMOE" run --max-fail 0

# A fault of reuse needs repetitions, which --once leaves out, and says so.
expect 0 "$SLMOE" run -b mutant:last-weights-used --only layer/profiles/paper --once
expect 0 "$SLMOE" run -b ref --only 'rmsnorm/eps/*' --once --format human --format jsonl="$out/once" --format junit="$out/once.xml"
says stdout '(one call a case: not certifiable)'
grep -q '"certifiable":false.*"selection":"--only .rmsnorm/eps/\*. --once"' "$out/once" || fail "--once stands in no run"
grep -q '"certifiable" value="false"' "$out/once.xml" || fail "--once stands in no JUnit"
expect 1 "$SLMOE" run -b mutant:hard-clamp --only 'situ/*' --once

# A case as people read it; a clause.
expect 0 "$SLMOE" show qb/documents/seed-21
says stdout '0x1.c33664p-2 (0.4406372)'
says stdout 'cutoff [8]'
says stdout 'candidate [4]'
says stdout '-0x1.e2eaecp-5'
says stdout 'load before [3, 0, 2, 3]'
says stdout 'load after  [2, 2, 2, 2]'
says stdout 'lower-id rule'
expect 0 "$SLMOE" explain R2
says stdout 'RN32'
expect 2 "$SLMOE" explain R99
expect 0 "$SLMOE" list --only 'select/mixture/*'

# Golden values: one changed digit, of any provenance, is seen and named.
cp -r "$SOURCE/vectors" "$out/vectors"
mutate() { # $1: file; $2: sed script; $3: case; $4: field
    cp "$SOURCE/vectors/$1" "$out/vectors/$1"
    sed -i "$2" "$out/vectors/$1"
    cmp -s "$SOURCE/vectors/$1" "$out/vectors/$1" && fail "$1: the script '$2' changed nothing"
    expect 1 "$SLMOE" gen --check --vectors "$out/vectors" --only "${3%/*}/*"
    says stdout "$1"
    says stdout "case $3"
    says stdout "$4"
    cp "$SOURCE/vectors/$1" "$out/vectors/$1"
}
mutate select/mixture.yaml 's/0x1.cb08d30185a18p-2/0x1.cb08d30185a19p-2/' select/mixture/chapter-45-55 out.weight # document
mutate select/mixture.yaml 's/0x1.cb08d3dcb08d4p-2/0x1.cb08d3dcb08d5p-2/' select/mixture/dyadic-45-55 out.weight  # hand
mutate layer/taps.yaml '0,/0x1.72a42ap-1/s//0x1.72a42cp-1/' layer/taps/paper out.cutoff                                          # ref
mutate situ/values.yaml '/provenance: oracle/,/out:/!s/0x1\.\([0-9a-f]*\)1p/0x1.\12p/' situ/values/ out.h          # oracle

# Files that are not what they should be: exit 6, and where.
bad() { # $1: text of the cases part; $2: what is said
    mkdir -p "$out/bad/select"
    printf '%s\n' 'schema: slm-vector/1' 'family: select/bad' 'about: a file that is not right' 'clause: [R2]' 'cases:' "$1" >"$out/bad/select/bad.yaml"
    expect 6 "$SLMOE" run -b ref --vectors "$out/bad"
    grep -qE 'select/bad\.yaml:[0-9]+:[0-9]+: ' "$out/stderr" || { cat "$out/stderr"; fail "no file:line:column"; }
    says stderr "$2"
}
case_with() { # $1: config; $2: bias; $3: rest
    printf '  - id: a\n    op: select\n    provenance: hand\n    config: %s\n    in:\n      score: {shape: [1, 2], data: [0x1p-1, 0x1p-2]}\n      bias: %s\n    out:\n      ids: {shape: [1, 1], data: [0]}\n%s' "$1" "$2" "${3:-}"
}
good='{shape: [2], data: [0x0p+0, 0x0p+0]}'
bad "$(case_with '{n: 2, n: 2, k: 1}' "$good")" 'duplicate key'
bad "$(case_with '{n: 2, k: 1}' "$good" '    colour: red')" 'unknown key'
bad "$(case_with '{n: 2, k: 1}' '{shape: [2], data: [0x0p+0]}')" 'needs 2 values, got 1'
bad "$(case_with '{n: 2, k: 1}' '{shape: [2], data: [0.5, 0x0p+0]}')" 'is decimal'
bad "$(case_with '{n: 2, k: 1}' '&b {shape: [2], data: [0x0p+0, 0x0p+0]}')" 'anchors are not allowed'

# Expected failures are strict.
printf '# none\n' >"$out/none"
expect 0 "$SLMOE" run -b ref --tier smoke --xfail "$out/none"
expect 2 "$SLMOE" run -b ref --tier smoke --xfail "$out"
says stderr 'cannot be read: Is a directory'
xfail_bad() { # $1: its third line; $2: column; $3: words of the message
    printf '# two\n\n%s\n' "$1" >"$out/untracked"
    expect 2 "$SLMOE" run -b ref --tier smoke --xfail "$out/untracked"
    says stderr "untracked:3:$2: "
    says stderr "$3"
}
xfail_bad 'select/mixture/*' 17 'expected GLOB STATE TRACKER, STATE one of'
xfail_bad 'select/mixture/* PASS acme#1' 18 'STATE one of'
xfail_bad 'select/mixture/* FAIL' 22 'no tracker'
for none in :// https:// '#1' acme# acme#x; do xfail_bad "  select/mixture/* FAIL $none" 25 'no tracker'; done
xfail_bad 'select/mixture/* FAIL acme#1 now' 30 'nothing more'
xfail_bad "$(printf 'select/mixture/* FAIL acme#1%2000s now' '')" 2030 'nothing more'
printf 'no/such/case FAIL acme#1\n' >"$out/stale"
expect 1 "$SLMOE" run -b ref --tier smoke --xfail "$out/stale"
says stderr 'matches no case'
printf 'select/mixture/chapter-45-55 FAIL acme#1\n' >"$out/passes"
expect 1 "$SLMOE" run -b ref --only 'select/mixture/*' --xfail "$out/passes"
says stdout 'XPASS'
echo "cli: exit codes, messages, filters, shards, golden values and expected failures hold"
