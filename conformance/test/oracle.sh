#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The independent oracle still writes the files that are committed; those that are of tier full
# alone with LONG=1 only (conformance/quickstart test --long). Needs Python with mpmath; skipped
# without.
cd "${SOURCE:-$(dirname "$0")/../..}" || exit 1
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import mpmath' 2>/dev/null; then
        PYTHONDONTWRITEBYTECODE=1 exec "$python" conformance/python/oracle.py "$([ -n "${LONG:-}" ] && echo check || echo quick)" vectors
    fi
done
echo "oracle: no Python with mpmath here"
exit 77
