#!/bin/sh
# SPDX-License-Identifier: MIT
# What the command says about metadata that change the result: refused keys, unknown ones, a window,
# a gate that is not said. Arguments: the command, edit_gguf, the folder of oracles.
set -u
moe=$1
edit=$2
oracle=$3
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAIL $1"
    sed 's/^/    stderr: /' "$work/stderr" | head -n 5
    failed=$((failed + 1))
}

# Arguments: the oracle's name, the copy's, edits.
copy() {
    from=$oracle/$1/model.gguf
    to=$work/$2.gguf
    shift 2
    "$edit" "$from" "$to" "$@" || exit 2
}

# Arguments: exit status, the model's name, options.
run() {
    want=$1
    model=$work/$2.gguf
    shift 2
    "$moe" run -m "$model" -p 'the cat' -n 8 --temp 0 "$@" >"$work/stdout" 2>"$work/stderr"
    got=$?
    [ "$got" -eq "$want" ] || fail "run -m $model $*: exit status $got, not $want"
}

notes() {
    grep -c 'note: ' "$work/stderr"
}

copy olmoe plain general.x=u32:1
run 0 plain
cp "$work/stdout" "$work/plain.txt"
[ "$(notes)" -eq 0 ] || fail "a note about a usual file"

copy olmoe unknown olmoe.frobnication=u32:3
run 0 unknown
[ "$(grep -c 'the file says olmoe.frobnication = 3, which this version does not know' \
    "$work/stderr")" -eq 1 ] || fail "the unknown key is not told once"
cmp -s "$work/stdout" "$work/plain.txt" || fail "an unknown key changes the text"
run 0 unknown --quiet
"$moe" inspect -m "$work/unknown.gguf" >"$work/stdout" 2>"$work/stderr"
grep -q '^unknown key:  olmoe.frobnication = 3; the text may differ$' "$work/stdout" ||
    fail "inspect and the unknown key"
"$moe" inspect -m "$work/unknown.gguf" --json >"$work/stdout" 2>"$work/stderr"
tr -d ' \n' <"$work/stdout" |
    grep -q '"olmoe.frobnication":{"type":"u32","value":"3","use":"unknown"}' ||
    fail "inspect --json and the unknown key"

copy olmoe refused olmoe.rope.freq_base_swa=f32:500
run 1 refused
grep -q "key 'olmoe.rope.freq_base_swa' is 500: not supported" "$work/stderr" ||
    fail "the refused key and its value"
"$moe" inspect -m "$work/refused.gguf" >"$work/stdout" 2>"$work/stderr"
grep -q '^runnable:     no: key .olmoe.rope.freq_base_swa. is 500' "$work/stdout" ||
    fail "inspect of a refused file"
grep -q '^refused key:  olmoe.rope.freq_base_swa = 500 (' "$work/stdout" ||
    fail "inspect and the refused key"

copy olmoe same olmoe.rope.freq_base_swa=f32:10000 olmoe.logit_scale=f32:1
run 0 same
cmp -s "$work/stdout" "$work/plain.txt" || fail "neutral values change the text"
[ "$(notes)" -eq 0 ] || fail "a note about neutral values"

copy mixtral no-window general.x=u32:1
run 0 no-window
cp "$work/stdout" "$work/no-window.txt"
copy mixtral window llama.attention.sliding_window=u32:32
run 0 window
cmp -s "$work/stdout" "$work/no-window.txt" || fail "a window that holds all changes the text"
run 0 window -c 33
[ "$(notes)" -eq 0 ] || fail "a note about a context beyond the window, which is a mask"
copy mixtral narrow llama.attention.sliding_window=u32:2
run 0 narrow
cmp -s "$work/stdout" "$work/no-window.txt" && fail "a window of two tokens changes nothing"

copy deepseek2-v3 v3 general.x=u32:1
run 0 v3
cp "$work/stdout" "$work/v3.txt"
copy deepseek2-v3 unsaid -deepseek2.expert_gating_func -deepseek2.expert_weights_norm
run 0 unsaid
cmp -s "$work/stdout" "$work/v3.txt" || fail "the gate of a DeepSeek-V3 that does not say it"
grep -q 'note: the file does not say deepseek2.expert_gating_func' "$work/stderr" ||
    fail "the note on the gate"

