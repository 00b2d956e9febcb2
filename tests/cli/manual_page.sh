#!/bin/sh
# SPDX-License-Identifier: MIT
# Every option that any command's --help-all lists is in the manual page, in bold, and no help line is
# wider than 100 columns. Arguments: the command, the page.
set -u
moe=$1
page=$2
failed=0
n=0

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

titles=$("$moe" --help | sed -n 's/^  \([a-z]\+\( [a-z]\+\)\?\)   *.*/\1/p' | tr ' ' '+')
for title in $titles; do
    # shellcheck disable=SC2046
    set -- $(echo "$title" | tr '+' ' ')
    help=$("$moe" "$@" --help-all) || fail "$*: no help"
    echo "$help" | awk 'length($0) > 100 { exit 1 }' || fail "$*: a line of more than 100 columns"
    for option in $(echo "$help" | sed -n 's/^  \(-[^ ]*,\? \?-\?-\?[a-z-]*\).*/\1/p' | tr -d ','); do
        case $option in --help | -h) continue ;; -*) ;; *) continue ;; esac
        bold="\\fB$(printf "%s" "$option" | sed 's/-/\\-/g')\\fR"
        grep -qF -e "$bold" "$page" || fail "$*: $option is not in the page"
        n=$((n + 1))
    done
done
if command -v groff >/dev/null; then
    warnings=$(groff -man -Tutf8 -ww "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "groff: $warnings"
fi
[ "$n" -gt 200 ] || fail "only $n options were looked for"
echo "$n options looked for, $failed failed"
[ "$failed" -eq 0 ]
