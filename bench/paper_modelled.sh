#!/bin/sh
# SPDX-License-Identifier: MIT
# The papers' rows that need no clock, from the tree alone: modelled costs, tokens of a verification,
# expert misses. The same on every machine; some minutes on one core for the demo model.
# Arguments: the command, a model, OUT: a folder for NAME.csv, each beside NAME.command; one that is
# there is not made again.
# cascade-TEXT: Cascade, its ablations and static lengths, n-grams, temperature 0.7.
# cascade-mixed: the same on a stream of nine requests of three kinds of text.
# gamma: SpecMoE's drafts of 10 to 20 tokens, eight sequences, experts fetched at use.
# specmoe, specmoe-plain: bytes of experts a token of SpecMoE's drafts, which keep 16 and 32 of 64 experts of
# a layer and fetch the others at use, and of plain decoding with a cache of as many.
# budgets: MoE-Spec's expert budgets with trees of 63 at temperature 1 and 0.
set -eu
moe=$1 model=$2 out=$3
tree=$(dirname "$0")/..
mkdir -p "$out"
cat "$tree/bench/texts/gsm8k.txt" "$tree/bench/texts/shakespeare.txt" \
    "$tree/examples/demo-model/train.py" >"$out/mixed.txt"

# Arguments: name, text, configurations without their costs, further options.
speculate() (
    name=$1 text=$2 configs=$(echo "$3; " | sed 's/; / --cost bytes; /g; s/; $//')
    shift 3
    [ -s "$out/$name.csv" ] && return 0
    set -- "$moe" bench speculate -m "$model" -f "$text" -t 1 --repeat 1 --calibration none \
        --configs "$configs" --format csv "$@"
    echo "$*" >"$out/$name.command"
    "$@" >"$out/$name.new"
    mv "$out/$name.new" "$out/$name.csv"
)

configs=off
for k in 1 2 3 6; do
    configs="$configs; ngram --length-control static --draft-max $k"
done
for setting in cascade cascade:climb=off cascade:back-off=off cascade:disable=off survival; do
    configs="$configs; ngram --length-control $setting --draft-max 3"
done
configs="$configs; ngram --length-control cascade --draft-max 8"
for text in bench/texts/gsm8k.txt bench/texts/shakespeare.txt examples/demo-model/train.py; do
    name=cascade-$(basename "$text" | cut -d. -f1)
    speculate "$name" "$tree/$text" "$configs" -p 64 -n 200 --prompts 2 --temp 0.7 \
        --expert-cache 25%,50%,100% --parallel 1
done
speculate cascade-mixed "$out/mixed.txt" "$configs" -p 64 -n 100 --prompts 9 --temp 0.7 \
    --expert-cache 25%,50%,100% --parallel 1
configs='off --offload on-demand'
for k in 5 10 15 20; do
    configs="$configs; self --offload on-demand --draft-experts 16 --length-control static --draft-max $k"
done
speculate gamma "$tree/bench/texts/gsm8k.txt" "$configs" -p 32 -n 48 --temp 0 \
    --expert-cache 100% --parallel 8
configs='off --offload on-demand'
for n in 16 32; do
    configs="$configs; self --offload on-demand --draft-experts $n --length-control static --draft-max 5"
done
speculate specmoe "$tree/bench/texts/gsm8k.txt" "$configs" -p 64 -n 48 --temp 0 -b 3072 \
    --expert-cache 100% --parallel 1,8,64,256
speculate specmoe-plain "$tree/bench/texts/gsm8k.txt" off -p 64 -n 48 --temp 0 -b 3072 \
    --expert-cache 25%,50% --parallel 1,8,64,256
configs=off
for budget in 64 56 48 40 32 24 16 8; do
    configs="$configs; self --length-control static --draft-max 16 --tree 63 --expert-budget $budget"
    configs="$configs --quality-share 0.0001"
done
for temp in 1 0; do
    speculate "budgets-$temp" "$tree/bench/texts/gsm8k.txt" "$configs" -p 64 -n 64 --temp $temp \
        --expert-cache 25% --parallel 1
done
