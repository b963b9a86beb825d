#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu/check/nvcc.sh - run nvcc; what ptxas says of each kernel is kept in LOG.
#
#   gpu/check/nvcc.sh LOG COMMAND...
#
# What it prints of a compilation that fails goes to stderr.
log=$1
shift
if "$@" 2>"$log.new"; then
    mv "$log.new" "$log"
else
    status=$?
    cat "$log.new" >&2
    rm -f "$log.new" "$log"
    exit $status
fi
