#!/bin/sh
# SPDX-License-Identifier: MIT
# cppcheck finds nothing in the library and the command of the tree $1, at the levels warning and
# portability. What it is wrong about is in cppcheck_suppressions.txt, each with its reason. Skips
# where cppcheck is not installed.
set -u
cd "$1" || exit 2
command -v cppcheck >/dev/null || {
    echo "skipped: cppcheck is not installed (Debian: apt-get install cppcheck)"
    exit 77
}
# Files of an instruction set are left out: cppcheck does not know the intrinsics. So are the codebooks,
# which are constants alone: it takes twice as long over their macros as over all the rest.
cppcheck -j2 --quiet --std=c11 --enable=warning,portability --error-exitcode=1 \
    --suppressions-list=tests/tidy/cppcheck_suppressions.txt --template='{file}:{line}: {id}: {message}' \
    -D__x86_64__ -D_GNU_SOURCE -I. -Iruntime/include -i cpu/kernels/codebooks.c \
    runtime cache offload cpu/*.c cpu/kernels cuda/*.c 2>&1
