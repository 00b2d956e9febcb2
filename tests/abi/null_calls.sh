#!/bin/sh
# SPDX-License-Identifier: MIT
# Writes a C function that calls every function of the public headers with 0 and NULL for all of its
# arguments. check() is told what those return that return a status. Arguments: header...
set -eu
echo '/* SPDX-License-Identifier: MIT */'
for header in "$@"; do
    echo "#include <moe/${header##*/}>"
done
echo '#include "null_calls.h"'
echo 'void call_all_with_null(void (*check)(const char *name, int status))'
echo '{'
cat "$@" | grep -v '^#' | tr '\n' ' ' | grep -oE 'MOE_API [^;{]*\([^;{]*\);' | sed 's/  */ /g' |
    while IFS= read -r declaration; do
        name=$(printf '%s' "$declaration" | grep -oE '[a-z_0-9]+\(' | head -n 1 | tr -d '(')
        inside=${declaration#*"$name("}
        inside=${inside%);}
        zeros=
        if [ "$inside" != void ]; then
            n=$(printf '%s' "$inside" | tr -cd ',' | wc -c)
            zeros=0
            while [ "$n" -gt 0 ]; do
                zeros="$zeros, 0"
                n=$((n - 1))
            done
        fi
        case $declaration in
        "MOE_API int $name("*) echo "    check(\"$name\", $name($zeros));" ;;
        *) echo "    (void)$name($zeros);" ;;
        esac
    done
echo '}'
