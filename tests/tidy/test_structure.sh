#!/bin/sh
# SPDX-License-Identifier: MIT
# structure.sh lets a tree pass whose calls go down, and tells an arrow up, a room that is not in the
# row, and a circle. $1: this folder, $2: a C compiler.
set -u
check=$1/structure.sh
shift
compiler="$*"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

# Arguments: the name of a case, the exit status that is right, what is told, then "room file function
# called" quadruples.
try() {
    name=$1
    right=$2
    told=$3
    shift 3
    rm -rf "$work/tree" "$work/build"
    mkdir -p "$work/build"
    while [ $# -ge 4 ]; do
        mkdir -p "$work/tree/$1"
        printf 'void %s(void);\nvoid %s(void);\nvoid %s(void) { %s(); }\n' \
            "$3" "$4" "$3" "$4" >> "$work/tree/$1/$2"
        shift 4
    done
    printf 'low:\nmiddle: low\nhigh: middle\n' > "$work/layers.txt"
    (cd "$work/tree" && find . -name '*.c') | sed 's|^\./||' | while read -r source; do
        object=$(echo "$source" | tr / _).o
        $compiler -c "$work/tree/$source" -o "$work/build/$object" || exit 2
    done || exit 2
    "$check" "$work/build" "$work/layers.txt" "$work/tree" > "$work/out" 2>&1
    status=$?
    if [ $status -eq 77 ]; then exit 77; fi
    if [ $status -ne "$right" ] || ! grep -qF "$told" "$work/out"; then
        echo "$name: exit status $status, not $right, or '$told' is not told"
        cat "$work/out"
        failed=1
    fi
}

try 'calls go down' 0 '3 files, 2 arrows, 2 of them between rooms, 0 up' \
    high a_high.c a b middle b_middle.c b c low c_low.c c nothing
try 'an arrow up' 1 'up: low/c_low.c -> middle/b_middle.c (b)' \
    high a_high.c a b middle b_middle.c b nothing low c_low.c c b
try 'a room that is not in the row' 1 'up: high/a_high.c -> low/c_low.c (c)' \
    high a_high.c a c middle b_middle.c b c low c_low.c c nothing
try 'a circle in one room' 1 'circles:' high a_high.c a d high d_high.c d a \
    middle b_middle.c b c low c_low.c c nothing
exit $failed
