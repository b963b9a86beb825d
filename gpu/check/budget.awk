# gpu/check/budget.awk - hold what resources.sh prints to budget.txt; exit 1 when it does not hold.
#
#   awk -f budget.awk budget.txt RESOURCES
FNR == NR {
    if ($0 ~ /^#/ || NF == 0) next
    if (NF != 5 || $2 $3 $4 $5 ~ /[^0-9]/) wrong(FILENAME ":" FNR ": five columns, the last four numbers")
    if ($1 in registers) wrong(FILENAME ":" FNR ": " $1 " a second time")
    registers[$1] = $2
    shared[$1] = $3
    next
}
{
    if ($5 != 0) wrong($1 " (sm_" $2 "): " $5 " bytes of stack and spills")
    if (!($1 in registers)) {
        if (!seen[$1]++) wrong($1 ": no line in the budget")
        next
    }
    seen[$1]++
    if ($3 > registers[$1]) wrong($1 " (sm_" $2 "): " $3 " registers, budget " registers[$1])
    if ($4 > shared[$1]) wrong($1 " (sm_" $2 "): " $4 " bytes of shared memory, budget " shared[$1])
}
END {
    for (name in registers)
        if (!(name in seen)) wrong(name ": a line in the budget and no such kernel")
    exit bad
}
function wrong(text) { print "budget: " text; bad = 1 }
