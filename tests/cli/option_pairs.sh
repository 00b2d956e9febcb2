#!/bin/sh
# SPDX-License-Identifier: MIT
# Every pair of options that the table of rules refuses, through the command itself: exit status 2,
# nothing on standard output, one line that names both options; with MOE_TEST_SIZE=small one pair of
# eight. Arguments: the command, option_pairs.
set -u
moe=$1
option_pairs=$2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
n=0
tried=0
every=1
[ "${MOE_TEST_SIZE:-}" != small ] || [ -n "${MOE_TEST_WHOLE:-}" ] || every=8

fail() {
    echo "FAIL $*: status $got: $(cat "$work/err")"
    failed=$((failed + 1))
}

"$option_pairs" "$work/messages" >"$work/pairs" || {
    grep -v '|' "$work/pairs"
    exit 1
}

# The option as a word of the message.
names() {
    grep -qE -e " $1( |:|,|\$)" "$work/err"
}

while IFS='|' read -r command option other arguments; do
    case $command in '#'*) echo "$command"; continue ;; esac
    n=$((n + 1))
    [ $((n % every)) -eq 0 ] || continue
    tried=$((tried + 1))
    eval "set -- $command $arguments"
    "$moe" "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    [ "$got" -eq 2 ] || fail "$@"
    [ ! -s "$work/out" ] || fail "$@: standard output"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$@: lines"
    names "$option" && names "$other" || fail "$@: does not name both"
done <"$work/pairs"

[ "$n" -gt 100 ] || { echo "only $n pairs are refused"; failed=$((failed + 1)); }
echo "$tried of $n refused pairs through the command, $failed failed"
[ "$failed" -eq 0 ]
