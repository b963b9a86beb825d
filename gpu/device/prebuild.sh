#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu/device/prebuild.sh - the folder that a machine with a GPU gets: it has no compiler, no package
# and no network.
#
#   gpu/device/prebuild.sh FOLDER [LIBRARIES]
#
# FOLDER must not exist; what is built on the way stays in FOLDER-build. LIBRARIES: a folder with
# libslm-gpu.so, libslm-gpu-loop.so and libslm-gpu-roof.so that are built already. The folder holds
# slmoe, slmoe-host, these three with CUDA's runtime in them, PyTorch's peer, the vectors, the
# specification, check.sh and every shared library but the C library's own and cuBLAS: 600 MB of
# cuBLAS stay with the machine's CUDA toolkit or PyTorch, where check.sh looks. cpu-blas and gpu-emu
# are left out.
set -eu
die() { echo "prebuild: $*" >&2; exit 1; }
[ $# = 1 ] || [ $# = 2 ] || die "usage: gpu/device/prebuild.sh FOLDER [LIBRARIES]"
[ ! -e "$1" ] || die "$1 is there already"
source=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" "$1-build"
folder=$(cd "$1" && pwd) build=$(cd "$1-build" && pwd)
LIMIT=60 # MiB

quiet() { "$@" >"$build/prebuild.log" 2>&1 || { tail -n 30 "$build/prebuild.log" >&2; die "$1 failed"; }; }

# RPATH, not RUNPATH: it holds for the libraries of libraries, too.
options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DSLM_BLAS=OFF -DSLM_GPU_EMU=OFF -DBUILD_TESTING=OFF -DCMAKE_INSTALL_LIBDIR=lib
    "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags")
command -v ccache >/dev/null && options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
quiet cmake -S "$source" -B "$build" "${options[@]}"
targets=(slmoe slmoe-host slmoe-inprocess)
libraries=(libslm-gpu.so libslm-gpu-loop.so libslm-gpu-roof.so)
[ $# = 2 ] && cp "${libraries[@]/#/$2/}" "$build" || targets+=(slm_gpu slm_gpu_loop slm_gpu_roof)
quiet cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
for library in "${libraries[@]}"; do
    [ -f "$build/$library" ] || die "no nvcc here, and no LIBRARIES given"
done
quiet cmake --install "$build" --prefix "$folder" --strip
rm -rf "$folder/include" "$folder/lib/cmake" "$folder/lib/pkgconfig" "$folder/share/man" "$folder"/lib/*.a
rm -f "$folder/bin/slmoe-inprocess"
strip --strip-debug "${libraries[@]/#/$folder/lib/slm/}"

# What the programs load, except what belongs to the machine's own loader.
for program in "$folder/bin/slmoe" "$folder/bin/slmoe-host"; do
    ldd "$program"
done | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util))\.so[^/]*$' | while read -r library; do
    case $library in
    "$folder"/*) ;;
    *) cp -L "$library" "$folder/lib/" ;;
    esac
done

LC_ALL=C readelf -d "$folder/lib/slm/libslm-gpu.so" | sed -nE 's/.*\(NEEDED\).*\[(libcublas[^]]*)\]/\1/p' >"$folder/cublas"
[ -s "$folder/cublas" ] || die "libslm-gpu.so does not say which cuBLAS it needs"
cp "$source"/gpu/device/{check.sh,shapes.yaml,summary.awk,README.md} "$folder"
mkdir -p "$folder/python/slm"
cp "$source"/conformance/python/slm/*.py "$folder/python/slm"
size=$(du -sm "$folder" | cut -f1)
[ "$size" -le $LIMIT ] || die "$folder has $size MiB, $LIMIT are the limit"
echo "prebuild: $folder, $size MiB; on the machine: $(basename "$folder")/check.sh"
