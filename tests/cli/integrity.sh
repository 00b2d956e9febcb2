#!/bin/sh
# SPDX-License-Identifier: MIT
# The command and a model whose bytes are wrong, or change under it.
# Arguments: the command, damage_model, a tiny model.
set -u
moe=$1
damage=$2
model=$3
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
prompt='the cat and the dog went out, and the day was'

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# Values that are not finite: status 1, the layer on standard error, and no text of them.
for tensor in token_embd blk.0.attn_norm blk.0.attn_output blk.0.ffn_gate_inp blk.0.ffn_down_exps \
    output_norm; do
    "$damage" "$model" "$work/infinite.gguf" $tensor.weight infinite || fail "no tensor $tensor"
    case $tensor in
    token_embd) where='embedding of token' ;;
    blk.0.attn*) where='layer 0, attention' ;;
    blk.0.ffn*) where='layer 0, router and experts' ;;
    *) where='output head' ;;
    esac
    for arguments in run 'run --speculate off' 'run --json' 'run --device sim:memory=1G,link=16GB/s,latency=10us' \
        'logits -o /dev/null' 'perplexity -c 16'; do
        # shellcheck disable=SC2086
        set -- $arguments
        text="-p"
        [ "$1" != perplexity ] || text='-f'
        printf '%s %s %s' "$prompt" "$prompt" "$prompt" >"$work/prompt.txt"
        value=$prompt
        [ "$1" != perplexity ] || value=$work/prompt.txt
        "$moe" "$@" -m "$work/infinite.gguf" $text "$value" >"$work/text" 2>"$work/err"
        status=$?
        [ $status -eq 1 ] || fail "$arguments, $tensor: exit status $status"
        grep -q "$where.*not finite" "$work/err" || fail "$arguments, $tensor: $(cat "$work/err")"
        [ ! -s "$work/text" ] || fail "$arguments, $tensor: wrote $(cat "$work/text")"
    done
done

# Arguments: a copy of the model, and a command that changes it once the first text is there. Leaves
# status, $work/text and $work/err.
change_while_running() {
    copy=$1
    shift
    rm -f "$work/text"
    cp "$model" "$copy"
    # shellcheck disable=SC2086
    "$moe" run -m "$copy" -p "$prompt" -c 200000 --ignore-eos --temp 0 $flags >"$work/text" \
        2>"$work/err" &
    pid=$!
    tries=0
    while [ ! -s "$work/text" ] && [ $tries -lt 200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    "$@"
    if [ "$interrupt_after" -gt 0 ]; then
        sleep "$interrupt_after"
        kill -INT $pid
    fi
    wait $pid
    status=$?
    [ -s "$work/text" ] || fail "$*: no text"
}

overwrite() {
    dd if="$model" of="$work/changing.gguf" bs=4096 count=2 conv=notrunc 2>/dev/null
}

replace() {
    cp "$model" "$work/other.gguf"
    mv "$work/other.gguf" "$work/changing.gguf"
}

for flags in '' '--json' '--expert-cache 50% --speculate off' '--device sim:memory=1G,link=16GB/s,latency=10us'; do
    interrupt_after=0
    change_while_running "$work/changing.gguf" overwrite
    [ $status -eq 1 ] || fail "overwritten, $flags: exit status $status"
    grep -q 'changing.gguf: written to while in use' "$work/err" ||
        fail "overwritten, $flags: $(cat "$work/err")"
    grep -Eq '^decode: |"decode_tokens": [1-9]' "$work/err" || fail "overwritten: no statistics"
done
flags='' interrupt_after=3
change_while_running "$work/changing.gguf" replace
[ $status -eq 130 ] || fail "replaced: exit status $status: $(cat "$work/err")"
[ "$(grep -c 'note: .*changing.gguf: replaced by another file' "$work/err")" -eq 1 ] ||
    fail "replaced: $(cat "$work/err")"

[ $failed -eq 0 ] && echo "all as it should be"
exit $((failed > 0))
