#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the structure of the library and of the command: files and calls between files, room by room
# (a room is a folder of layers.txt), and fails where it is not one.
#
#     tests/tidy/structure.sh BUILD [LAYERS [SOURCE]]
#
# An arrow is a pair of files one of which calls or names what the other defines, as the object files
# in BUILD tell (nm). An arrow is *up* when its rooms are two, and the row of its first room in
# LAYERS (SOURCE/tests/tidy/layers.txt) does not list the second. The command's rooms may besides call
# whatever the public headers declare. A circle is a set of files that call each other in one
# (check_circles.sh). The exit status is 1 when there is an arrow up or a circle.
#
# What is not compiled is not counted: the CUDA module, for one, where it is not built.
# The way of a row through the files is told by way_of_row.py.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 2
source=$(cd "${3:-$here/../..}" && pwd) || exit 2
layers=${2:-$source/tests/tidy/layers.txt}
layers=$(cd "$(dirname "$layers")" && pwd)/$(basename "$layers")
command -v nm >/dev/null || exit 77
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

cd "$source" || exit 2
# "name folder" of every source; names are unique in the tree.
sed -n 's/^\([a-z][^:]*\):.*/\1/p' "$layers" | while read -r room; do
    find "$room" -maxdepth 1 \( -name '*.c' -o -name '*.cpp' -o -name '*.cu' \) 2>/dev/null |
        sed "s|\(.*\)/\(.*\)|\2 \1|"
done > "$work/sources"
cat runtime/include/moe/*.h 2>/dev/null | grep -oE 'moe_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u \
    > "$work/public"

cd "$build" || exit 2
objects=$(find . -name '*.o' -not -path './tests/*' -not -path './examples/*')
[ -n "$objects" ] || { echo "there are no object files in $1" >&2; exit 2; }
# Lines "symbol file room": what each file defines, and what it takes from elsewhere. An object is
# called folder_folder_name.c.o: its source is the longest end of that which is a source's name.
# shellcheck disable=SC2086
nm -A $objects 2>/dev/null | awk -v defined="$work/defined" -v taken="$work/taken" '
    NR == FNR { room_of[$1] = $2; next }
    {
        object = $1
        sub(/:.*/, "", object)
        sub(/.*\//, "", object)
        sub(/\.o$/, "", object)
        if (!(object in source_of)) {
            name = object
            while (!(name in room_of) && sub(/^[^_]*_/, "", name)) {}
            source_of[object] = (name in room_of) ? name : ""
        }
        file = source_of[object]
        if (file == "") next
        kind = $(NF - 1)
        if (kind ~ /^[TDBRVW]$/) print $NF, file, room_of[file] > defined
        if (kind == "U" || $1 ~ /:U$/) print $NF, file, room_of[file] > taken
    }' "$work/sources" -
sort -u "$work/defined" -o "$work/defined"
sort -u "$work/taken" -o "$work/taken"
[ -s "$work/defined" ] && [ -s "$work/taken" ] || { echo "nm told nothing" >&2; exit 2; }
# "from from's-room to to's-room symbol"
join "$work/taken" "$work/defined" | awk '$2 != $4 { print $2, $3, $4, $5, $1 }' > "$work/uses"

awk -v sources="$work/sources" -v public_names="$work/public" -v layers="$layers" '
    BEGIN {
        while ((getline line < layers) > 0) {
            if (line !~ /^[a-z][^:]*:/) continue
            room = line
            sub(/:.*/, "", room)
            sub(/^[^:]*:/, "", line)
            rooms[++n_rooms] = room
            n = split(line, list, " ")
            for (i = 1; i <= n; i++) allowed[room, list[i]] = 1
        }
        while ((getline line < public_names) > 0) is_public[line] = 1
    }
    { used[$1] = $2; used[$3] = $4 }
    {
        from = $1; to = $3
        if (!((from, to) in arrows)) { arrows[from, to] = 1; n_arrows++; if ($2 == $4) inside[$2]++; else { out[$2]++; into[$4]++; n_between++ } }
        if ($2 == $4 || ($2, $4) in allowed) next
        if ($2 ~ /^(runtime\/cli|runtime\/server|bench|examples)/ && ($5 in is_public)) next
        if (!((from, to) in up)) { up[from, to] = 1; n_up++ }
        print "up: " $2 "/" from " -> " $4 "/" to " (" $5 ")"
    }
    END {
        for (file in used) { files[used[file]]++; n_files++ }
        printf "%-22s %5s  %6s %6s %6s\n", "room", "files", "inside", "out", "in"
        for (i = n_rooms; i > 0; i--) {
            r = rooms[i]
            if (files[r]) printf "%-22s %5d  %6d %6d %6d\n", r, files[r], inside[r], out[r], into[r]
        }
        printf "%d files, %d arrows, %d of them between rooms, %d up\n", n_files, n_arrows,
            n_between, n_up
        exit n_up > 0
    }' "$work/uses"
status=$?
if circles=$("$here/check_circles.sh" "$build" 1); then
    echo "no circle"
else
    echo "circles:"
    echo "$circles"
    status=1
fi
exit $status
