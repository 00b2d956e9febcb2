#!/bin/sh
# SPDX-License-Identifier: MIT
# The papers' figures on the model at hand: measures what each row of the table needs, then has
# paper_rows.py write OUT/table.csv and OUT/table.md. Every measurement is a file of its own under OUT
# with its command beside it (NAME.command); one that is there is not made again, so that a run which
# was stopped goes on, and one to be repeated is deleted.
# Arguments: the command, a model, a folder of texts (held_out_texts.py makes it), OUT, [smoke: a few
# tokens of each, to try the script]. About half an hour on two cores for the demo model.
# Link and SSD figures: a simulated device whose link moves an expert 50 times as long as two cores
# compute it, as 64 GB/s beside 3.35 TB/s; times are the machine's.
set -eu
moe=$1
model=$2
texts=$3
out=$4
[ "${5:-}" = smoke ] && smoke=1 || smoke=0
here=$(dirname "$0")
mkdir -p "$out"
calibration=$out/calibration.gguf
link=sim:memory=2G,link=500MB/s,latency=10us
free_link=sim:memory=2G,link=64GB/s,latency=0us

# Arguments: name of the file, the command. What it writes on stdout is the file.
part() {
    name=$1
    shift
    [ -s "$out/$name" ] && return 0
    echo "$*" >"$out/$name.command"
    date -u +"%H:%M:%S $name" >&2
    if "$@" >"$out/$name.new" 2>>"$out/errors"; then
        mv "$out/$name.new" "$out/$name"
    else
        echo "failed: $name (see $out/errors)" >&2
    fi
}

# Arguments: name, text, cache, batches, tokens to write, groups of prompts, repetitions,
# configurations, further options.
# (In a shell of its own: its variables are nobody else's.)
speculate() (
    name=$1 text=$2 cache=$3 batches=$4 n=$5 prompts=$6 repeat=$7 configs=$8
    shift 8
    [ "$smoke" -eq 1 ] && n=6 && prompts=1 && repeat=1 && batches=${batches%%,*}
    [ "$smoke" -eq 1 ] && [ "$batches" -gt 4 ] && batches=4
    part "$name.csv" "$moe" bench speculate -m "$model" -f "$texts/$text.txt" -p 64 -n "$n" \
        --prompts "$prompts" --repeat "$repeat" --expert-cache "$cache" --parallel "$batches" \
        --configs "$configs" --format csv "$@"
)

# Arguments: name, text, rows of a pass, further options.
perplexity() (
    name=$1 text=$2 rows=$3
    shift 3
    [ "$smoke" -eq 1 ] && text=smoke
    part "$name.json" "$moe" perplexity -m "$model" -f "$texts/$text.txt" -c 256 -b "$rows" \
        --json "$@"
)

{
    echo "date: $(date -u +%Y-%m-%d)"
    sed -n 's/^model name[^:]*: */processor: /p' /proc/cpuinfo | head -n 1
    echo "processors: $(nproc)"
    echo "load: $(cut -d ' ' -f 1-3 /proc/loadavg)"
    "$moe" --version
    "$moe" perplexity -m "$model" -f "$texts/smoke.txt" -c 256 --json 2>/dev/null | tr ',' '\n' |
        sed -n 's/.*"model_fingerprint": "\([0-9a-f]*\)".*/model: \1/p'
} >"$out/about"
cat "$out/about"
# Other weights, other figures: nothing measured on them is mixed in.
fingerprint=$(sed -n 's/^model: //p' "$out/about")
if [ -s "$out/fingerprint" ] && [ "$(cat "$out/fingerprint")" != "$fingerprint" ]; then
    echo "$out holds figures of another model" >&2
    exit 1
fi
echo "$fingerprint" >"$out/fingerprint"
[ -s "$calibration" ] ||
    "$moe" calibrate -m "$model" -f "$texts/calibrate.txt" -o "$calibration" >/dev/null 2>&1

# ---- SpecMoE: what the draft is made of (tokens a verification; no clock matters). A pass must have
# room for all drafts of the batch.
static='--length-control static --draft-max 10'
configs='off'
for n in 8 16; do
    for pin in random hot-global hot-temporal; do
        configs="$configs; self $static --draft-experts $n --draft-pin $pin --affinity output"
    done
done
speculate policy mixed 100% 64 32 1 1 "$configs" --device "$free_link" --offload on-demand \
    --calibration "$calibration" -b 1024
configs='off'
for n in 8 16 32 48; do
    configs="$configs; self $static --draft-experts $n --affinity output"
done
speculate pinned mixed 100% 64 32 1 1 "$configs" --device "$link" --offload on-demand \
    --calibration "$calibration" -b 1024
configs='off'
for kind in topk output weight coact router shuffled random none; do
    configs="$configs; self $static --draft-experts 16 --affinity $kind"
done
speculate affinity mixed 100% 64 32 1 1 "$configs" --device "$free_link" --offload on-demand \
    --calibration "$calibration" -b 1024

