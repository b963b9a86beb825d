#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The suite as a stranger gets it: installed, moved, without the source tree; a new plug-in builds against it, conforms,
# and so does one that was built against the frozen headers of ABI 1.0.
set -u
fail() { echo "install: $*"; exit 1; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
unset SLM_VECTORS SLM_SPEC

run() { # command; its output is shown only if it fails
    local got=0
    "$@" >"$out/log" 2>&1 || got=$?
    [ $got = 0 ] || { cat "$out/log"; fail "'$*' exited $got"; }
}
refuses() { # $1: exit code; $2: what it says; rest: command
    local want=$1 text=$2 got
    shift 2
    "$@" >"$out/log" 2>&1
    got=$?
    [ "$got" = "$want" ] || { cat "$out/log"; fail "'$*' exited $got, expected $want"; }
    grep -qF -- "$text" "$out/log" || { cat "$out/log"; fail "'$*' does not say: $text"; }
}
says() { grep -qE -- "$1" "$out/log" || { cat "$out/log"; fail "no line like: $1"; }; }
compiles() { # $1: name; rest: compiler and options
    local name=$1
    shift
    run "$@" -I "$prefix/include" -Wall -Wextra -Wconversion -Wshadow -Werror -fsyntax-only "$out/$name"
}

sanitize=()
[ "${SANITIZED:-}" = ON ] && sanitize=("-fsanitize=address,undefined")
export CFLAGS="${sanitize[*]:-}"

# A prefix with a space in it, moved after the installation.
run cmake --install "$(dirname "$SLMOE")" --prefix "$out/first place"
mv "$out/first place" "$out/second place"
prefix="$out/second place"
slmoe="$prefix/bin/slmoe"
lib=$(dirname "$(find "$prefix" -name slm.pc)")
for file in bin/slmoe bin/slmoe-host bin/slmoe-inprocess include/slm/backend.h share/slm/vectors/MANIFEST \
    share/slm/spec.md share/slm/protocol.md share/man/man1/slmoe.1; do
    [ -s "$prefix/$file" ] || fail "$file is not installed"
done

# Its own data, not that of the source tree: a clause and a vector that only the installed copy has.
sed -i 's/^### R2 Choice.*/### R2 Choice, as installed/' "$prefix/share/slm/spec.md"
run "$slmoe" explain R2
says '^R2 Choice, as installed'
cp "$prefix/share/slm/vectors/situ/values.yaml" "$out/values.yaml"
echo 'colour: red' >>"$prefix/share/slm/vectors/situ/values.yaml"
refuses 6 'share/slm/vectors/situ/values.yaml' "$slmoe" run -b ref --tier smoke
mv "$out/values.yaml" "$prefix/share/slm/vectors/situ/values.yaml"
run env SLM_VECTORS="$SOURCE/vectors" "$slmoe" list --only 'select/mixture/*'
run "$slmoe" run -b ref --tier smoke

# A new project: by the commands that `slmoe new` prints.
cd "$out" || exit 1
run "$slmoe" new backend mine
grep '^  ' "$out/log" >"$out/commands"
[ "$(wc -l <"$out/commands")" = 3 ] || fail "slmoe new does not print three commands"
run bash -ex "$out/commands"
says '^[1-9][0-9]* passed, 0 failed, [1-9][0-9]* skipped$'
run "$slmoe" probe -b mine/build/libmine.so
for operation in select situ_glu rmsnorm; do
    grep -qE "^    $operation +[^ -]" "$out/log" || { cat "$out/log"; fail "$operation must be implemented"; }
done
run ctest --test-dir mine/build
run "$slmoe-inprocess" run -b mine/build/libmine.so --only 'situ/*'
grep -q '@NAME@' mine/*.* && fail "a template keeps its mark"

# Nothing that exists is overwritten, and a name must be one.
before=$(cat mine/backend.c mine/README.md mine/CMakeLists.txt | cksum)
refuses 2 'is not empty' "$slmoe" new backend mine
refuses 2 'is not empty' "$slmoe" new backend mine/
[ "$before" = "$(cat mine/backend.c mine/README.md mine/CMakeLists.txt | cksum)" ] || fail "a file was overwritten"
refuses 2 'names the library' "$slmoe" new backend 'my kernel'
refuses 2 'names the library' "$slmoe" new backend ..
refuses 2 'backend DIR' "$slmoe" new
refuses 2 'backend DIR' "$slmoe" new vector x
refuses 3 'No such file' "$slmoe" new backend no/such/folder
[ ! -e 'my kernel' ] || fail "a folder was made for a name that is none"
mkdir empty && run "$slmoe" new backend empty
[ -s empty/backend.c ] || fail "an empty folder must be taken"

# The same project by pkg-config, and in the build folder instead of a prefix.
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH="$lib"
    # A path with a space comes out escaped, for eval.
    eval "flags=($(pkg-config --cflags slm)) libs=($(pkg-config --libs slm))"
    # shellcheck disable=SC2154
    run "$CC" -std=c99 -O2 -fPIC -shared "${sanitize[@]}" "${flags[@]}" mine/backend.c "${libs[@]}" -lm -o libpkg.so
    run "$slmoe" run -b ./libpkg.so --tier smoke
    eval "tool=$(pkg-config --variable=slmoe slm)"
    # shellcheck disable=SC2154
    [ -x "$tool" ] || fail "pkg-config does not know slmoe"
fi
run cmake -S empty -B empty/build -DCMAKE_PREFIX_PATH="$(dirname "$SLMOE")"
run cmake --build empty/build

# The headers stand alone, in both languages.
for header in slm ops backend state; do
    echo "#include <slm/$header.h>" | tee "$out/$header.c" >"$out/$header.cpp"
    compiles $header.c "$CC" -std=c99 -pedantic-errors -Wmissing-prototypes
    command -v c++ >/dev/null && compiles $header.cpp c++ -std=c++17 -pedantic-errors
done

# A plug-in of ABI 1.0 stays welcome.
frozen="$SOURCE/conformance/test/abi-1.0"
run "$CC" -std=c99 -O2 -fPIC -shared "${sanitize[@]}" -I "$frozen" mine/backend.c "$lib/../libslm_spec.a" -lm -o libold.so
run "$slmoe" run -b ./libold.so
says '^[1-9][0-9]* passed, 0 failed, [1-9][0-9]* skipped$'
# While the ABI is 1.0 its headers may differ from the frozen ones in words alone.
code() { tr -s ' \n' '  ' <"$1" | sed -E 's,/\*[^*]*\*+([^/*][^*]*\*+)*/,,g' | tr -d ' '; }
if grep -q 'SLM_ABI_MAJOR = 1, SLM_ABI_MINOR = 0 ' "$prefix/include/slm/backend.h"; then
    for header in slm ops backend; do
        [ "$(code "$prefix/include/slm/$header.h")" = "$(code "$frozen/slm/$header.h")" ] ||
            fail "slm/$header.h is not that of ABI 1.0 any more: raise SLM_ABI_MINOR (abi-1.0/ is frozen)"
    done
fi
echo "install: moved, found its data, built and judged a new plug-in and one of ABI 1.0"
