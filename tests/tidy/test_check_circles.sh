#!/bin/sh
# SPDX-License-Identifier: MIT
# check_circles.sh finds a circle of two and of three files, and none where there is none. $1: this
# folder, $2: a C compiler.
set -u
check=$1/check_circles.sh
shift
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

# Arguments: the name of a case, the exit status that is right, then "file function called" triples.
try() {
    name=$1
    right=$2
    shift 2
    rm -rf "$work/case"
    mkdir "$work/case"
    while [ $# -ge 3 ]; do
        printf 'void %s(void);\nvoid %s(void);\nvoid %s(void) { %s(); }\n' \
            "$2" "$3" "$2" "$3" >> "$work/case/$1.c"
        shift 3
    done
    for source in "$work"/case/*.c; do
        $compiler -c "$source" -o "${source%.c}.o" || exit 2
    done
    "$check" "$work/case" 1 > "$work/out" 2>&1
    status=$?
    if [ $status -eq 77 ]; then exit 77; fi
    if [ $status -ne "$right" ]; then
        echo "$name: exit status $status, not $right"
        cat "$work/out"
        failed=1
    fi
}

compiler="$*"
try 'a chain' 0 a f g b g h
try 'two files' 1 a f g b g f
try 'three files' 1 a f g b g h c h f
try 'a circle within a file' 0 a f g a g f b h f
exit $failed
