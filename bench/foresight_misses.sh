#!/bin/sh
# SPDX-License-Identifier: MIT
# Experts that had to be moved for an emitted token: the engine with a self draft and foresight,
# beside cache policies on the recorded routing of the same run (verified rows, those not accepted
# included) and of plain decoding, with Belady's bound for both. The prompt is not counted.
# Arguments: the command, a model, a folder of texts, [1: a few tokens only]. CSV on stdout.
set -eu
moe=$1
model=$2
texts=$3
[ "${4:-0}" = 1 ] && n=12 || n=300
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A number of a JSON object that stands in a file.
field() { tr ',' '\n' <"$2" | sed -n "s/^[ {]*\"$1\": *\([0-9.e+-]*\).*/\1/p" | head -n 1; }

# Arguments: name, tokens, further options. Leaves NAME.json (and the trace if it is asked for).
decode() {
    name=$1 tokens=$2
    shift 2
    "$moe" run -m "$model" -f "$work/prompt" -n "$tokens" --temp 0 --ignore-eos -c 1024 \
        --expert-cache "$cache" --json "$@" >/dev/null 2>"$work/$name.json"
}

# Bytes of experts that were asked for or read ahead between two runs, the shorter one first; by the
# second's cause. In experts a token.
moved() {
    for cause in bytes_demand bytes_prefetch bytes_foresight; do
        a=$(field $cause "$work/$1.json")
        b=$(field $cause "$work/$2.json")
        awk -v a="${a:-0}" -v b="${b:-0}" -v e="$expert_bytes" -v n="$n" \
            'BEGIN { printf "%.2f,", (b - a) / e / (n - 1) }'
    done
}

# Misses of each policy on a trace without its first pass (the prompt), for an emitted token.
policies() {
    for policy in lru least-stale lfru belady; do
        "$moe" simulate --trace "$1" --expert-cache "$cache" --policy $policy --warm-up 1 --json \
            >"$work/simulated.json"
        awk -v m="$(field misses "$work/simulated.json")" -v n="$n" \
            'BEGIN { printf ",%.2f", m / (n - 1) }'
    done
}

expert_bytes=$("$moe" inspect -m "$model" --json | tr ',' '\n' |
    sed -n 's/^ *"largest_expert_bytes": *\([0-9]*\).*/\1/p' | head -n 1)
echo "text,cache,run,tau,demand,prefetch,foresight,recall,lru,least-stale,lfru,belady"
for text in gsm8k shakespeare python; do
    head -c 900 "$texts/$text.txt" >"$work/prompt"
    for cache in 25% 50%; do
        for run in off self-2 self-4; do
            case $run in
            off) set -- --speculate off ;;
            *) set -- --speculate self --length-control static --draft-max "${run#self-}" ;;
            esac
            decode start 1 "$@" --prefetch off
            decode whole "$n" "$@" --prefetch off --trace "$work/trace.jsonl"
            printf '%s,%s,%s,%s,' $text $cache $run \
                "$(field tokens_per_verification "$work/whole.json")"
            moved start whole
            awk -v a="$(field foresight_asked "$work/whole.json")" \
                -v r="$(field foresight_right "$work/whole.json")" \
                'BEGIN { printf "%.3f", (a > 0) ? r / a : 0 }'
            policies "$work/trace.jsonl"
            echo
        done
    done
done
