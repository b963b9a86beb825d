#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cost grows as it should, in ratios within one run of the bench: a token of a large batch costs no more than
# one of a smaller batch, an element of a quantile or a histogram no more where there are more rows or columns,
# a decoded token no more where there are more experts that it does not choose, but for their rows of the router
# and for a memory that is further away: its time is counted in that of its roof.
# BACKEND: whose (cpu). LIMIT: how much more is a failure (1.3), three times in a row: what others read from the
# memory of this machine disturbs a decoded token and shows in no count. Skipped where they disturb it three times.
set -u
export LC_ALL=C
backend=${BACKEND:-cpu}
limit=${LIMIT:-1.3}
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail() { echo "growth: $*"; exit 1; }

# $1: what, $2: awk's expression of what a call is paid for. Rows of the table are compared with each that is
# smaller or equal in T and in n; 0 if none costs more than the limit.
worst_of() {
    awk -v limit="$limit" -v what="$1" '
        { op[NR] = $1; T = $2; n = $3; roof = $4; rows[NR] = T; experts[NR] = n; each[NR] = $6 / ('"$2"') }
        END {
            for (i = 1; i <= NR; i++)
                for (j = 1; j <= NR; j++) {
                    if (i == j || op[i] != op[j] || rows[i] < rows[j] || experts[i] < experts[j]) continue
                    ratio = each[i] / each[j]
                    if (ratio > worst) { worst = ratio; of = op[i] ", T " rows[j] " n " experts[j] " to T " rows[i] " n " experts[i] }
                }
            printf "growth: %s: at most %.2f times as much each (%s)\n", what, worst, of
            exit !(worst > 0 && worst <= limit)
        }' "$out/table"
}

# The same; the rest: options of bench.
grows() {
    local what=$1 work=$2 try
    shift 2
    for try in 1 2 3; do
        "$SLMOE" bench -b "$backend" --format jsonl="$out/rows" "$@" >"$out/log" 2>&1 || { cat "$out/log"; fail "$what: not timed"; }
        sed -nE 's/.*"kind":"row".*"op":"([a-z_]+)".*"T":([0-9]+),"n":([0-9]+),.*"roof":([^,]*),"disturbed":(true|false),"quartiles":\[[^,]*,([^,]*),.*/\1 \2 \3 \4 \5 \6/p' \
            "$out/rows" >"$out/table"
        [ -s "$out/table" ] || fail "$what: no rows"
        if grep -q true "$out/table"; then
            [ $try = 3 ] && { echo "growth: $what: disturbed"; skipped=1; return; }
            continue
        fi
        worst_of "$what" "$work" && return
    done
    cat "$out/log"
    fail "$what: more than $limit times as much, three times"
}

skipped=0
grows "a token of many" T --shape mini --tokens 1024,4096,16384 --seconds 10
grows "an element to balance" "T * n" --shape balance --op qb_exact --op qb_hist_accumulate --experts 448,896 --tokens 16384,65536
grows "a decoded token" roof --shape mini --tokens 1 --experts 64,128,256
[ $skipped = 0 ] || exit 77
