#!/bin/sh
# SPDX-License-Identifier: MIT
# Every function of a public header belongs to exactly one group of the thread rules at the header's
# top ("free: moe_version, moe_free"), and a group names only functions that its header declares.
# Arguments: header...
set -u
status=0
fail() {
    echo "$1"
    status=1
}
for header in "$@"; do
    declared=$(grep -v '^#' "$header" | tr '\n' ' ' |
        grep -oE '(MOE_API|static inline|visibility\("default"\)\)\)) [^;({]*\(' |
        grep -oE 'moe_[a-z_0-9]+\($' | tr -d '(' | LC_ALL=C sort)
    # The first comment: its groups go from "free:" and so on to the next line that is no list.
    listed=$(awk '/#ifndef/ { exit } { print }' "$header" | sed 's/^ \* *//; s/ *\*\/$//' |
        awk '/^(free|reading|in turn|own|last): *moe_/ { on = 1; sub(/^[a-z ]*: */, "") }
             on && /^moe_/ { print; next } { on = 0 }' |
        sed 's/([^)]*)//g' | tr ',' '\n' | tr -d ' .' | grep . | LC_ALL=C sort)
    twice=$(printf '%s\n' "$listed" | uniq -d)
    [ -z "$twice" ] || fail "$header: in two groups of threads: $(echo $twice)"
    for name in $declared; do
        printf '%s\n' "$listed" | grep -qx "$name" ||
            fail "$header: $name() is in no group of threads (free, reading, in turn, own, last)"
    done
    for name in $listed; do
        printf '%s\n' "$declared" | grep -qx "$name" ||
            fail "$header: a group of threads names $name, which the header does not declare"
    done
done
exit $status
