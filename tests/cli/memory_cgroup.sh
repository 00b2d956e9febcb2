#!/bin/sh
# SPDX-License-Identifier: MIT
# Inside a memory control group the default budget follows the group's limit, and the command is not
# killed. usage: memory_cgroup.sh COMMAND MODEL [LIMIT-BYTES]
# Skipped (77) without a memory controller that this user may make groups in.
# shellcheck disable=SC2086 # $options are several words
set -u
command=$1
model=$2
group=
if [ -d /sys/fs/cgroup/memory ]; then # v1
    group=/sys/fs/cgroup/memory/moe-test-$$
    limit_file=memory.limit_in_bytes
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then # v2
    group=/sys/fs/cgroup/moe-test-$$
    limit_file=memory.max
fi
[ -n "$group" ] && mkdir "$group" 2>/dev/null || exit 77
trap 'rmdir "$group"' EXIT

options="-c 256 -b 64 -t 2"
floor=$("$command" plan -m "$model" $options --json | sed 's/.*"floor_bytes": *\([0-9]*\).*/\1/')
limit=${3:-$(((floor + floor / 2) / 1048576 * 1048576))} # whole MiB, as messages tell it
[ -w "$group/$limit_file" ] && echo "$limit" >"$group/$limit_file" || exit 77

in_group() {
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$command" "$@"
}
plan=$(in_group plan -m "$model" $options --json) || {
    echo "plan failed: $plan"
    exit 1
}
budget=$(echo "$plan" | sed 's/.*"budget_bytes": *\([0-9]*\).*/\1/')
process=$(echo "$plan" | sed 's/.*"process_bytes": *\([0-9]*\).*/\1/')
echo "limit $limit, budget $budget, of which the process $process"
if [ "$budget" -gt "$limit" ]; then
    echo "the budget is above the group's limit"
    exit 1
fi
alone=$("$command" run -m "$model" $options -p 'Once upon a time' -n 100 --temp 0 --ignore-eos --quiet)
inside=$(in_group run -m "$model" $options -p 'Once upon a time' -n 100 --temp 0 --ignore-eos --quiet)
status=$?
if [ "$status" -ne 0 ] || [ "$alone" != "$inside" ]; then
    echo "exit $status; wrote: $inside"
    exit 1
fi

# More than the group has is refused, with what is there, unless that is asked for by name.
if out=$(in_group run -m "$model" $options -p a -n 2 --host-memory $((2 * limit)) 2>&1); then
    echo "a budget of twice the limit was accepted"
    exit 1
fi
case $out in
*"more than there is"*"$((limit / 1048576)) MiB"*--overcommit-memory*) ;;
*)
    echo "the error does not tell what is there: $out"
    exit 1
    ;;
esac
in_group plan -m "$model" $options --host-memory $((2 * limit)) --overcommit-memory >/dev/null || exit 1
# What fills a small group is named by the option that changes it.
out=$(in_group plan -m "$model" -c 256 -b 4096 -t 2 2>&1) && exit 1
case $out in *"prefill chunk"*"-b"*) ;; *) echo "no -b in: $out" && exit 1 ;; esac
out=$(in_group plan -m "$model" -c 30000 -b 64 -t 2 2>&1) && exit 1
case $out in *"smaller context"*"-c"*) ;; *) echo "no -c in: $out" && exit 1 ;; esac

# A group far too small: refused by the plan, or killed before there is one; never a budget above it.
for small in $((floor / 2)) $((floor / 4)); do
    echo "$small" >"$group/$limit_file" || continue # less than what the group holds now
    plan=$(in_group plan -m "$model" $options --json 2>"${TMPDIR:-/tmp}/moe-small-$$")
    status=$?
    budget=$(echo "$plan" | sed 's/.*"budget_bytes": *\([0-9]*\).*/\1/')
    echo "limit $small: exit $status, budget ${budget:-none}"
    rm -f "${TMPDIR:-/tmp}/moe-small-$$"
    if [ -n "$budget" ] && { [ "$status" -ne 1 ] || [ "$budget" -gt "$small" ]; }; then
        exit 1
    fi
done
