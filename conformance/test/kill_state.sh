#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A process that saves the balancing state is killed at random moments;
# the file is a whole generation each time.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
"$BUILD/kill_state" "$folder" "${KILLS:-10}"
