#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What can be said of the CUDA build without a device: no spills, no local memory, registers and
# shared memory within gpu/budget.txt on every generation, at least one resident block, a library
# that links against the real CUDA and exports what a backend exports. Needs nvcc; the occupancies
# are printed.
set -u
gpu=$SOURCE/gpu built=$BUILD/../../gpu
library=$BUILD/../../libslm-gpu.so
[ -f "$library" ] || { echo "gpu_static: skipped, the backend gpu is not part of this build (nvcc)"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail() { echo "gpu_static: $*"; exit 1; }
nvcc=$(sed -n 's/^SLM_NVCC:FILEPATH=//p' "$BUILD/../../CMakeCache.txt")
[ -x "$nvcc" ] || fail "the build does not say which nvcc it used"

# The log of each file that there is now, each kernel of it on each generation that this nvcc knows.
logs=()
for file in "$gpu"/*.cu; do
    logs+=("$built/$(basename "$file").o.ptxas")
    [ -f "${logs[-1]}" ] || fail "no log of $(basename "$file"): build the target slm_gpu"
done
"$gpu/check/resources.sh" "${logs[@]}" >"$out/resources" || exit 1
generations=$("$nvcc" --list-gpu-code | sed -nE 's/^sm_(80|90|100)$/\1/p' | sort -n | tr '\n' ' ')
awk -v want="$generations" '
    { have[$1] = have[$1] $2 " " }
    END { for (k in have) if (have[k] != want) { print k ": built for " have[k] "and not for " want; bad = 1 }; exit bad }
' "$out/resources" || fail "a kernel lacks a generation"
[ "$(wc -l <"$out/resources")" -ge 100 ] || fail "only $(wc -l <"$out/resources") lines of ptxas were understood"

awk -f "$gpu/check/budget.awk" "$gpu/budget.txt" "$out/resources" || fail "beyond gpu/budget.txt"

# The check can fail: one register too many, a line without a kernel, a kernel without a line, a
# spill.
name=$(awk 'NR == 1 { print $1 }' "$out/resources")
name=$name awk '$1 == ENVIRON["name"] { $2 = 1 } { print }' "$gpu/budget.txt" >"$out/low"
{ cat "$gpu/budget.txt"; echo "no_such_kernel 8 0 32 0"; } >"$out/more"
name=$name awk '$1 != ENVIRON["name"]' "$gpu/budget.txt" >"$out/less"
name=$name awk '$1 == ENVIRON["name"] { $5 = 16 } { print }' "$out/resources" >"$out/spilled"
for budget in low more less; do
    awk -f "$gpu/check/budget.awk" "$out/$budget" "$out/resources" >/dev/null && fail "a budget that is '$budget' passes"
done
awk -f "$gpu/check/budget.awk" "$gpu/budget.txt" "$out/spilled" >/dev/null && fail "a spill passes"

# nvcc itself refuses local memory, as the build calls it.
cat >"$out/local.cu" <<'END'
__global__ void spoiled(const int *at, float *to)
{
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = (float)at[i];
    to[threadIdx.x] = a[at[threadIdx.x] & 63] + a[to[1] > 0 ? 3 : at[2] & 63];
}
END
compile=("$nvcc" -arch=sm_90 -std=c++17 -O3 -Xptxas "-v,-warn-spills,-warn-lmem-usage,-Werror" -cubin)
"${compile[@]}" "$out/local.cu" -o "$out/local.cubin" >"$out/log" 2>&1 && fail "local memory is not refused"
grep -q 'ocal memory' "$out/log" || { cat "$out/log"; fail "refused, but not for local memory"; }

# Occupancy by NVIDIA's rules.
include=$(sed -n 's/^CUDA_INCLUDE:PATH=//p' "$BUILD/../../CMakeCache.txt")
c++ -std=c++17 -isystem "$include" "$gpu/check/occupancy.cpp" -o "$out/occupancy" || fail "occupancy.cpp"
awk 'FNR == NR { if ($0 !~ /^#/) more[$1] = $4 " " $5; next } { print $1, $2, $3, $4, more[$1] }' \
    "$gpu/budget.txt" "$out/resources" >"$out/launches"
"$out/occupancy" <"$out/launches" || fail "a kernel of which no block is resident"

# The library: all symbols resolve in the real cuBLAS and C libraries, CUDA's runtime lies within
# it, and nothing else leaves it.
LC_ALL=C ldd -r "$library" >"$out/ldd" 2>&1
grep -E 'undefined symbol|not found' "$out/ldd" && fail "it does not link against the real libraries"
nm -D --defined-only "$library" | awk '{ print $3 }' | grep -vE '^(_init|_fini)$' | sort | tr '\n' ' ' >"$out/exports"
grep -qE '^(slm_backend_emulated )?slm_backend_get slm_gpu_missing $' "$out/exports" ||
    fail "it exports $(cat "$out/exports")"
nm -D --undefined-only "$library" | grep -qE ' cublasGemm(Batched)?Ex' ||
    fail "it does not call cuBLAS"
nm -D --undefined-only "$library" | grep -E ' cuda[A-Z]' && fail "CUDA's runtime is not linked in"
readelf -d "$library" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' |
    grep -vE '^(libcublas\.so\.|libstdc\+\+|libm\.|libgcc_s|libc\.|ld-linux|libdl|librt|libpthread)' &&
    fail "it needs more than cuBLAS and the compiler's libraries"
echo "gpu_static: $(awk '{ print $1 }' "$out/resources" | sort -u | wc -l) kernels within budget on sm_${generations% }"
