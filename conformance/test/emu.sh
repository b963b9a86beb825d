#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The emulator reports every planted fault at its line, under several schedules, and says nothing
# about the same code without the fault. EMU: the folder with emu-faults-plain, -race and -asan, as
# far as this build has them.
set -u
sources=$SOURCE/gpu/emu/selftest
folder=${EMU:-$BUILD/../../gpu}
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail=0 seen=0 silent=0

# The report names the line that carries the fault's name. $1: name
names_the_line() {
    local file line
    while IFS=: read -r file line _; do
        grep -qE "${file//./\\.}:$line\b" "$out/report" && return 0
    done < <(cd "$sources" && grep -nE "/\*( [a-z-]+)* $1( [a-z-]+)* \*/" faults.cu faults_tile.cuh)
    return 1
}

# $1: program; $2: build; $3: name; $4: kind; $5: seed
reported() {
    local kind="gpu-emu: ($4): "
    [ "$2" = asan ] && kind="$kind|AddressSanitizer: |runtime error: "
    { "$1" "$3" 1 "$5" >"$out/report" 2>&1; } 2>/dev/null && { echo "$2 $3 seed $5: not seen"; return 1; }
    grep -qE "$kind" "$out/report" || { echo "$2 $3 seed $5: no finding of kind $4"; cat "$out/report"; return 1; }
    names_the_line "$3" || { echo "$2 $3 seed $5: not at its line"; cat "$out/report"; return 1; }
}

for build in plain race asan; do
    program=$folder/emu-faults-$build
    [ -x "$program" ] || continue
    "$program" >"$out/list" || exit 1
    while IFS=$'\t' read -r name kind builds; do
        for seed in 0 1 2 3; do
            "$program" "$name" 0 $seed >"$out/report" 2>&1 && [ ! -s "$out/report" ] ||
                { echo "$build $name seed $seed: a false alarm"; cat "$out/report"; fail=1; }
            silent=$((silent + 1))
            case ,$builds, in
            *,all,* | *,$build,*) ;;
            *) continue ;;
            esac
            reported "$program" $build "$name" "$kind" $seed || fail=1
            seen=$((seen + 1))
        done
    done <"$out/list"
done
[ $seen -gt 0 ] || { echo "emu: the emulator is not part of this build"; exit 77; }
[ $fail = 0 ] && echo "emu: $seen planted faults reported at their lines, $silent runs without a fault silent"
exit $fail
