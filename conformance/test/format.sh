#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatting is clang-format's business; the file .clang-format decides.
cd "${SOURCE:-$(dirname "$0")/../..}" || exit 1
command -v clang-format >/dev/null || { echo "format: no clang-format here"; exit 77; }
case $(clang-format --version) in
*"version 14."*) ;;
*) echo "format: judged with version 14 only, here is $(clang-format --version)"; exit 77 ;;
esac
find spec ref cpu gpu conformance \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 clang-format --dry-run -Werror
