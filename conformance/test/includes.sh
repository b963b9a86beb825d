#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trust flows spec -> ref -> vectors -> verdict: who may include whom.
cd "${SOURCE:-$(dirname "$0")/../..}" || exit 1
fail=0

# $1: files; $2: what their project includes may be (extended regular expression)
only() {
    local found
    found=$(grep -nE '^#include ["<]' $1 /dev/null 2>/dev/null | grep -vE "#include ($2)" || true)
    [ -z "$found" ] || { echo "$found" | sed "s,\$,   (not allowed here),"; fail=1; }
}

system='<(arb|arf|dirent|dlfcn|errno|fcntl|fenv|fnmatch|float|getopt|gmp|inttypes|jansson|limits|math|mpfr|omp|pthread|sched|setjmp|signal|poll|spawn|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|time|unistd|yaml|cblas|cmocka|immintrin|cpuid)\.h>|<(sys|flint|openssl|linux)/[a-z0-9_]+\.h>'
only 'spec/*.c spec/include/slm/*.h' "<slm/(slm|ops|backend|state|phases)\.h>|\"contract\.h\"|$system"
only 'ref/*.c ref/*.h' "<slm/[a-z]+\.h>|\"[a-z_]+\.h\"|$system"
only 'cpu/*.c cpu/*.h' "<slm/[a-z]+\.h>|\"[a-z_]+\.h\"|$system"
only 'gpu/*.cu gpu/*.h' "<slm/[a-z]+\.h>|\"[a-z_]+\.cuh?\"|\"[a-z_]+\.h\"|<(cuda_runtime|cuda_runtime_api|cuda_bf16|mma|cublas_v2|nccl)\.h>|\"emu/(emu|wmma)\.h\"|$system"
if grep -n '"emu/' gpu/*.cu gpu/*.h | grep -v '^gpu/device\.h:'; then fail=1; fi # the emulator comes in there only
only 'conformance/test/plugin/*.c' "<slm/backend\.h>|$system"
# Of the harness only the registry and what prepares its environment know a backend.
for file in conformance/*.[ch]; do
    case $file in
    conformance/registry.c | conformance/environment.c) continue ;;
    esac
    if grep -nE '#include [<"](cpu|gpu)([_/][a-z_/]*)?\.h' "$file" /dev/null; then fail=1; fi
done
# A quoted include must be of the file's own folder.
for folder in ref cpu conformance; do
    for name in $(grep -hoE '#include "[^"]+"' $folder/*.[ch] | cut -d'"' -f2 | sort -u); do
        [ -e "$folder/$name" ] || { echo "$folder: includes \"$name\" of another folder"; fail=1; }
    done
done
[ $fail = 0 ] && echo "includes: as spec/CONTRIBUTING.md allows"
exit $fail
