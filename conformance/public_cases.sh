#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# conformance/public_cases.sh - spec/public-cases.md from conformance/public_cases.yaml and a run; prints it.
#
#   conformance/public_cases.sh >spec/public-cases.md      after a build in build/; SLMOE, BUILD: slmoe, the folder of its tests
#
# Runs the vectors and the tests of every case on every built-in backend, and every mutant on the vectors that must kill it.
# Exits with 1 and says why when a case has no vector or test, a vector or test is not there or does not pass, no vector of a
# case has one of its links as source, or a mutant lives. CASES: another file than conformance/public_cases.yaml.
set -u
cd "$(dirname "$0")/.." || exit 1
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # a busy machine
CASES=${CASES:-conformance/public_cases.yaml} SLMOE=${SLMOE:-$PWD/build/slmoe} BUILD=${BUILD:-$PWD/build/conformance/test}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "public_cases: $*" >&2; exit 1; }

# CASE TAB KEY TAB VALUE, a list item each.
awk '
function put(key, value) { gsub(/^"|"$/, "", value); print id "\t" key "\t" value; n[id, key]++ }
/^#/ || /^$/ { next }
/^O[0-9][0-9]:$/ { if (scope != "") put("scope", scope); scope = ""; id = substr($1, 1, 3); ids[++count] = id; next }
/^  title: / { sub(/^  title: /, ""); put("title", $0); next }
/^  scope: >-$/ { key = "scope"; next }
/^  (links|vectors|tests|mutants):$/ { key = substr($1, 1, length($1) - 1); next }
/^    - / && key != "scope" { sub(/^    - /, ""); put(key, $0); next }
/^    [^ ]/ && key == "scope" { sub(/^ +/, ""); scope = scope (scope == "" ? "" : " ") $0; next }
{ print "public_cases: " FILENAME ":" FNR ": " $0 >"/dev/stderr"; bad = 1 }
END {
    if (scope != "") put("scope", scope)
    for (i = 1; i <= count; i++) {
        id = ids[i]
        if (id != sprintf("O%02d", i)) { print "public_cases: expected O" i ", got " id >"/dev/stderr"; bad = 1 }
        if (n[id, "title"] != 1 || !n[id, "links"] || !n[id, "mutants"] || !(n[id, "vectors"] + n[id, "tests"])) {
            print "public_cases: " id " needs a title, links, mutants and vectors or tests" >"/dev/stderr"
            bad = 1
        }
    }
    if (count != 39) { print "public_cases: " count " cases, 39 expected" >"/dev/stderr"; bad = 1 }
    exit bad
}' "$CASES" >"$work/cases" || exit 1

# What needs no run is looked at first.
"$SLMOE" list --vectors vectors --tier full >"$work/list" || fail "slmoe list failed"
awk -F'\t' '
function say(text) { print "public_cases: " text >"/dev/stderr"; bad = 1 }
FILENAME ~ /list$/ { split($0, word, " "); ids[word[1]]; next }
FILENAME ~ /\.def$/ { if (match($0, /^X\([a-z0-9_]+, "[^"]+"/)) { split($0, word, "\""); names[word[2]] } next }
$2 == "vectors" {
    pattern = $3
    gsub(/[.+]/, "\\\\&", pattern)
    gsub(/\*/, ".*", pattern)
    for (v in ids) if (v ~ "^" pattern "$") next
    say($1 ": no vector " $3)
}
$2 == "mutants" { name = $3; sub(/@.*/, "", name); if (name != "" && !(name in names)) say($1 ": no mutant " name) }
$2 == "links" && $3 !~ /^https:\/\/github\.com\/[^\/ ]+\/[^\/ ]+\/(issues|pull)\/[0-9]+$/ { say($1 ": no link: " $3) }
END { exit bad }' "$work/list" conformance/mutants/mutants.def "$work/cases" || exit 1

