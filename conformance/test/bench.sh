#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slmoe bench as its user meets it: a short run of two shapes, a backend that is wrong, options that are. No time is tested.
set -u
fail() { echo "bench: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

. "$SOURCE/conformance/test/expect.bash"

# Two backends in one run, by all three formats.
expect 0 "$SLMOE" bench -b cpu --vs variant:sequential --shape tiny --tokens 1,5 --threads 1 --seconds 0.1 --timeout 60 \
    --format table --format jsonl="$out/rows.jsonl" --format svg="$out/share.svg"
says stdout 'roof with 1 thread'
[ "$(grep -c '^tiny layer_forward' "$out/stdout")" = 4 ] || { cat "$out/stdout"; fail "four rows"; }
grep -qE '^4 timed, [0-4] of them disturbed' "$out/stdout" || fail "the last line is the total"
[ "$(grep -c '"kind":"row"' "$out/rows.jsonl")" = 4 ] || fail "four rows as JSON lines"
[ "$(grep -c '"kind":"roof","device":"cpu"' "$out/rows.jsonl")" = 1 ] || fail "one roof, of the CPUs"
grep '"kind":"row"' "$out/rows.jsonl" | grep -vqE '"bound":"(bytes|flops)"' && fail "a row that does not say what bounds it"
grep '"kind":"row"' "$out/rows.jsonl" | grep -vq '"quartiles":\[[0-9]' && fail "a row without quartiles"
grep -q '</svg>' "$out/share.svg" || fail "no picture"
if command -v xmllint >/dev/null; then xmllint --noout "$out/share.svg" || fail "the picture is not XML"; fi

# Sweeps make a row of each; other operations; bf16.
expect 0 "$SLMOE" bench -b cpu --shape tiny --op route --experts 8,16 --top-k 1,4 --tokens 2 --threads 1 --seconds 0.01
[ "$(grep -c '^tiny route' "$out/stdout")" = 4 ] || { cat "$out/stdout"; fail "two by two rows"; }
expect 0 "$SLMOE" bench -b cpu --shape tiny --dtype bf16 --tokens 3 --threads 1 --seconds 0.01
says stdout 'tiny layer_forward bf16'

# A layer of other experts has the same situ_glu; all experts are too many to balance.
sed -e '/- id: small/,$d' -e 's/config: {/config: {profile: vanilla, /' "$SOURCE/vectors/perf/shapes.yaml" >"$out/vanilla.yaml"
expect 0 "$SLMOE" bench -b cpu --shapes "$out/vanilla.yaml" --shape tiny --op situ_glu --tokens 3 --threads 1 --seconds 0.01
says stdout 'tiny situ_glu'
expect 2 "$SLMOE" bench -b cpu --shape tiny --op qb_exact --experts 4 --top-k 4 --tokens 8 --threads 1
says stderr 'cannot be timed: balancing needs k < n'

# Where the time goes: what a backend accounts for is less than the whole; one that keeps no account says nothing.
expect 0 "$SLMOE" bench -b cpu --vs variant:sequential --phases --shape tiny --tokens 5 --threads 1 --seconds 0.1 --format table \
    --format jsonl="$out/rows.jsonl"
says stdout '    experts  '
says stdout '    before and after  '
[ "$(grep -c '"phases":' "$out/rows.jsonl")" = 1 ] || fail "an account of cpu alone"
[ "$(grep -c '    experts  ' "$out/stdout")" = 1 ] || fail "an account of cpu alone, printed"
grep -oE '"phases":\[.*\]' "$out/rows.jsonl" | grep -oE '"seconds":[^,]*' | grep -q '"seconds":-' && fail "a part of negative time"

# Who is wrong is not timed, and nobody else is.
expect 1 "$SLMOE" bench -b cpu -b mutant:bias-leaks-into-weights --shape tiny --tokens 4 --threads 1
says stdout 'FAIL  mutant:bias-leaks-into-weights  tiny layer_forward T = 4  R3  stage weight'
says stdout 'nothing is timed'
grep -q 'roof with' "$out/stdout" && fail "it was timed all the same"

# What it does not offer is left out; when that is all, nothing was timed.
expect 5 env SLM_CPU_LEVEL=none "$SLMOE" bench -b cpu --shape tiny --op layer_backward --dtype bf16 --tokens 4 --threads 1
says stdout 'not timed: '
says stderr 'nothing was timed'
expect 4 "$SLMOE" bench -b cpy --shape tiny --threads 1

# A command beside a table; one that dies while it is timed costs itself alone, and is named.
library=$(dirname "$SLMOE")/libslm.so
if [ "${SANITIZED:-}" != ON ] && [ -e "$library" ] && python3 -c 'import numpy' 2>/dev/null; then
    export PYTHONPATH=$SOURCE/conformance/python PYTHONDONTWRITEBYTECODE=1 SLM_LIBRARY=$library
    expect 0 "$SLMOE" bench -b cpu --vs 'cmd:python3 -m slm.serve slm.library:Library name=cpu' --shape tiny --tokens 2 --threads 1 \
        --seconds 0.1 --format jsonl
    [ "$(grep -c '"kind":"row".*"layers":1,.*"quartiles"' "$out/stdout")" = 2 ] || { cat "$out/stdout"; fail "a row of each"; }
    # Threads that wait may sleep at once while all are judged, not while they are timed.
    printf '%s\n' "echo \${GOMP_SPINCOUNT-none} >>'$out/spin'" 'exec python3 -m slm.serve slm.library:Library name=cpu' >"$out/spin.sh"
    expect 0 env -u GOMP_SPINCOUNT "$SLMOE" bench -b cpu --vs "cmd:bash $out/spin.sh" --shape tiny --tokens 2 --threads 1 --seconds 0.1
    [ "$(sort -u "$out/spin" | tr '\n' ' ')" = '10000 none ' ] && [ "$(tail -n 1 "$out/spin")" = 10000 ] ||
        { cat "$out/spin"; fail "how long threads spin"; }
    printf '%s\n' 'import os' 'from slm.library import Library' 'class Dying(Library):' '    def prepare(self, config, weights):' \
        "        os.path.exists('$out/judged') and os._exit(7)" "        open('$out/judged', 'w').close()" \
        '        super().prepare(config, weights)' >"$out/dying.py"
    expect 1 "$SLMOE" bench -b cpu -b "cmd:python3 -m slm.serve $out/dying.py:Dying name=cpu" --shape tiny --tokens 2 --threads 1 --seconds 0.1
    says stderr 'dying.py:Dying name=cpu: '
    says stderr 'exited with 7'
else
    echo "bench: no command is timed here: no numpy, or no libslm.so that Python can load"
fi

# Usage, with what would have been right.
expect 2 "$SLMOE" bench --shape none
says stderr 'there are: tiny'
expect 2 "$SLMOE" bench --op dance
says stderr 'no such operation'
expect 2 "$SLMOE" bench --op qb_commit --shape tiny
says stderr 'cannot be timed'
expect 2 "$SLMOE" bench --tokens 1,,2
says stderr 'with commas'
expect 2 "$SLMOE" bench --tokens 1,
expect 2 "$SLMOE" bench --tokens 0
expect 2 "$SLMOE" bench --dtype f16
expect 2 "$SLMOE" bench --format html
says stderr 'table, jsonl or svg'
expect 2 "$SLMOE" bench --format table --format table --shape tiny
expect 2 "$SLMOE" bench --experts 2 --top-k 4 --shape tiny
says stderr 'k exceeds n'
expect 2 "$SLMOE" bench --flavour
expect 2 "$SLMOE" bench extra
printf 'schema: slm-shapes/1\nshapes:\n  - id: a\n    colour: red\n' >"$out/shapes.yaml"
expect 6 "$SLMOE" bench --shapes "$out/shapes.yaml"
grep -qE 'shapes\.yaml:4:5: ' "$out/stderr" || { cat "$out/stderr"; fail "no file:line:column"; }
echo "bench: a short run, a wrong backend, options and files that are wrong"
