#!/bin/sh
# SPDX-License-Identifier: MIT
# A model under real memory limits: experts at several shares, each run inside a memory control group
# that is a sixth larger than what the plan says the process will take (an eighth of a limit is
# headroom that the command keeps by itself); 100 % runs without a limit and is the reference.
# Checked: every run writes the same tokens, none is killed, and the peak of
# the resident set is the plan's figure, less slots that were never filled, within 2 % (and 4 MiB of
# small things that plans set aside).
# Prints a table (Markdown) and exits with 1 when a check fails. To be run as root; the model needs
# memory for all of its experts, or leave 100 out of the shares: the first is then the reference.
#   memory_limit.sh COMMAND MODEL [SHARES [TOKENS [THREADS]]]     e.g. build/moe-offload m.gguf
# The prompt, random tokens, is cut into chunks of 64 and fills the context with what is written, so
# that all that the plan counts is used; the plan's figure is the ceiling (--host-memory). The model's pages are dropped from the page cache before each run, and the group
# begins empty; what the kernel caches for it counts in its peak, and gives way.
set -u
moe=${1:?the command}
model=${2:?a model}
shares=${3:-100 50 25 10 5}
n=${4:-16}
threads=${5:-2}
work=$(mktemp -d) || exit 2
group=
trap '[ -n "$group" ] && rmdir "$group"; rm -rf "$work"' EXIT

if [ -d /sys/fs/cgroup/memory ]; then # version 1
    group=/sys/fs/cgroup/memory/moe-limit-$$
    limit_file=memory.limit_in_bytes peak_file=memory.max_usage_in_bytes
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
    group=/sys/fs/cgroup/moe-limit-$$
    limit_file=memory.max peak_file=memory.peak
fi
if [ -z "$group" ]; then
    echo "no memory controller: this needs /sys/fs/cgroup" >&2
    exit 2
fi

n_prompt=200
options="-c $((n_prompt + n + 1)) -b 64 -t $threads"

# Numbers and words of a JSON file.
field() {
    tr ',{}' '\n\n\n' <"$2" | sed -n "s/^ *\"$1\": *\"*\([^\"]*[^\" ]\)\"* *$/\1/p" | head -n 1
}
number() {
    value=$(field "$1" "$work/run")
    echo "${value:-0}"
}
in_mib() {
    awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 1048576 }'
}

# Arguments: share, ceiling, limit of the group or "none".
run_in_group() {
    mkdir "$group" || exit 2
    [ "$3" = none ] || echo "$3" >"$group/$limit_file" || exit 2
    # shellcheck disable=SC2086 # $options are several words
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$moe" bench decode -m "$model" \
        $options -p $n_prompt -n "$n" --repeat 1 --json --host-memory "$2" --expert-cache "$1%" \
        >"$work/run" 2>&1
    status=$?
    group_peak=$(cat "$group/$peak_file" 2>/dev/null || echo 0)
    rmdir "$group"
}

echo "model: $model, $("$moe" --version), $n_prompt prompt tokens, $n written, $threads threads"
echo
echo "| experts | slots, filled | limit MiB | plan MiB | peak RSS MiB | peak / plan | group's peak MiB |" \
    "tokens/s | MiB read a token | tokens |"
echo "|---|---|---|---|---|---|---|---|---|---|"
reference=
failed=0
for share in $shares; do
    # shellcheck disable=SC2086
    "$moe" plan -m "$model" $options --expert-cache "$share%" --json >"$work/plan" || exit 1
    plan=$(field total_bytes "$work/plan")
    limit=none
    [ "$share" -lt 100 ] && limit=$((plan + plan / 6))
    dd if="$model" iflag=nocache count=0 2>/dev/null # drops the file's pages
    run_in_group "$share" $((plan + 1048576)) "$limit" # the process differs from run to run
    hash=$(field tokens_xxh128 "$work/run")
    peak=$(number peak_rss_bytes)
    [ -n "$reference" ] || reference=$hash
    verdict=$(printf '%.12s' "$hash")
    if [ "$status" -ne 0 ] || [ -z "$hash" ]; then
        verdict="exit status $status: $(head -c 200 "$work/run")"
        failed=1
    elif [ "$hash" != "$reference" ]; then
        verdict="$verdict OTHER TOKENS"
        failed=1
    fi
    # Slots that a short run had no expert for are not touched, and so not in memory.
    slots=$(field expert_slots "$work/plan")
    cache=$(field expert_cache_bytes "$work/plan")
    filled=$((($(number bytes_demand) + $(number bytes_prefetch)) * slots / cache))
    [ "$(number expert_evictions)" -eq 0 ] || filled=$slots
    ratio=$(awk -v peak="$peak" -v plan=$((plan - cache * (slots - filled) / slots)) 'BEGIN {
        off = peak > plan ? peak - plan : plan - peak
        printf "%.4f%s", peak / plan, (off > 0.02 * plan + 4194304) ? " NOT WITHIN 2 %" : "" }')
    case $ratio in *NOT*) failed=1 ;; esac
    [ "$limit" = none ] || limit=$(in_mib "$limit")
    echo "| $share % | $slots, $filled | $limit | $(in_mib "$plan") |" \
        "$(in_mib "$peak") | $ratio | $(in_mib "$group_peak") |" \
        "$(sed -n '/"decode"/s/.*"decode"[^}]*"tokens_per_s_median": *\([0-9.]*\).*/\1/p' "$work/run") |" \
        "$(awk -v b="$(number bytes_read_disk)" -v n=$((n_prompt + n)) \
            'BEGIN { printf "%.1f", b / 1048576 / n }') | $verdict |"
done
group=
exit $failed
