#!/bin/sh
# SPDX-License-Identifier: MIT
# Every C and CUDA file of the tree $1 stands as clang-format 14 and .clang-format write it; other
# versions break lines elsewhere. Skips where version 14 is not installed. To repair:
#     tests/tidy/check_format.sh . --write
set -u
cd "$1" || exit 2
tool=
for name in clang-format-14 clang-format; do
    command -v $name >/dev/null && $name --version | grep -q 'version 14\.' && tool=$name && break
done
[ -n "$tool" ] || {
    echo "skipped: clang-format 14 is not installed (Debian 12: apt-get install clang-format)"
    exit 77
}
# older_moe.h is a copy of a header as it was.
find . -name .git -prune -o -path './build*' -prune -o -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    grep -zv '^\./tests/abi/older_moe\.h$' |
    if [ "${2:-}" = --write ]; then
        xargs -0 -P 2 -n 40 $tool -i
    else
        xargs -0 -P 2 -n 40 $tool --dry-run -Werror --ferror-limit=1 2>&1
    fi
