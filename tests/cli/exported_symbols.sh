#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports what the public headers declare, with their symbol versions (MOE_0, and
# MOE_LAB_VERSION for lab.h), and nothing else; programs that link it ask for it by a name with the
# version of its ABI. Files that name the version name the same.
# Arguments: shared library, source folder, version.
set -u
list=$(mktemp -d) || exit 2
trap 'rm -rf "$list"' EXIT
nm -D --defined-only "$1" | awk '{ print $3 }' |
    grep -vE '^(_init|_fini|__asan_.*|__odr_asan.*|MOE_0|MOE_LAB_[0-9.]*)$' |
    LC_ALL=C sort >"$list/exported"
"$2/runtime/declared_functions.sh" "$3" "$2"/runtime/include/moe/*.h >"$list/declared" || exit 1
grep -q "^moe_file_cache_drop@@MOE_LAB_$3\$" "$list/declared" || {
    echo "no function of lab.h has the symbol version MOE_LAB_$3"
    exit 1
}
for file in runtime/include/moe/version.h runtime/python/pyproject.toml runtime/cli/moe-offload.1.in; do
    grep -qF "$3" "$2/$file" || {
        echo "$file is not of version $3"
        exit 1
    }
done
readelf -d "$1" | grep -q 'SONAME.*\[libmoe_offload\.so\.0\]' || {
    echo "the soname is not libmoe_offload.so.0: $(readelf -d "$1" | grep SONAME)"
    exit 1
}
diff "$list/declared" "$list/exported" && exit 0
echo "< declared with MOE_API, not exported; > exported, not declared"
exit 1
