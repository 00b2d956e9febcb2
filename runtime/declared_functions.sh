#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the functions that public headers declare with MOE_API, one a line, sorted. With --map
# first: the linker's version script that exports them, and nothing else, as version MOE_0.
# Arguments: [--map] header...
set -eu
map=no
[ "$1" != --map ] || { map=yes; shift; }
# A declaration may go on over lines: from MOE_API to the first name before a parenthesis.
names=$(cat "$@" | grep -v '^#' | tr '\n' ' ' | grep -oE 'MOE_API [^;(]*\(' |
    grep -oE '[a-z_0-9]+\($' | tr -d '(' | LC_ALL=C sort)
[ -n "$names" ] || { echo "no declarations in: $*" >&2; exit 1; }
if [ "$map" = no ]; then
    printf '%s\n' "$names"
    exit 0
fi
echo 'MOE_0 {'
echo '    global:'
printf '        %s;\n' $names
echo '    local:'
echo '        *;'
echo '};'
