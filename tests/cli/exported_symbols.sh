#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports what the public headers declare, with their symbol versions (MOE_1, and
# MOE_LAB_VERSION for lab.h), and nothing else; programs that link it ask for it by a name with the
# version of its ABI.
# Arguments: shared library, source folder, version.
set -u
list=$(mktemp -d) || exit 2
trap 'rm -rf "$list"' EXIT
nm -D --defined-only "$1" | awk '{ print $3 }' |
    grep -vE '^(_init|_fini|__asan_.*|__odr_asan.*|MOE_1|MOE_LAB_[0-9.]*)$' |
    LC_ALL=C sort >"$list/exported"
"$2/runtime/declared_functions.sh" "$3" "$2"/runtime/include/moe/*.h >"$list/declared" || exit 1
grep -q "^moe_file_cache_drop@@MOE_LAB_$3\$" "$list/declared" || {
    echo "no function of lab.h has the symbol version MOE_LAB_$3"
    exit 1
}
readelf -d "$1" | grep -q 'SONAME.*\[libmoe_offload\.so\.1\]' || {
    echo "the soname is not libmoe_offload.so.1: $(readelf -d "$1" | grep SONAME)"
    exit 1
}
diff "$list/declared" "$list/exported" && exit 0
echo "< declared with MOE_API, not exported; > exported, not declared"
exit 1
