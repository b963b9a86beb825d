# SPDX-License-Identifier: Apache-2.0
# What scripts that test the tool by its words share. Needs fail() and a folder $out.

# $1: exit code; rest: command. Leaves stdout and stderr in $out.
expect() {
    local want=$1 got
    shift
    "$@" >"$out/stdout" 2>"$out/stderr"
    got=$?
    [ "$got" = "$want" ] || { cat "$out/stdout" "$out/stderr"; fail "'$*' exited $got, expected $want"; }
}
says() { # $1: stdout or stderr; $2: fixed string
    grep -qF -- "$2" "$out/$1" || { cat "$out/$1"; fail "$1 does not say: $2"; }
}
