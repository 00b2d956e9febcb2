#!/bin/sh
# SPDX-License-Identifier: MIT
# The programs of some families, as inspect prints them, against texts that were read beside the
# families' papers. After a change of the builders: read the difference, then run with --update.
# Arguments: moe-offload, folder of oracle models [--update].
set -u
golden=$(dirname "$0")/golden
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
for text in "$golden"/*.txt; do
    model=$(basename "$text" .txt)
    "$1" inspect -m "$2/$model/model.gguf" --program all >"$work/text" || failed=1
    [ "${3:-}" = --update ] && cp "$work/text" "$text"
    diff -u "$text" "$work/text" || failed=1
done
[ "$("$1" inspect -m "$2/olmoe/model.gguf" --program 1 | sed -n 2p)" = "layer 1" ] || {
    echo "one layer alone is not printed"
    failed=1
}
for wrong in 2 -1 first ""; do
    "$1" inspect -m "$2/olmoe/model.gguf" --program "$wrong" >"$work/out" 2>"$work/err" && {
        echo "--program '$wrong' is accepted"
        failed=1
    }
    [ -s "$work/out" ] && failed=1
done
exit $failed
