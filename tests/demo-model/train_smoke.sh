#!/bin/sh
# SPDX-License-Identifier: MIT
# The training script's smoke run writes a model that the command loads and runs. Skipped (77) where
# Python has no PyTorch, gguf or tokenizers, or the training texts are not at hand.
# Usage: train_smoke.sh MOE-OFFLOAD SOURCE-ROOT TEXTS
set -u
command=$1
root=$2
texts=$3
python3 -c 'import torch, gguf, tokenizers, numpy' 2>/dev/null || exit 77
[ -f "$texts/gsm8k-train.jsonl" ] && [ -f "$texts/tinyshakespeare.txt" ] || exit 77

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
python3 "$root/examples/demo-model/train.py" --smoke --out "$work" --data "$texts" || exit 1
# 12 random continuations would not be text: what is asked for is that the model loads and writes.
"$command" run -m "$work/smoke.gguf" -p "Question: " -n 12 --temp 0 --ignore-eos --json \
    >"$work/text" 2>"$work/statistics" || {
    cat "$work/statistics"
    exit 1
}
grep -q '"decode_tokens": *12' "$work/statistics" || {
    cat "$work/statistics"
    exit 1
}
