#!/bin/sh
# SPDX-License-Identifier: MIT
# The library's messages do not speak of the command's flags, but of fields of the options, and the
# command has a flag for each field that they name (but for a policy of the program's own).
# Arguments: program that turns fields into flags, source folder.
set -u
fields=$(realpath "$1")
cd "$2" || exit 2
status=0
library="$(find runtime -mindepth 1 -maxdepth 1 -type d ! -name 'cli*' ! -name server ! -name hub ! -name far ! -name packaging) cache offload
    cpu cuda"
# shellcheck disable=SC2086
if grep -rnE --include='*.c' '"[^"]*--[a-z]' $library; then
    echo "these messages name flags of the command; name the field of the options instead"
    status=1
fi
# shellcheck disable=SC2086
names=$(grep -rhE --include='*.c' '"[^"]*options\.[a-z_]+' $library | grep -v '^#include' |
    sed 's/[^"]*"\([^"]*\)"[^"]*/\1 /g' | grep -oE 'options\.[a-z_.]*[a-z]' |
    grep -vxE 'options\.(lab|lossy|own_policy)' | sort -u)
[ -n "$names" ] || { echo "no message names a field"; exit 1; }
for name in $names; do
    flag=$("$fields" "$name")
    grep -qF "\"$flag\"" runtime/cli_base/cli_option_table.c ||
        { echo "$name is told as $flag, which the command does not have"; status=1; }
done
words=$("$fields" 'raise options.host_memory, options.lab.foresight or tree_nodes, but not io.')
[ "$words" = 'raise --host-memory, --foresight or --tree, but not io.' ] || { echo "$words"; status=1; }
exit $status