# ---- SpecMoE: bytes and throughput against its baselines, by batch and tier
static='--length-control static --draft-max 5'
configs="off --offload on-demand; off --offload overlap; off --offload caching"
configs="$configs; self $static --draft-experts 16 --offload on-demand"
configs="$configs; self --draft-experts 16 --offload on-demand"
configs="$configs; auto --draft-experts 16 --offload on-demand"
speculate link-small mixed 100% 1,8 64 3 3 "$configs" --device "$link" --calibration "$calibration"
speculate link-large mixed 100% 32,256 24 1 1 "$configs" --device "$link" -b 2048 \
    --calibration "$calibration"
# With 256 sequences an expert has 32 rows, whose products take two cores 0.04 ms (half of a step of
# 30 ms, over 384 experts); a GPU is hardly longer about 32 rows than about one. So here the link is
# as slow as makes moving such an expert 50 times as long.
slow_link=sim:memory=2G,link=50MB/s,latency=10us
configs="off --offload on-demand; off --offload overlap; off --offload caching"
for n in 8 16 32; do
    configs="$configs; self $static --draft-experts $n --offload on-demand"
done
configs="$configs; self --length-control static --draft-max 10 --draft-experts 32 --offload on-demand"
speculate link-matched gsm8k 100% 256 48 1 1 "$configs" --device "$slow_link" -b 3072 \
    --calibration "$calibration"
speculate ssd mixed 100% 1,8,32 48 1 2 "$configs" --calibration "$calibration"

# ---- Cascade: slow-downs by the clock, and without noise by modelled costs with its ablations
configs='off; ngram --length-control static --draft-max 1; ngram --length-control static --draft-max 2'
configs="$configs; ngram --length-control static --draft-max 3"
for control in cascade survival; do
    configs="$configs; ngram --length-control $control --draft-max 3"
done
configs="$configs; auto"
modelled=$(echo "$configs" | sed 's/; auto$//; s/;/ --cost bytes;/g')
for setting in t=2 t=8 set=32 back-off=off early-exit=off disable=off climb=off t=2,back-off=off; do
    modelled="$modelled --cost bytes; ngram --length-control cascade:$setting --draft-max 3"
done
modelled="$modelled --cost bytes; self --cost bytes; auto --cost bytes"
for text in gsm8k shakespeare python; do
    speculate "length-$text" "$text" 50%,100% 1 200 2 3 "$configs"
    speculate "modelled-$text" "$text" 25%,50%,100% 1 200 2 1 "$modelled"
done

# ---- MoE-Spec: budgets
for budget in 8 16 24 32 40 48 56; do
    for mode in router,substitute router,truncate static,substitute static,truncate \
        oracle,truncate; do
        perplexity "budget-$budget-$mode" lossy 63 --expert-budget "$budget" --quality-share 0.0001 \
            --expert-budget-mode "$mode,error" --calibration "$calibration"
    done
done
perplexity exact lossy 63
tree='--length-control static --draft-max 16'
budgeted="$tree --quality-share 0.0001"
configs='off'
for nodes in 3 7 15 31 63 127 255 511; do
    configs="$configs; self $tree --tree $nodes; self $budgeted --tree $nodes --expert-budget 32"
done
speculate trees mixed 25% 1 64 3 1 "$configs" --device "$link"
configs="off; self $tree --tree 63"
for budget in 8 16 24 32 40 48 56; do
    configs="$configs; self $budgeted --tree 63 --expert-budget $budget"
done
speculate budgets mixed 25% 1 64 3 3 "$configs" --device "$link"

# ---- BuddyMoE: accuracy by cache size, and speed over the link
# the paper's: a buddy has the weight of the expert that it replaces
buddies='rho=3,alpha=0.95,weight=inherit'
random='rho=3,random,max=16,weight=inherit'
for cache in 75 50 37.5; do
    for setting in $buddies,max=16 $buddies,max=2 rho=3,alpha=0.95,max=16,weight=own $random; do
        perplexity "buddy-$cache-$setting" lossy 1 --expert-cache "$cache%" --buddy "$setting" \
            --quality-share 0.0001 --calibration "$calibration"
    done
done
speculate buddies mixed 37.5%,50%,75% 1 64 3 3 \
    "off; off --buddy $buddies,max=16 --quality-share 0.0001; off --buddy $random --quality-share 0.0001" \
    --device "$link" --calibration "$calibration" --host-compute off

# ---- Routing, and what wider passes cost
if [ ! -s "$out/trace.jsonl" ]; then
    "$moe" run -m "$model" -f "$texts/routing.txt" -n 1 -c 2048 --temp 0 --quiet \
        --trace "$out/trace.new" >/dev/null
    mv "$out/trace.new" "$out/trace.jsonl"
fi
part routing.csv "$moe" analyze --trace "$out/trace.jsonl" --format csv
for rows in 1 2 4 9; do
    perplexity "width-memory-$rows" lossy "$rows"
    perplexity "width-link-$rows" width "$rows" --device "$link" --offload on-demand
done

# ---- Foresight and cache policies
part misses.csv "$here/foresight_misses.sh" "$moe" "$model" "$texts" "$smoke"

python3 "$here/paper_rows.py" "$out"
