#!/bin/sh
# SPDX-License-Identifier: MIT
# A cache policy whose every nomination is refused is told of: in simulate's table, CSV and JSON, in
# the statistics of run, in bench decode and in the table of bench cache. One without faults is not.
# Arguments: command, model, plug-in.
set -u
command=$1
model=$2
plugin=$3
status=0
out=$(mktemp) || exit 2
trap 'rm -f "$out"' EXIT

# Arguments: extended regular expression, then what to run.
expect() {
    pattern=$1
    shift
    "$@" >"$out" 2>&1 || { echo "$* failed:"; cat "$out"; status=1; return; }
    grep -qE "$pattern" "$out" || { echo "$*: no '$pattern' in:"; cat "$out"; status=1; }
}

simulate="simulate --synthetic olmoe --policy"
# shellcheck disable=SC2086
{
    expect '[1-9][0-9]* nominations could not be evicted' "$command" $simulate "$plugin"
    expect '^([^,]*,){16}policy_faults(,|$)' "$command" $simulate "$plugin" --format csv
    expect '^([^,]*,){16}[1-9][0-9]*(,|$)' "$command" $simulate "$plugin" --format csv
    expect '"policy_faults": ?[1-9]' "$command" $simulate "$plugin" --format json
    expect '"policy_faults": ?0' "$command" $simulate lfru --format json
    "$command" $simulate lfru | grep 'could not be evicted' && status=1
}
run="run -m $model -p Once -n 12 --temp 0 --prefetch off --expert-cache 30% --policy"
# shellcheck disable=SC2086
{
    expect 'policy: [1-9][0-9]* nominations' "$command" $run "$plugin"
    expect '"policy_faults": ?[1-9]' "$command" $run "$plugin" --json
    expect '"policy_faults": ?0' "$command" $run lfru --json
}
expect '"policy_faults": ?[1-9]' "$command" bench decode -m "$model" -p 8 -n 8 --repeat 1 \
    --expert-cache 30% --policy "$plugin" --json
exit $status