copy qwen3moe-yarn yarn qwen3moe.rope.scaling.yarn_attn_factor=f32:0.5
run 0 yarn
cp "$work/stdout" "$work/yarn.txt"
copy qwen3moe-yarn usual general.x=u32:1
run 0 usual
cmp -s "$work/stdout" "$work/yarn.txt" && fail "yarn_attn_factor changes nothing"

# What the user says takes the place of what the file says.
copy olmoe pre -tokenizer.ggml.pre tokenizer.ggml.pre=str:tomorrow
run 1 pre
grep -q "key 'tokenizer.ggml.pre' is 'tomorrow'.*--override-kv can name one .*qwen2.* default" "$work/stderr" ||
    fail "the unknown pre-tokenizer and its remedy"
copy olmoe own -tokenizer.ggml.pre tokenizer.ggml.pre=str:tomorrow \
    'tokenizer.huggingface.json=str:{"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}}'
run 0 own
cmp -s "$work/stdout" "$work/plain.txt" || fail "the pre-tokenizer that the file's tokenizer.json says"
copy olmoe own -tokenizer.ggml.pre tokenizer.ggml.pre=str:tomorrow \
    'tokenizer.huggingface.json=str:{"pre_tokenizer":{"type":"Whitespace"}}'
run 1 own
grep -q "step \"Whitespace\" is not supported; --override-kv can name one" "$work/stderr" ||
    fail "the refused pre-tokenizer of tokenizer.json"
run 0 pre --override-kv tokenizer.ggml.pre=str:gpt-2
cmp -s "$work/stdout" "$work/plain.txt" || fail "the pre-tokenizer that the user says"
"$moe" tokenize -m "$work/pre.gguf" -p 'the cat' --override-kv tokenizer.ggml.pre=str:gpt-2 \
    >"$work/said.txt" 2>"$work/stderr" || fail "tokenize --override-kv"
"$moe" tokenize -m "$work/plain.gguf" -p 'the cat' >"$work/stdout" 2>"$work/stderr"
cmp -s "$work/said.txt" "$work/stdout" || fail "tokenize with the pre-tokenizer that the user says"
run 0 pre --override-kv olmoe.attention.sliding_window=int:2 \
    --override-kv tokenizer.ggml.pre=str:gpt-2,olmoe.rope.freq_base=float:500
cmp -s "$work/stdout" "$work/plain.txt" && fail "three overrides change nothing"
run 2 plain --override-kv olmoe.block_count=int:two
grep -q "override 'olmoe.block_count=int:two' must be KEY=TYPE:VALUE" "$work/stderr" ||
    fail "an override that is none"
run 2 plain --override-kv ''
run 2 plain --override-kv olmoe.rope.freq_bas=float:500
grep -q "^moe-offload: --override-kv: key 'olmoe.rope.freq_bas' would have no effect: .*like it: olmoe.rope.freq_base" \
    "$work/stderr" || fail "an override that nothing reads: $(cat "$work/stderr")"
run 2 plain --override-kv olmoe.rope.scaling.finetuned=bool:true
grep -q "'olmoe.rope.scaling.finetuned' would have no effect" "$work/stderr" ||
    fail "an override of a key without effect"
"$moe" tokenize -m "$work/plain.gguf" -p 'the cat' --override-kv olmoe.block_count=int:2 \
    >"$work/stdout" 2>"$work/stderr" && fail "tokenize with a key of the model"
grep -q "where only the vocabulary is opened" "$work/stderr" || fail "tokenize says why"
run 0 refused --override-kv olmoe.rope.freq_base_swa=float:10000
run 0 plain --override-kv olmoe.rope.freq_base=float:500
cmp -s "$work/stdout" "$work/plain.txt" && fail "an override that changes nothing"

[ "$failed" -eq 0 ] && echo "all as expected"
[ "$failed" -eq 0 ]
