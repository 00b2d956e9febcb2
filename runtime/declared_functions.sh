#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the functions that public headers declare with MOE_API, one a line, sorted, each with its
# symbol version: MOE_0, and for those of lab.h, which may change in every version of the library,
# MOE_LAB_VERSION. With --map first: the linker's version script that exports them and nothing else.
# Arguments: [--map] VERSION header...
set -eu
map=no
[ "$1" != --map ] || { map=yes; shift; }
version=$1
shift
# A declaration may go on over lines: from MOE_API to the first name before a parenthesis.
names() {
    cat "$@" </dev/null | grep -v '^#' | tr '\n' ' ' | grep -oE 'MOE_API [^;(]*\(' |
        grep -oE '[a-z_0-9]+\($' | tr -d '(' | LC_ALL=C sort
}
lab=
others=
for header in "$@"; do
    case $header in
    */lab.h) lab=$header ;;
    *) others="$others $header" ;;
    esac
done
# shellcheck disable=SC2086
stable=$(names $others)
experimental=$(names "$lab")
[ -n "$stable" ] && [ -n "$experimental" ] || { echo "no declarations in: $*" >&2; exit 1; }
if [ "$map" = no ]; then
    {
        printf '%s@@MOE_0\n' $stable
        printf "%s@@MOE_LAB_$version\n" $experimental
    } | LC_ALL=C sort
    exit 0
fi
echo 'MOE_0 {'
echo '    global:'
printf '        %s;\n' $stable
echo '    local:'
echo '        *;'
echo '};'
echo "MOE_LAB_$version {"
echo '    global:'
printf '        %s;\n' $experimental
echo '};'
