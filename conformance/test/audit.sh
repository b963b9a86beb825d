#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The audit of the declared arithmetic: right variants are believed, a coarse mutant and a coarse declaration are not.
set -u
fail() { echo "audit: $*"; exit 1; }
for backend in ref variant:sequential variant:bf16-taps variant:truncating variant:tf32-factors; do
    "$SLMOE" probe -b $backend 2>/dev/null | grep -q 'COARSER\|FINER' && fail "$backend declares the truth"
    "$SLMOE" probe -b $backend >/dev/null 2>&1 || fail "$backend: exit code $?"
done
said=$("$SLMOE" probe -b mutant:bf16-accumulate 2>/dev/null)
[ $? = 1 ] || fail "an untrue declaration exits 1"
echo "$said" | grep -q 'accumulator  *2^-24  *2^-8  *COARSER' || fail "bf16 sums under a binary32 declaration are seen"
echo "audit: declarations are checked"
