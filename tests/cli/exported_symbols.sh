#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports what the public headers declare, as version MOE_0, and nothing else;
# programs that link it ask for it by a name with the version of its ABI.
# Arguments: shared library, source folder.
set -u
list=$(mktemp -d) || exit 2
trap 'rm -rf "$list"' EXIT
nm -D --defined-only "$1" | awk '{ print $3 }' |
    grep -vE '^(_init|_fini|__asan_.*|__odr_asan.*|MOE_0)$' | LC_ALL=C sort >"$list/exported"
"$2/runtime/declared_functions.sh" "$2"/runtime/include/moe/*.h | sed 's/$/@@MOE_0/' \
    >"$list/declared" || exit 1
readelf -d "$1" | grep -q 'SONAME.*\[libmoe_offload\.so\.0\]' || {
    echo "the soname is not libmoe_offload.so.0: $(readelf -d "$1" | grep SONAME)"
    exit 1
}
diff "$list/declared" "$list/exported" && exit 0
echo "< declared with MOE_API, not exported; > exported, not declared"
exit 1
