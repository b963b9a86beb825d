#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A sample of the wrong backends of mutants.def as wrong CUDA kernels: each is one edit of a .cu or
# .cuh file, built for the emulator, and must fail in the families that kill its namesake. A line
# that no longer stands in its file is an error.
set -u
build=$BUILD/../.. gpu=$SOURCE/gpu
[ -f "$build/gpu/libslm_gpu_plain.a" ] || { echo "gpu_mutants: skipped, no plain build of the emulator here"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail() { echo "gpu_mutants: $*"; exit 1; }

# MUTANT | FILE that is compiled | FILE that is edited | text, once in it | text instead | GLOBS
list() {
    cat <<'END'
bias-ignored|select.cu|select.cu|key[i] = ordered(score + c.bias[e]);|key[i] = ordered(score);|route/full-width/* select/bias-extremes/*
plus-zero-above-minus-zero|select.cu|pair.cuh|__float_as_uint(value + 0.0f)|__float_as_uint(value)|select/signed-zero/*
zero-weights|select.cu|select.cu|part / total : 1.0 / (double)k|part / total : 0.0|select/signed-zero/*
infinite-logit-poisons|select.cu|select.cu|finite ? !isfinite(value) : value != value|finite >= 0 && !isfinite(value)|select/infinite-logits/*
unstable-order|permute.cu|permute.cu|__popc(same & ((1u << lane) - 1))|__popc(same >> lane >> 1)|permute/stable/*
sigma-of-capped-gate|situ.cu|situ.cuh|const float magnitude = fabsf(a);|const float magnitude = g.num / g.den;|situ/values/*
eps-outside-root|rmsnorm.cu|rmsnorm.cu|1.0 / sqrt(sum / (double)width + eps) : (double)NAN|1.0 / (sqrt(sum / (double)width) + eps) : (double)NAN|rmsnorm/eps/*
norm-gradient-without-projection|rmsnorm.cu|rmsnorm.cu|(float)((g[j] - (double)v[j] * along) * own)|(float)((g[j] - 0.0 * (double)v[j] * along) * own)|rmsnorm/gradient-values/*
sech-squared-overflows|situ_backward.cu|situ.cuh|4.0 * exp(-twice) / (den * den)|4.0 * exp(twice) / ((1.0 + exp(twice)) * (1.0 + exp(twice)))|situ/gradient-saturated/*
no-interpolation|hist.cu|hist.cu|slm_gpu_pair_add({(double)t, 0.0}, inside)|slm_gpu_pair{(double)t + 0.5, 0.0}|hist/solve/*
quantile-floor-of-q|qb.cu|qb_select.cuh|(k * (m - 1) + n - 1) / n|k * m / n|qb/relaxed/*
quantile-off-by-one|qb_sieve.cu|qb_sieve.cu|(unsigned)(nth - below), at[0]|(unsigned)(nth - below) + 1, at[0]|qb/many-tokens/*
quantile-off-by-one|qb_sieve.cu|qb_sieve.cu|below <= least && nth < below + inside|inside > 0|qb/many-tokens/sample-misleads
tie-test-at-wrong-rank|qb_sieve.cu|qb_sieve.cu|boundary ? nth - 1 : nth;|nth;|qb/many-tokens/boundary*
commit-keeps-version|observe.cu|observe.cu|stamp[SLM_STAMP_VERSION]++;|;|state/commit/*
tail-dropped|gemm_gradient.cu|gemm_gradient.cu|at_row < end ? from.cols - col : 0|at_row < end ? (from.cols - col) / 8 * 8 : 0|layer/gradient-tiles/bf16-*
expert-tail-rows-dropped|gemm_gradient.cu|gemm_gradient.cu|row < end; row += PART|row + PART <= end; row += PART|layer/gradient-tiles/bf16-*
tail-dropped|gemm_rows.cu|gemm_rows.cu|const int pieces = p.inner / COUNT;|const int pieces = p.inner / 8 * 8 / COUNT;|layer/public-tails/*
wrong-expert-weights|gemm_rows.cu|gemm_rows.cuh|all - rows, (size_t)e};|all - rows, (size_t)(e + 1) % p.n};|layer/by-hand/*
combine-unweighted|combine.cu|combine.cu|weight ? weight[first + q] : 1.0f|weight ? 1.0f : 1.0f|layer/by-hand/*
END
}

# $1: file; $2: text; $3: instead. The text stands there once.
edit() {
    old=$2 new=$3 awk '
        { at = index($0, ENVIRON["old"]) }
        at { $0 = substr($0, 1, at - 1) ENVIRON["new"] substr($0, at + length(ENVIRON["old"])); n++ }
        { print }
        END { exit n != 1 }' "$1" >"$out/edited" && cat "$out/edited" >"$1"
}

cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
cxx=$(cache CMAKE_CXX_COMPILER)
compile=("$cxx" -std=c++17 -x c++ -fPIC -O1 -ffp-contract=off -w -I"$SOURCE/spec/include" -isystem "$(cache CUDA_INCLUDE)")
link=("$build/gpu/CMakeFiles/slm_backend_plain.dir/backend.cu.o" "$build/gpu/libslm_gpu_plain.a")
link+=("$build/gpu/libslm_emu_plain.a" "$build/libslm_spec.a")
read -ra flags < <(pkg-config --libs openblas)
link+=("${flags[@]}" -ldl -lm)

judge() { # $1: backend; rest: globs; the report is $out/report
    local backend=$1 only=()
    shift
    for glob in "$@"; do only+=(--only "$glob"); done
    "$SLMOE" run -b "$backend" --tier full --once "${only[@]}" >"$out/report" 2>&1
}

count=0
cp -r "$gpu" "$out/right"
while IFS='|' read -r mutant compiled edited old new globs; do
    grep -qF "\"$mutant\"" "$SOURCE/conformance/mutants/mutants.def" || fail "$mutant: no such mutant"
    set -f
    # shellcheck disable=SC2206
    families=($globs)
    set +f
    for glob in "${families[@]}"; do
        judge "$build/libslm-gpu-emu.so" "$glob" || { cat "$out/report"; fail "$glob: the right kernels fail"; }
    done
    rm -rf "$out/wrong" && cp -r "$out/right" "$out/wrong"
    edit "$out/wrong/$edited" "$old" "$new" || fail "$mutant: '$old' does not stand once in $edited"
    "${compile[@]}" -c "$out/wrong/$compiled" -o "$out/wrong.o" 2>"$out/log" || { cat "$out/log"; fail "$mutant: $compiled"; }
    "$cxx" -shared -Wl,--no-undefined -Wl,--exclude-libs,ALL "$out/wrong.o" "${link[@]}" -o "$out/libwrong.so" || fail "$mutant"
    for glob in "${families[@]}"; do
        judge "$out/libwrong.so" "$glob"
        got=$?
        [ $got = 1 ] && grep -q '^FAIL ' "$out/report" ||
            { cat "$out/report"; fail "$mutant survives $glob (exit $got)"; }
    done
    count=$((count + 1))
done < <(list)
[ $count = "$(list | wc -l)" ] || fail "only $count of $(list | wc -l)"

# An edit that fits nothing, or twice, is refused; what is linked is the edited file.
cp -r "$out/right" "$out/again"
edit "$out/again/qb.cu" 'no such text' '' && fail "an edit of nothing passes"
edit "$out/again/qb_select.cuh" '__syncthreads();' '' && fail "an edit of several places passes"
echo "gpu_mutants: $count wrong kernels fail where they should"
