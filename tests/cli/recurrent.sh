#!/bin/sh
# SPDX-License-Identifier: MIT
# Models with recurrent layers through the command: the same text however it is computed, what inspect
# and plan tell, and options that cannot act. Arguments: the command, tests/oracle.
set -u
moe=$1
oracle=$2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
prompt='abcabcabcdabcabcabcdbcabcabcd'

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

run() {
    "$moe" run -m "$file" -p "$prompt" -n 48 --temp 0 --ignore-eos -c 256 "$@" 2>"$work/err"
}

for row in "qwen35moe|gated delta rule" "lfm2moe|short convolution" "granitehybrid|state space" \
    "kimi-linear|decays of channels" "nemotron_h_moe-latent|state space" "jamba|selective scan"; do
    model=${row%%|*} kind=${row#*|}
    file=$oracle/$model/model.gguf
    run -t 1 --speculate off >"$work/expected" || fail "$model: $(cat "$work/err")"
    [ -s "$work/expected" ] || fail "$model: no text"
    for arguments in '-t 2' '-b 3' '--expert-cache 50%' '--speculate ngram' \
        '--speculate self --expert-cache 70%' '--speculate auto' \
        '--lookahead 4 --expert-cache 50%' "--speculate model:$file" \
        '--device sim:memory=1G,link=16GB/s,latency=10us' '--kv f32'; do
        # shellcheck disable=SC2086
        run $arguments >"$work/text" || fail "$model $arguments: $(cat "$work/err")"
        [ "$arguments" = '--kv f32' ] || cmp -s "$work/expected" "$work/text" ||
            fail "$model $arguments: another text"
        grep -q '^decode: ' "$work/err" || fail "$model $arguments: no statistics"
    done
    "$moe" inspect -m "$file" >"$work/text" 2>"$work/err" || fail "inspect of $model"
    grep -Eq "^recurrent: +[1-9] layers, by a .*$kind.*; a state of [1-9]" "$work/text" ||
        fail "inspect of $model: $(cat "$work/text")"
    "$moe" plan -m "$file" -c 256 >"$work/text" 2>"$work/err" || fail "plan of $model"
    grep -Eq '^recurrent layers +[1-9]' "$work/text" || fail "plan of $model: $(cat "$work/text")"
    run --speculate self --tree 8 >"$work/text"
    [ $? -eq 1 ] && [ ! -s "$work/text" ] && grep -q 'recurrent layers' "$work/err" ||
        fail "$model: a tree is not refused: $(cat "$work/err")"
done

# Experts of two matrices are calibrated and verified, too.
cp "$oracle/nemotron_h_moe-latent/model.gguf" "$work/model.gguf"
"$moe" calibrate -m "$work/model.gguf" -f "$0" >"$work/text" 2>"$work/err" ||
    fail "calibrate: $(cat "$work/err")"
"$moe" verify -m "$work/model.gguf" >"$work/text" 2>"$work/err" || fail "verify: $(cat "$work/err")"

[ $failed -eq 0 ] && echo "all as it should be"
exit $((failed > 0))
