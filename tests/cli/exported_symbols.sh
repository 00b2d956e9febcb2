#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports what the public headers declare, and nothing else.
# Arguments: shared library, source folder.
set -u
list=$(mktemp -d) || exit 2
trap 'rm -rf "$list"' EXIT
nm -D --defined-only "$1" | awk '{ print $3 }' | grep -vE '^(_init|_fini|__asan_|__odr_asan)' |
    sort >"$list/exported"
# A declaration may go on over lines: from MOE_API to the first name before a parenthesis.
grep -hv '^#' "$2"/runtime/include/moe/*.h | tr '\n' ' ' | grep -oE 'MOE_API [^;(]*\(' |
    grep -oE '[a-z_0-9]+\($' | tr -d '(' | sort >"$list/declared"
[ -s "$list/declared" ] || { echo "no declarations found"; exit 1; }
diff "$list/declared" "$list/exported" && exit 0
echo "< declared with MOE_API, not exported; > exported, not declared"
exit 1
