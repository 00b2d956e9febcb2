#!/bin/sh
# SPDX-License-Identifier: MIT
# Compiles the kernels and their tests for 64-bit ARM. Arguments: compiler, source folder, then programs
# to write. Program arm_NAME runs tests/kernels/test_NAME.c; it needs no shared library.
set -eu
compiler=$1
root=$2
shift 2
objects=$(dirname "$1")/arm_objects
mkdir -p "$objects"
flags="-std=gnu11 -O2 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -Wall -Wextra -Wshadow
    -Wstrict-prototypes -Wmissing-prototypes -Werror -I$root -I$root/runtime/include
    -isystem $root/tests/arm/stand_in"

# Arguments: a source, flags of its own.
compile() {
    source=$1
    shift
    # shellcheck disable=SC2086
    "$compiler" $flags "$@" -c "$root/$source" -o "$objects/$(echo "$source" | tr / _).o"
}

for source in "$root"/cpu/kernels/*.c "$root"/cpu/arm/*.c; do
    source=${source#"$root"/}
    case $source in
    cpu/kernels/arch_generic.c) ;;
    cpu/arm/matmul_dotprod.c) compile "$source" -march=armv8.2-a+dotprod ;;
    cpu/arm/matmul_i8mm.c) compile "$source" -march=armv8.2-a+dotprod+i8mm ;;
    *) compile "$source" ;;
    esac
done
for source in cpu/cpu_features.c cpu/kernel_tables.c runtime/base/alloc.c runtime/base/dtype.c \
    tests/kernels/matmul_cases.c tests/kernels/tile_emulation_none.c tests/arm/no_bench.c; do
    compile "$source"
done
for program in "$@"; do
    name=$(basename "$program")
    # shellcheck disable=SC2086
    "$compiler" $flags -static "$root/tests/kernels/test_${name#arm_}.c" "$objects"/*.o -lm \
        -o "$program"
done
