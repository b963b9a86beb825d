#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# conformance/coverage.sh - which lines of ref, contract, loader and judge the tests reach (gcov).
#
#   conformance/coverage.sh [FOLDER]    build there (default build-coverage), test, print a table
#
# Exit 1: a part is below 95 %, an unreached line has no reason in conformance/unreached.txt, or a
# reason there has no line any more. A line of that file: path, tab, source line without the spaces
# around it, tab, reason.
set -u
cd "$(dirname "$0")/.." || exit 3
folder=${1:-build-coverage}
limit=95

mkdir -p "$folder"
folder=$(cd "$folder" && pwd) || exit 3
log=$folder/coverage.log
jobs=$(nproc 2>/dev/null || echo 2)
if ! { cmake -S . -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS='--coverage -fprofile-update=atomic -O0' \
    -DSLM_GPU=OFF -DSLM_GPU_EMU=OFF \
    -DCMAKE_EXE_LINKER_FLAGS=--coverage && cmake --build "$folder" -j "$jobs"; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 3
fi
find "$folder" -name '*.gcda' -delete
status=0
# Tests of fast backends, and those that build or measure something of their own, say nothing of
# these lines.
ctest --test-dir "$folder" -j "$jobs" -LE once -E 'unit\.cpu_|conform\.(cpu|gpu)|study\.rules' >>"$log" 2>&1 || {
    grep -A99 "tests FAILED:" "$log" >&2
    status=1
}
"$folder/slmoe" run --tier quick >>"$log" 2>&1 || { tail -n 30 "$log" >&2; exit 3; }

parts() {
    echo "contract spec/*.c"
    echo "ref ref/*.c"
    echo "loader conformance/vector*.c conformance/yaml_*.c conformance/seeded.c conformance/manifest.c"
    echo "judge conformance/judge*.c conformance/bounds*.c conformance/trial.c conformance/envelope*.c" \
        "conformance/controls.c conformance/compare.c conformance/nearest.c conformance/undeclared.c" \
        "conformance/audit.c conformance/hygiene.c conformance/frame*.c"
}

# path, tab, number, tab, count or ##### of each line that has code
lines_of() {
    local object
    object=$(find "$folder" -path "*/$1.gcda" -print -quit)
    [ -n "$object" ] || { echo "$1: no test reaches this file" >&2; return 1; }
    (cd "$folder" && gcov -t -o "$object" "$object" 2>/dev/null) | awk -v path="$1" -v OFS='\t' '
        /^ +-: +0:Source:/ { here = index($0, path) > 0 }
        here {
            split($0, part, ":")
            count = part[1]; number = part[2] + 0
            gsub(/[ *]/, "", count)
            if (count == "-" || number == 0) next
            text = $0
            sub(/^[^:]*:[^:]*:/, "", text)
            gsub(/^[ \t]+|[ \t]+$/, "", text)
            print path, number, (count ~ /^[#=]+$/ ? "#####" : count), text
        }'
}

all=$folder/coverage.tsv
: >"$all"
printf '%-10s %8s %8s %9s\n' part lines reached share
while read -r part files; do
    : >"$folder/part.tsv"
    for file in $files; do lines_of "$file" >>"$folder/part.tsv" || status=1; done
    cat "$folder/part.tsv" >>"$all"
    awk -F '\t' -v part="$part" -v limit=$limit '
        { lines++; reached += $3 != "#####" }
        END {
            share = lines ? 100 * reached / lines : 0
            printf "%-10s %8d %8d %8.2f%%\n", part, lines, reached, share
            exit share < limit
        }' "$folder/part.tsv" || { echo "coverage: $part is below $limit %"; status=1; }
done < <(parts)

grep -P '\t#####\t' "$all" >"$folder/unreached.tsv"
awk -F '\t' '
    FILENAME == ARGV[1] {
        if (/^#/) next
        reason[$1 "\t" $2] = $3
        if (NF == 3 && $3 != "") next
        print "coverage: unreached.txt:" FNR ": expected path, tab, source line, tab, reason"
        bad = 1
        next
    }
    {
        key = $1 "\t" $4
        if (key in reason) used[key] = 1
        else { print "coverage: " $1 ":" $2 ": unreached, without a reason: " $4; bad = 1 }
    }
    END {
        for (key in reason) if (!(key in used)) { print "coverage: a reason without a line: " key; bad = 1 }
        exit bad
    }' conformance/unreached.txt "$folder/unreached.tsv" || status=1
echo "coverage: $(wc -l <"$folder/unreached.tsv") unreached lines; details in $all"
exit $status
