#!/bin/sh
# SPDX-License-Identifier: MIT
# Source files of the library and of the command must not call each other in a circle. The calls are
# read from the object files in the build folder $1: an undefined symbol of one file that another
# file defines. Prints each circle; the exit status is 1 when there is one.
set -u
export LC_ALL=C
cd "$1" || exit 2
command -v nm >/dev/null && command -v tsort >/dev/null || exit 77
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

objects=$(find . -name '*.o' -not -path './tests/*' -not -path './examples/*')
[ -n "$objects" ] || { echo "there are no object files in $1" >&2; exit 2; }
# Lines "symbol file": what each file defines, and what it takes from elsewhere.
# shellcheck disable=SC2086
nm -A $objects 2>/dev/null | awk -v defined="$work/defined" -v taken="$work/taken" '
    {
        file = $1
        sub(/:.*/, "", file)
        sub(/.*\//, "", file)
        sub(/\.o$/, "", file)
        kind = $(NF - 1)
        if (kind ~ /^[TDBRVW]$/) print $NF, file > defined
        if (kind == "U" || $1 ~ /:U$/) print $NF, file > taken
    }'
sort -u "$work/defined" -o "$work/defined"
sort -u "$work/taken" -o "$work/taken"
[ -s "$work/defined" ] && [ -s "$work/taken" ] || { echo "nm told nothing" >&2; exit 2; }
join "$work/taken" "$work/defined" | awk '$2 != $3 { print $2, $3 }' | sort -u > "$work/calls"
if [ "$(wc -l < "$work/calls")" -lt "${2:-100}" ]; then
    echo "only $(wc -l < "$work/calls") calls between files were found" >&2
    exit 2
fi
if ! tsort "$work/calls" > /dev/null 2> "$work/loops"; then
    sed 's/^tsort: -*:* *//; s/^tsort: //' "$work/loops"
    exit 1
fi
