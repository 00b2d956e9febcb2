#!/bin/sh
# SPDX-License-Identifier: MIT
# --model-copy: copies are compared with the model; damage in one of them changes no text.
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

# Runs with room for half of the experts; they are read from the disk again and again.
run() {
    "$moe" run -m "$work/model.gguf" -p "$prompt" -n 40 --ignore-eos --temp 0 --expert-cache 50% \
        "$@" >"$work/text" 2>"$work/err"
}

cp "$model" "$work/model.gguf"
cp "$model" "$work/copy.gguf"
run || fail "without a copy: $(cat "$work/err")"
cp "$work/text" "$work/right"
for arguments in '--io auto' '--io threads' '--io sync' '--prefetch on --io-block 4K --io-depth 2'; do
    # shellcheck disable=SC2086
    run --model-copy "$work/copy.gguf" $arguments || fail "$arguments: $(cat "$work/err")"
    cmp -s "$work/text" "$work/right" || fail "another text with a copy, $arguments"
done

# What is no copy.
refused() { # copy, expected words
    run --model-copy "$1"
    status=$?
    [ $status -eq 1 ] || fail "$1: exit status $status"
    grep -q "$2" "$work/err" || fail "$1: $(cat "$work/err")"
}
refused "$work/nothing.gguf" 'nothing.gguf.*No such file'
refused "$work/model.gguf" "model.gguf: it is the model's own file"
{ cat "$model" && echo x; } >"$work/longer.gguf"
refused "$work/longer.gguf" 'longer.gguf is no copy of .*model.gguf: .* bytes, not'
sed 's/olmoe/olmoE/' "$model" >"$work/header.gguf"
refused "$work/header.gguf" 'header.gguf'
"$moe" run -m "$work/model.gguf" -p a -n 1 --model-copy "$work/copy.gguf," >"$work/text" 2>"$work/err"
[ $? -eq 2 ] || fail "an empty name: $(cat "$work/err")"
"$moe" run -m "$work/model.gguf" -p a -n 1 --model-copy 1,2,3,4,5,6,7,8 >"$work/text" 2>"$work/err"
[ $? -eq 2 ] || fail "eight copies: $(cat "$work/err")"

# All experts of a copy are damaged, and no sidecar tells: nothing of them is used before the model's
# own bytes have given a checksum, whether it is kept in a file or in memory alone. Which blocks are
# read from the copy depends on the time, but the first one of a run always is, as the drives count as
# equal until one has answered.
cp "$model" "$work/bad.gguf"
for matrix in gate up down; do
    "$damage" "$work/bad.gguf" "$work/worse.gguf" blk.0.ffn_${matrix}_exps.weight flips all \
        >"$work/offset" || fail damage
    mv "$work/worse.gguf" "$work/bad.gguf"
done
rm -f "$work/model.moe-sums"
for arguments in '--checksums none' '--checksums none --io sync' '' '' '--expert-cache 100%'; do
    # shellcheck disable=SC2086
    run --model-copy "$work/bad.gguf" $arguments || fail "a damaged copy, $arguments: $(cat "$work/err")"
    cmp -s "$work/text" "$work/right" || fail "another text with a damaged copy, $arguments"
    case $arguments in *100%) continue ;; esac
    grep -q 'note: .*bad.gguf: damaged at offset [0-9]' "$work/err" ||
        fail "no note, $arguments: $(cat "$work/err")"
done
[ -s "$work/model.moe-sums" ] || fail "no checksums are kept"

# verify takes copies: with checksums that were known, and without any.
"$moe" verify -m "$work/model.gguf" --model-copy "$work/copy.gguf" --checksums none >"$work/text" \
    2>"$work/err" || fail "verify of a sound copy: $(cat "$work/text" "$work/err")"
"$moe" verify -m "$work/model.gguf" --model-copy "$work/bad.gguf" --checksums none >"$work/text" \
    2>"$work/err"
status=$?
[ $status -eq 1 ] && grep -q 'bad.gguf: blk.0.ffn_up_exps.weight (layer 0, expert 3).* at offset [0-9]*: other bytes' \
    "$work/text" || fail "verify of a damaged copy: $status $(cat "$work/text" "$work/err")"
grep -q 'model.gguf: blk' "$work/text" && fail "the model itself is called damaged"
"$moe" verify -m "$work/model.gguf" >"$work/text" 2>&1 || fail "verify: $(cat "$work/text")"
"$moe" verify -m "$work/model.gguf" --model-copy "$work/copy.gguf,$work/bad.gguf" >"$work/text" 2>"$work/err"
status=$?
[ $status -eq 1 ] && grep -q 'bad.gguf: .*damaged, the checksum does not match' "$work/text" &&
    ! grep -q 'copy.gguf: blk' "$work/text" ||
    fail "verify of two copies: $status $(cat "$work/text" "$work/err")"
"$moe" verify -m "$work/model.gguf" --model-copy "$work/longer.gguf" >"$work/text" 2>"$work/err"
[ $? -eq 1 ] && grep -q 'longer.gguf is no copy' "$work/err" || fail "verify: $(cat "$work/err")"

# Damaged experts in either file: the checksums find it, and the other one has the right bytes.
printf '%s %s %s' "$prompt" "$prompt" "$prompt" >"$work/text.txt"
"$moe" calibrate -m "$work/model.gguf" -f "$work/text.txt" --quiet || fail calibrate
run --model-copy "$work/bad.gguf" || fail "a damaged copy: $(cat "$work/err")"
cmp -s "$work/text" "$work/right" || fail "another text with a damaged copy"
cp "$work/model.moe-cal.gguf" "$work/bad.moe-cal.gguf"
"$moe" run -m "$work/bad.gguf" -p "$prompt" -n 40 --ignore-eos --temp 0 --expert-cache 50% \
    --model-copy "$work/copy.gguf" >"$work/text" 2>"$work/err" ||
    fail "a sound copy of a damaged file: $(cat "$work/err")"
cmp -s "$work/text" "$work/right" || fail "another text with a sound copy of a damaged file"
grep -q 'note: .*bad.gguf: damaged at offset' "$work/err" || fail "no note: $(cat "$work/err")"

# bench io: each alone, and together.
"$moe" bench io --file "$work/model.gguf" --model-copy "$work/copy.gguf" --io threads --block 64K \
    --depth 4 --bytes 1M --range 64K --json >"$work/text" 2>"$work/err" ||
    fail "bench io: $(cat "$work/err")"
for drive in 0 1 all; do
    grep -q "\"drive\": *\"$drive\"" "$work/text" || fail "bench io, drive $drive: $(cat "$work/text")"
done
[ $failed -eq 0 ]
