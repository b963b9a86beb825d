#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of spec/tutorial-c.md (or of TUTORIAL_PAGE), run one after the other in an empty folder; what the page shows must come, in that
# order, numbers, absolute paths and counts by provenance aside. TUTORIAL=whole also runs quickstart, in a copy of the source tree.
set -u
page=$SOURCE/spec/${TUTORIAL_PAGE:-tutorial-c.md}
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
fail() { echo "tutorial: $*"; exit 1; }
unset SLM_VECTORS SLM_SPEC CMAKE_GENERATOR CDPATH
[ "${SANITIZED:-}" = ON ] && export CFLAGS=-fsanitize=address,undefined
mkdir "$out/work" && cd "$out/work" || exit 1

# What stands in for `git clone`: this tree, and unless all of it is wanted its build.
clone() {
    mkdir slm
    if [ "${TUTORIAL:-}" = whole ]; then
        tar -C "$SOURCE" --exclude='./build*' --exclude=./.git -cf - . | tar -C slm -xf -
        return
    fi
    for entry in "$SOURCE"/*; do
        case ${entry##*/} in build*) ;; *) ln -s "$entry" slm/ ;; esac
    done
    ln -s "$(dirname "$SLMOE")" slm/build
}

mask() {
    sed -E -e '/^exit [0-9]+$/b' -e "s,/[^ ']+,/,g" -e 's/0x[0-9a-f.]+p[+-][0-9]+/N/g' -e 's/[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?/N/g' \
        -e 's/\((hand|document|oracle|ref|public-report) [^)]*\)//' -e 's/ +/ /g' -e 's/ $//'
}

# Every line of $out/want must be one of $out/got, in order. "..." stands for any.
shown() {
    mask <"$out/got" >"$out/got.masked"
    grep -vxF '...' "$out/want" | mask | awk -v got="$out/got.masked" '{
        while ((more = (getline line <got)) > 0 && line != $0) {}
        if (more <= 0) { print "not said: " $0; exit 1 }
    }'
}

n=0
execute() { # the command and what the page shows after it
    [ -n "$command" ] || return 0
    n=$((n + 1))
    case $command in
    'git clone '*)
        clone
        return
        ;;
    *quickstart*)
        [ -x "${command%% *}" ] || fail "$command: is not a program"
        [ "${TUTORIAL:-}" = whole ] || return 0
        ;;
    esac
    eval "$command" >"$out/got" 2>&1 || { cat "$out/got"; fail "'$command' failed"; }
    shown || { cat "$out/got"; fail "'$command' says something else than the page"; }
}

command=
inside=no
while IFS= read -r line; do
    case $line in
    '```console')
        inside=yes
        ;;
    '```')
        [ $inside = no ] || execute
        inside=no
        command=
        ;;
    '$ '*)
        [ $inside = yes ] || continue
        execute
        command=${line#'$ '}
        : >"$out/want"
        ;;
    *)
        [ $inside = no ] || printf '%s\n' "$line" >>"$out/want"
        ;;
    esac
done <"$page"
[ $n -ge 8 ] || fail "only $n commands were found in $page"
echo "tutorial: $n commands do what the page says"
