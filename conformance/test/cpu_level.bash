#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The smoke tier, with LONG=1 the quick one and long sums, of the backend `cpu` at the instruction
# set that SLM_CPU_LEVEL names; 77 and the reason where this CPU has it not, which it cannot say of
# those of portable C.
"$SLMOE" run -b cpu --tier "$([ -n "${LONG:-}" ] && echo quick || echo smoke)"
code=$?
if [ $code = 0 ] && [ -n "${LONG:-}" ]; then
    "$SLMOE" run -b cpu --tier full --only 'layer/gradient-sums/*' || exit 1
fi
case $SLM_CPU_LEVEL in plain | amx-model) exit $code ;; esac
[ $code = 5 ] || exit $code
skips=$("$SLMOE" run -b cpu --only 'select/*' -v 2>&1)
grep -m 1 SLM_CPU_LEVEL <<<"$skips" || exit 1
exit 77
