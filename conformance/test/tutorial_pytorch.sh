#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of spec/tutorial-pytorch.md, with a python3 that has PyTorch. Skipped without.
set -u
shim=$(mktemp -d) || exit 1
trap 'rm -rf "$shim"' EXIT
for python in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$python" -c 'import numpy, torch' 2>/dev/null; then
        printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "$python")" >"$shim/python3"
        chmod +x "$shim/python3"
        PATH=$shim:$PATH TUTORIAL_PAGE=tutorial-pytorch.md bash "$(dirname "$0")/tutorial.sh"
        exit
    fi
done
echo "tutorial_pytorch: skipped: no python3 with PyTorch here"
exit 77