# BACKEND TAB ID TAB STATE: every vector of every case, 30 globs at a time. A run that fails still says which.
only=()
run() {
    [ ${#only[@]} -gt 0 ] || return
    "$SLMOE" run --vectors vectors --tier full "${only[@]}" -j "$(nproc)" --format jsonl >>"$work/run" 2>"$work/told"
    [ $? -le 1 ] || { cat "$work/told" >&2; fail "slmoe run failed"; }
    only=()
}
while IFS= read -r glob; do
    only+=(--only "$glob")
    [ ${#only[@]} -lt 60 ] || run
done < <(awk -F'\t' '$2 == "vectors" { print $3 }' "$work/cases" | sort -u)
run
sed -n 's/^{"kind":"result","backend":"\([^"]*\)","case":"\([^"]*\)","state":"\([A-Z]*\)".*/\1\t\2\t\3/p' "$work/run" >"$work/states"
cut -f1 "$work/states" | awk '!seen[$0]++' >"$work/backends"
[ -s "$work/backends" ] || fail "no backend ran"

# BACKEND TAB PROGRAM:NAME TAB OK, SKIPPED or FAILED
for program in $(awk -F'\t' '$2 == "tests" { sub(/:.*/, "", $3); print $3 }' "$work/cases" | sort -u); do
    [ -x "$BUILD/test_$program" ] || fail "$BUILD/test_$program is not there"
    "$BUILD/test_$program" 2>&1 | sed -nE "s/^\[ *(OK|SKIPPED|FAILED) *\] ([^ ]+) ([a-z0-9_]+)$/\2\t$program:\3\t\1/p" | sort -u
done >"$work/tests"

# ID TAB SOURCE
awk '/^family: / { family = $2 } /^  - id: / { id = $3 } /^    source: / { sub(/^    source: /, ""); print family "/" id "\t" $0 }' \
    vectors/*/*.yaml >"$work/sources"

awk -F'\t' -v families="$work/families" '
function say(text) { print "public_cases: " text >"/dev/stderr"; bad = 1 }
# A glob as an anchored regular expression.
function regex(glob) { gsub(/[.+]/, "\\\\&", glob); gsub(/\*/, ".*", glob); return "^" glob "$" }
function cell(id, backend,    text) {
    text = pass[id, backend] + 0
    if (skip[id, backend]) text = text " (" skip[id, backend] " not offered)"
    if (wrong[id, backend]) text = text ", **" wrong[id, backend] " fail**"
    return text
}
FILENAME ~ /backends$/ { backends[++n_backends] = $1; next }
FILENAME ~ /states$/ { state[$1, $2] = $3; if (!($2 in known)) { known[$2]; vectors[++n_vectors] = $2 } next }
FILENAME ~ /tests$/ { tested[$1, $2] = $3; next }
FILENAME ~ /sources$/ { source[$1] = $2; next }
{
    id = $1
    if (!(id in titles)) order[++n_cases] = id
    if (!(id in titles)) titles[id] = ""
    if ($2 == "title") titles[id] = $3
    if ($2 == "scope") scope[id] = $3
    if ($2 == "links") {
        link = $3
        name = link
        sub(/^https:\/\/github\.com\//, "", name)
        split(name, part, "/")
        links[id] = links[id] (links[id] == "" ? "" : " ") "[" part[2] " " part[4] "](" link ")"
        urls[id] = urls[id] " " link
        n_links++
    }
    if ($2 == "mutants") {
        name = $3
        sub(/@.*/, "", name)
        text = name == "" ? "in the test: " substr($3, 2) : "`" name "`"
        mutants[id] = mutants[id] (mutants[id] == "" ? "" : ", ") text
    }
    if ($2 == "vectors") {
        matched = 0
        pattern = regex($3)
        for (v = 1; v <= n_vectors; v++) {
            if (vectors[v] !~ pattern) continue
            matched++
            if ((id, vectors[v]) in counted) continue
            counted[id, vectors[v]]
            family = vectors[v]
            sub(/\/[^\/]*$/, "", family)
            print id "\t" family >families
            n_of[id]++
            count_of = split(urls[id], url, " ")
            for (u = 1; u <= count_of; u++) if (index(source[vectors[v]], url[u])) sourced[id] = 1
            for (b = 1; b <= n_backends; b++) {
                s = state[backends[b], vectors[v]]
                if (s == "PASS") pass[id, backends[b]]++
                else if (s == "SKIP") skip[id, backends[b]]++
                else wrong[id, backends[b]]++
            }
        }
        if (!matched) say(id ": no vector " $3)
        stands[id] = stands[id] (stands[id] == "" ? "" : "<br>") "`" $3 "`"
    }
    if ($2 == "tests") {
        for (b = 1; b <= n_backends; b++) {
            s = tested[backends[b], $3]
            if (s == "OK") pass[id, backends[b]]++
            else if (s == "SKIPPED") skip[id, backends[b]]++
            else wrong[id, backends[b]]++
            if (s == "") say(id ": no test " $3 " of " backends[b])
        }
        n_of[id]++
        name = $3
        sub(/:/, " ", name)
        stands[id] = stands[id] (stands[id] == "" ? "" : "<br>") "test_" name
        has_test[id] = 1
    }
}
END {
    for (i = 1; i <= n_cases; i++) {
        id = order[i]
        for (b = 1; b <= n_backends; b++) if (wrong[id, backends[b]]) say(id ": " wrong[id, backends[b]] " fail on " backends[b])
        if (!sourced[id] && !has_test[id]) say(id ": no vector of it has one of its links as source")
    }
    if (bad) exit 1
    printf "%d cases, %d links.\n\n| case | what it is, and where it was reported | stands here as | how many |", n_cases, n_links
    for (b = 1; b <= n_backends; b++) printf " %s |", backends[b]
    printf " killed by them |\n|---|---|---|---|"
    for (b = 1; b <= n_backends; b++) printf "---|"
    print "---|"
    for (i = 1; i <= n_cases; i++) {
        id = order[i]
        printf "| %s | %s: %s | %s | %d |", id, titles[id], links[id], stands[id], n_of[id]
        for (b = 1; b <= n_backends; b++) printf " %s |", cell(id, backends[b])
        printf " %s |\n", mutants[id]
    }
    print "\n## What a case does not say\n"
    for (i = 1; i <= n_cases; i++) if (scope[order[i]] != "") print "- " order[i] ": " scope[order[i]] "."
}' "$work/backends" "$work/states" "$work/tests" "$work/sources" "$work/cases" >"$work/table" || exit 1

# A mutant must die where the mapping says; only those families are loaded.
while IFS=$'\t' read -r id named; do
    mutant=${named%%@*} where=()
    if [ -z "$mutant" ]; then
        grep -q "	[a-z_]*:${named#@}	OK\$" "$work/tests" || fail "$id: no test ${named#@} that passes"
        continue
    fi
    if [ "$named" != "$mutant" ]; then
        glob=${named#*@} set=$work/of-$id-$mutant
        where=(--only "$glob")
        mkdir -p "$set/${glob%%/*}" && cp "vectors/${glob%/*}.yaml" "$set/${glob%%/*}/" || fail "$id: no family of $glob"
    else
        set=$work/of-$id
        while IFS= read -r glob; do where+=(--only "$glob"); done < <(awk -F'\t' -v id="$id" '$1 == id && $2 == "vectors" { print $3 }' "$work/cases")
        while IFS= read -r family; do
            mkdir -p "$set/${family%/*}" && cp "vectors/$family.yaml" "$set/${family%/*}/"
        done < <(awk -F'\t' -v id="$id" '$1 == id && !seen[$2]++ { print $2 }' "$work/families")
    fi
    "$SLMOE" run -b "mutant:$mutant" --vectors "$set" "${where[@]}" --max-fail 1 >"$work/told" 2>&1
    [ $? = 1 ] || { tail -n 3 "$work/told" >&2; fail "$id: $mutant lives"; }
done < <(awk -F'\t' '$2 == "mutants" { print $1 "\t" $3 }' "$work/cases")

cat <<'END'
# Public bug reports, and what stands for each here

39 kinds of fault that were reported in public, each with all the links that were its models; a link says nothing about what the
project does today. Each stands here with its whole kind, as vectors (globs of case ids: `slmoe run --only GLOB`) or, where a
vector cannot say it, as a test that runs once for every built-in backend. The numbers under a backend are those of vectors and
tests that pass, and of those that it does not offer; all of them ran to make this page, and so did the wrong backends of the
last column, which die of the case's own vectors ([all wrong backends](bugs.md)).

This file is made by `conformance/public_cases.sh` from `conformance/public_cases.yaml` and a run.

END
cat "$work/table"
