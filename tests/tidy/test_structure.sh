#!/bin/sh
# SPDX-License-Identifier: MIT
# structure.py lets a tree pass whose uses go down, and tells an arrow up, a folder that is not in the
# row, and circles by calls, by includes, by both, and between folders. $1: this folder, $2: a C
# compiler.
set -u
check=$1/structure.py
shift
compiler="$*"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

begin() {
    rm -rf "$work/tree" "$work/build"
    mkdir -p "$work/build" "$work/tree"
    cat > "$work/layers.txt" <<END
runtime/include:
low:
low/inner: low
middle: low low/inner
high: middle
high/inner:
side: high/inner
runtime/cli: side high high/inner
END
    write runtime/include/moe/open.h 'void moe_open(void);'
    write low/c_low.c 'void c(void);' 'void c(void) {}'
    write middle/b_middle.c 'void c(void);' 'void b(void);' 'void b(void) { c(); }'
}

# Arguments: a file and its lines. File names are unique: an object is known by its source's.
write() {
    mkdir -p "$(dirname "$work/tree/$1")"
    file=$work/tree/$1
    shift
    printf '%s\n' "$@" > "$file"
}

# Arguments: the name of a case, the exit status that is right, what is told.
expect() {
    (cd "$work/tree" && find . -name '*.c') | sed 's|^\./||' | while read -r source; do
        object=$(echo "$source" | tr / _).o
        $compiler -I"$work/tree" -I"$work/tree/runtime/include" -c "$work/tree/$source" \
            -o "$work/build/$object" || exit 2
    done || exit 2
    "$check" "$work/build" "$work/layers.txt" "$work/tree" > "$work/out" 2>&1
    status=$?
    if [ $status -eq 77 ]; then exit 77; fi
    if [ $status -ne "$2" ] || ! grep -qF "$3" "$work/out"; then
        echo "$1: exit status $status, not $2, or '$3' is not told"
        cat "$work/out"
        failed=1
    fi
}

begin
write high/a_high.c 'void b(void);' 'void a(void);' 'void a(void) { b(); }'
expect 'calls go down' 0 '4 rooms, 2 arrows, 2 of them between folders, 0 up, 0 circles'

begin
write low/c_low.c 'void b(void);' 'void c(void);' 'void c(void) { b(); }'
expect 'a call up' 1 'up: low/c_low.c -> middle/b_middle.c (b)'

begin
write high/a_high.c 'void c(void);' 'void a(void);' 'void a(void) { c(); }'
expect 'a folder that is not in the row' 1 'up: high/a_high.c -> low/c_low.c (c)'

begin
write middle/kind.h 'enum kind { ONE };'
write low/c_low.c '#include "middle/kind.h"' 'void c(void);' 'void c(void) {}'
expect 'an include up' 1 'up: low/c_low.c -> middle/kind.h (kind.h)'

begin
write middle/d_middle.c 'void b(void);' 'void d(void);' 'void d(void) { b(); }'
write middle/b_middle.c 'void d(void);' 'void b(void);' 'void b(void) { d(); }'
expect 'a circle by calls' 1 'circle of 2:'

# Three files, each of which only takes a type of the next.
begin
write middle/one.h '#include "two.h"' 'typedef two one;'
write middle/two.h 'typedef int two;'
write middle/two.c '#include "three.h"' 'three a_three;'
write middle/three.h 'typedef int three;'
write middle/three.c '#include "one.h"' 'one a_one;'
expect 'a circle by includes' 1 'circle of 3:'

# The facade calls its part, which includes the facade's header for an inline function.
begin
write middle/facade.h 'void facade(void);' 'static inline int two(void) { return 2; }'
write middle/facade.c '#include "facade.h"' '#include "part.h"' 'void facade(void) { (void)part(); }'
write middle/part.h 'int part(void);'
write middle/part.c '#include "facade.h"' '#include "part.h"' 'int part(void) { return two(); }'
expect 'a circle by a call and an include' 1 'middle/part.c -> middle/facade.c (facade.h)'
write middle/state.h 'static inline int two(void) { return 2; }'
write middle/facade.h 'void facade(void);'
write middle/part.c '#include "part.h"' '#include "state.h"' 'int part(void) { return two(); }'
expect 'the same with the state below both' 0 '0 circles'

begin
write low/inner/inside.c 'void c(void);' 'void inside(void);' 'void inside(void) { c(); }'
expect 'a folder inside uses its outer one' 0 '0 circles'

# Each row is kept, and yet the outer folders use each other.
begin
write high/inner/shared.c 'void shared(void);' 'void shared(void) {}'
write side/beside.c 'void shared(void);' 'void beside(void);' 'void beside(void) { shared(); }'
sed 's/^high:.*/high: side/' "$work/layers.txt" > "$work/other" && mv "$work/other" "$work/layers.txt"
write high/a_high.c 'void beside(void);' 'void a(void);' 'void a(void) { beside(); }'
expect 'a circle of folders' 1 'circle of folders of 2:'

begin
write middle/b_middle.c 'void moe_open(void);' 'void moe_open(void) {}' 'void moe_closed(void);' \
    'void moe_closed(void) {}'
write runtime/cli/command.c 'void moe_open(void);' 'void run(void);' 'void run(void) { moe_open(); }'
expect 'the command calls what is public' 0 '0 up'
write runtime/cli/command.c 'void moe_closed(void);' 'void run(void);' 'void run(void) { moe_closed(); }'
expect 'the command calls what is not' 1 'up: runtime/cli/command.c -> middle/b_middle.c (moe_closed)'

exit $failed
