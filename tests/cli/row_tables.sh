#!/bin/sh
# SPDX-License-Identifier: MIT
# A model with a table whose rows are read from disk: counts, damage, and a disk that fails where the
# table is, without a copy of the model and with one.
# Arguments: the command, damage_model, such a model, hang_reads or nothing.
set -u
moe=$1
damage=$2
model=$3
hang=${4:-}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
table=per_layer_token_embd.weight

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# Leaves status, $work/text and $work/err. No other read touches the table: no checksums are made.
run() {
    "$moe" run -m "$work/model.gguf" -p 'the cat and the dog went out' -n 40 --ignore-eos --temp 0 \
        --io threads --idle-checksums off "$@" >"$work/text" 2>"$work/err"
    status=$?
}

cp "$model" "$work/model.gguf"
cp "$model" "$work/copy.gguf"
run --json
cp "$work/text" "$work/right"
# Each of the heads reads a row for each token, of those that are written 39.
heads=$("$moe" inspect -m "$model" --json | sed -n 's/.*"token_rows": *\([0-9]*\).*/\1/p')
taken=$(sed -n 's/.*"rows_taken": *\([0-9]*\).*/\1/p' "$work/err")
[ $status -eq 0 ] && [ "${heads:-0}" -gt 0 ] && [ "${taken:-0}" -gt $((39 * heads)) ] &&
    [ $((taken % heads)) -eq 0 ] || fail "counts: $status, $taken rows of $heads: $(cat "$work/err")"
run
grep -q "^row table: $taken rows, .* waited for" "$work/err" || fail "statistics: $(cat "$work/err")"
"$moe" inspect -m "$model" | grep -q "^row table: .* of which a token reads $heads rows" || fail inspect
"$moe" plan -m "$model" | grep -qi 'row' || fail "plan: $("$moe" plan -m "$model")"

# verify covers the table, in the model and in a copy.
offset=$("$damage" "$model" "$work/bad.gguf" $table flips all) || fail "no table"
"$moe" verify -m "$work/model.gguf" --model-copy "$work/bad.gguf" >"$work/text" 2>"$work/err"
status=$?
[ $status -eq 1 ] && grep -q "bad.gguf: $table.*at offset [0-9]*" "$work/text" ||
    fail "verify of a damaged copy: $status $(cat "$work/text" "$work/err")"
grep -q "model.gguf: $table" "$work/text" && fail "the model itself is called damaged: $(cat "$work/text")"

# Rows of a copy are not used while the model's own file can be read.
run --model-copy "$work/bad.gguf"
[ $status -eq 0 ] && cmp -s "$work/text" "$work/right" ||
    fail "another text with a damaged copy: $status $(cat "$work/err")"

if [ -n "$hang" ]; then
    size=$("$moe" inspect -m "$model" --json | sed -n 's/.*"row_table_bytes": *\([0-9]*\).*/\1/p')
    faulty() { # how, more: all rows in the middle of the table, in the model's file alone
        how=$1
        shift
        LD_PRELOAD=$hang HANG_AS=$how HANG_FROM=1 HANG_ON=model.gguf HANG_BEGIN=$((offset + 4096)) \
            HANG_END=$((offset + size - 4096)) HANG_MOST=8192 run "$@"
    }
    faulty short
    [ $status -eq 0 ] && cmp -s "$work/text" "$work/right" || fail "short reads: $status $(cat "$work/err")"
    faulty eio
    [ $status -eq 1 ] && grep -q "row [0-9]* of tensor '$table': .*model.gguf.*offset" "$work/err" ||
        fail "EIO: $status $(cat "$work/err")"
    faulty eio --model-copy "$work/copy.gguf"
    [ $status -eq 0 ] && cmp -s "$work/text" "$work/right" ||
        fail "EIO, with a copy: $status $(cat "$work/err")"
    [ "$(grep -c "note: .*rows of tensor '$table' are read from a copy: .*model.gguf" "$work/err")" -eq 1 ] ||
        fail "no note of the copy: $(cat "$work/err")"
    # Silence: the time-out, and the first Ctrl-C.
    silent() {
        LD_PRELOAD=$hang HANG_FROM=1 HANG_ON=model.gguf HANG_BEGIN=$((offset + 4096)) \
            HANG_END=$((offset + size - 4096)) HANG_MOST=8192 "$@"
    }
    silent run --io-timeout 0.3
    [ $status -eq 1 ] && grep -q "row [0-9]* of tensor '$table': .*nothing for 0.3 s" "$work/err" ||
        fail "a silent disk: $status $(cat "$work/err")"
    silent timeout -s INT -k 120 1 "$moe" run -m "$work/model.gguf" -p 'the cat' -n 40 --io threads \
        --idle-checksums off --quiet >"$work/text" 2>"$work/err"
    status=$?
    [ $status -eq 124 ] || fail "a silent disk, Ctrl-C: $status $(cat "$work/err")"
fi
[ $failed -eq 0 ] && echo "all as it should be"
exit $((failed > 0))
