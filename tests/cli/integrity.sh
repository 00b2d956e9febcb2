#!/bin/sh
# SPDX-License-Identifier: MIT
# The command and a model whose bytes are wrong, or change under it.
# Arguments: the command, damage_model, a tiny model, one with a drafting layer, a model and its head in
# a file of its own, hang_reads or nothing.
set -u
moe=$1
damage=$2
model=$3
drafting=$4
head_model=$5
head=$6
hang=${7:-}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
prompt='the cat and the dog went out, and the day was'

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# Values that are not finite: status 1 and no text of them. Loading names a tensor that stays in memory;
# a step names the layer of an expert.
for tensor in token_embd blk.0.attn_norm blk.0.attn_output blk.0.ffn_gate_inp blk.0.ffn_down_exps \
    output_norm; do
    "$damage" "$model" "$work/infinite.gguf" $tensor.weight infinite >"$work/offset" ||
        fail "no tensor $tensor"
    case $tensor in
    *exps) where='layer 0, router and experts' ;;
    *) where="infinite.gguf: the tensor $tensor.weight .*at offset $(cat "$work/offset"))" ;;
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

# Arguments: a copy of the model, and a command that changes it once the first text is there. If $until is
# set, interrupts the run once it has said that. Leaves status, $work/text and $work/err.
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
    while [ ! -s "$work/text" ] && [ $tries -lt 2400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    "$@"
    if [ -n "$until" ]; then
        tries=0
        until grep -q "$until" "$work/err" || [ $tries -ge 2400 ]; do
            sleep 0.05
            tries=$((tries + 1))
        done
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
    until=
    change_while_running "$work/changing.gguf" overwrite
    [ $status -eq 1 ] || fail "overwritten, $flags: exit status $status"
    grep -q 'changing.gguf: written to while in use' "$work/err" ||
        fail "overwritten, $flags: $(cat "$work/err")"
    grep -Eq '^decode: |"decode_tokens": [1-9]' "$work/err" || fail "overwritten: no statistics"
done
flags='' until='note: .*changing.gguf: replaced'
change_while_running "$work/changing.gguf" replace
[ $status -eq 130 ] || fail "replaced: exit status $status: $(cat "$work/err")"
[ "$(grep -c 'note: .*changing.gguf: replaced by another file' "$work/err")" -eq 1 ] ||
    fail "replaced: $(cat "$work/err")"

# Damage in every kind of tensor, with a calibration: loading names it, and so does verify.
printf '%s %s %s' "$prompt" "$prompt" "$prompt" >"$work/text.txt"
cp "$model" "$work/sound.gguf"
"$moe" calibrate -m "$work/sound.gguf" -f "$work/text.txt" --quiet || fail "calibrate"
"$moe" verify -m "$work/sound.gguf" >"$work/text" 2>"$work/err" || fail "verify of a sound model"
grep -Eq ' ([0-9]+) parts, \1 with a checksum; 0 damaged$' "$work/text" || fail "$(cat "$work/text")"
[ ! -s "$work/err" ] || fail "verify says $(cat "$work/err")"
cp "$work/sound.moe-cal.gguf" "$work/bad.moe-cal.gguf"
for tensor in token_embd output_norm output blk.0.attn_norm blk.0.attn_q blk.0.attn_output \
    blk.0.attn_q_norm blk.0.ffn_norm blk.0.ffn_gate_inp blk.0.ffn_up_exps; do
    offset=$("$damage" "$model" "$work/bad.gguf" $tensor.weight flips) || continue
    for arguments in '' '--expert-cache 50%' '--device sim:memory=1G,link=16GB/s,latency=10us' \
        "--calibration $work/bad.moe-cal.gguf"; do
        # shellcheck disable=SC2086
        "$moe" run -m "$work/bad.gguf" -p "$prompt" -n 40 $arguments >"$work/text" 2>"$work/err"
        status=$?
        [ $status -eq 1 ] || fail "$tensor damaged, $arguments: exit status $status"
        case $tensor in
        *exps) grep -q 'layer 0, expert [0-9]*: .*bad.gguf.*checksum' "$work/err" ;;
        *) grep -q "bad.gguf: .*$tensor.weight.* at offset $offset.*checksum" "$work/err" &&
            [ ! -s "$work/text" ] ;;
        esac || fail "$tensor damaged, $arguments: $(cat "$work/err")"
    done
    "$moe" verify -m "$work/bad.gguf" >"$work/text" 2>"$work/err"
    status=$?
    [ $status -eq 1 ] || fail "verify, $tensor damaged: exit status $status"
    grep -q "bad.gguf: $tensor.weight.*damaged, the checksum" "$work/text" ||
        fail "verify, $tensor damaged: $(cat "$work/text" "$work/err")"
    "$moe" verify -m "$work/bad.gguf" --json >"$work/text" 2>"$work/err"
    grep -q "\"tensor\": \"$tensor.weight\"" "$work/text" || fail "verify --json, $tensor"
done
# Without one: what can be told, and what to do.
"$moe" verify -m "$work/bad.gguf" --calibration none >"$work/text" 2>"$work/err" ||
    fail "verify without a calibration"
grep -q ' 0 with a checksum' "$work/text" && grep -q 'note: .*checksums are made now' "$work/err" ||
    fail "verify without a calibration: $(cat "$work/text" "$work/err")"
# Those that were made are of this very file.
[ -s "$work/bad.moe-sums" ] || fail "no checksums are kept"
"$moe" verify -m "$work/bad.gguf" --calibration none >"$work/text" 2>"$work/err" ||
    fail "verify with checksums: $(cat "$work/text")"
grep -Eq ' ([0-9]+) parts, \1 with a checksum; 0 damaged$' "$work/text" && [ ! -s "$work/err" ] ||
    fail "verify with checksums: $(cat "$work/text" "$work/err")"
# As if the bytes had changed, and neither inode nor times: the file has other checksums. A run that
# reads them fails, and keeps failing; nothing is written of them.
for which in first last; do
    rm -f "$work/bad.moe-sums"
    "$moe" verify -m "$work/bad.gguf" --calibration none >"$work/text" 2>&1 || fail "verify: $(cat "$work/text")"
    "$damage" "$work/bad.moe-sums" "$work/other" checksum $which || fail "no checksum to change"
    mv "$work/other" "$work/bad.moe-sums"
    for again in 1 2; do
        "$moe" verify -m "$work/bad.gguf" --calibration none >"$work/text" 2>"$work/err"
        status=$?
        [ $status -eq 1 ] && grep -q 'bad.gguf: .*damaged, the checksum does not match' "$work/text" ||
            fail "verify of what has changed, $which, $again: $status $(cat "$work/text" "$work/err")"
        "$moe" run -m "$work/bad.gguf" --calibration none -p "$prompt" -n 40 >"$work/text" 2>"$work/err"
        status=$?
        [ $status -eq 1 ] && grep -q 'bad.gguf: .*at offset.*checksum' "$work/err" ||
            fail "run with what has changed, $which, $again: $status $(cat "$work/err")"
    done
done
rm -f "$work/bad.moe-sums"
"$moe" verify -m "$work/infinite.gguf" >"$work/text" 2>"$work/err"
status=$?
[ $status -eq 1 ] && grep -q 'output_norm.weight.*not finite' "$work/text" ||
    fail "verify of values that are not finite: $status $(cat "$work/text" "$work/err")"

# Low-bit copies are of the weights that they were made from: a damaged copy is named, and copies of other
# weights are refused, although the sample in the fingerprint is the same.
"$moe" calibrate -m "$work/sound.gguf" -f "$work/text.txt" --low-bit-type Q4_0 --quiet || fail "calibrate"
low_bit() {
    "$moe" run -m "$work/sound.gguf" -p "$prompt" -n 40 --expert-cache 90% --low-bit on \
        --prefetch off --warm-start off "$@" >"$work/text" 2>"$work/err"
    status=$?
}
low_bit
[ $status -eq 0 ] && grep -q 'low-bit copies' "$work/err" || fail "low-bit: $status $(cat "$work/err")"
cp "$work/sound.moe-lowbit.gguf" "$work/copies"
for part in gate up down; do
    "$damage" "$work/copies" "$work/sound.moe-lowbit.gguf" blk.0.ffn_${part}_exps.weight flips 99999999 \
        >"$work/offset" || fail "no copies of $part"
    low_bit
    [ $status -eq 1 ] && grep -q 'sound.moe-lowbit.gguf.*do not match their checksum.*--low-bit-type' \
        "$work/err" || fail "low-bit, $part damaged: $status $(cat "$work/err")"
done
mv "$work/copies" "$work/sound.moe-lowbit.gguf"
mv "$work/sound.moe-cal.gguf" "$work/calibrated"
low_bit
[ $status -eq 0 ] || fail "low-bit without the calibration: $status $(cat "$work/err")"
"$damage" "$model" "$work/sound.gguf" blk.0.ffn_up_exps.weight flips >"$work/offset" || fail "no experts"
low_bit
[ $status -eq 1 ] && grep -q 'sound.moe-lowbit.gguf was made from other weights' "$work/err" ||
    fail "low-bit of other weights: $status $(cat "$work/err")"
"$moe" verify -m "$work/sound.gguf" --quiet >"$work/text" || fail "verify: $(cat "$work/text")"
low_bit
[ $status -eq 1 ] && grep -q 'lowbit.gguf was made from other weights.*their checksums differ' "$work/err" ||
    fail "low-bit of other weights, all checksums known: $status $(cat "$work/err")"
mv "$work/calibrated" "$work/sound.moe-cal.gguf"
cp "$model" "$work/sound.gguf" # its bytes again, but not its times: the calibration tells
low_bit
[ $status -eq 0 ] || fail "low-bit, mended: $status $(cat "$work/err")"
# A calibration does not take over what has changed since it was first read.
"$moe" verify -m "$work/sound.gguf" --calibration none >"$work/text" 2>&1 || fail "verify: $(cat "$work/text")"
for which in first last; do
    cp "$work/sound.moe-sums" "$work/sums"
    "$damage" "$work/sums" "$work/sound.moe-sums" checksum $which || fail "no checksum to change"
    "$moe" calibrate -m "$work/sound.gguf" --calibration none -f "$work/text.txt" \
        -o "$work/other.moe-cal.gguf" --quiet 2>"$work/err"
    status=$?
    [ $status -eq 1 ] && grep -q 'sound.gguf.*checksum' "$work/err" && [ ! -e "$work/other.moe-cal.gguf" ] ||
        fail "calibrate with what has changed, $which: $status $(cat "$work/err")"
    rm -f "$work/sound.moe-sums"
    "$moe" verify -m "$work/sound.gguf" --calibration none >"$work/text" 2>&1 ||
        fail "verify: $(cat "$work/text")"
done

# Drafting layers: every expert, and every tensor of a head's own file, has a checksum from its first
# reading on; what has changed since then fails the run, each time.
drafting_run() {
    "$moe" run -m "$work/drafting.gguf" -p "$prompt" -n 40 --temp 0 --ignore-eos --speculate "$1" \
        --length-control static --draft-max 2 --idle-checksums off >"$work/text" 2>"$work/err"
    status=$?
}
for what in mtp "mtp:$work/head.gguf"; do
    rm -f "$work"/drafting.*
    if [ "$what" = mtp ]; then
        cp "$drafting" "$work/drafting.gguf"
        named=drafting.gguf
    else
        cp "$head_model" "$work/drafting.gguf"
        cp "$head" "$work/head.gguf"
        named=head.gguf
    fi
    drafting_run "$what"
    [ $status -eq 0 ] && [ -s "$work/drafting.moe-sums-draft" ] ||
        fail "$what: $status $(cat "$work/err") $(ls "$work")"
    cp "$work/drafting.moe-sums-draft" "$work/sums"
    for which in first last; do
        "$damage" "$work/sums" "$work/drafting.moe-sums-draft" checksum $which || fail "no checksum"
        for again in 1 2; do
            drafting_run "$what"
            [ $status -eq 1 ] && grep -q "$named.* at offset.*checksum" "$work/err" ||
                fail "$what, $which has changed, $again: $status $(cat "$work/err")"
        done
    done
done

# A disk that hangs, at each stage of opening: the time-out, and the first Ctrl-C.
if [ -n "$hang" ]; then
    for from in 1 2 20 66; do # 1: the header
        for arguments in 'run -p a -n 4' 'verify' "calibrate -f $work/text.txt -o $work/other.gguf"; do
            # shellcheck disable=SC2086
            LD_PRELOAD=$hang HANG_FROM=$from timeout 120 "$moe" $arguments -m "$work/sound.gguf" \
                --io threads --io-timeout 0.3 --quiet >"$work/text" 2>"$work/err"
            status=$?
            [ $status -eq 1 ] && grep -q 'sound.*gguf.*not answered for 0.3 s' "$work/err" ||
                fail "hung from $from, $arguments: $status $(cat "$work/err")"
            # From 66 on an expert may be what hangs, and calibrate looks for Ctrl-C between steps.
            [ $from -lt 66 ] || [ "${arguments%% *}" != calibrate ] || continue
            # shellcheck disable=SC2086
            LD_PRELOAD=$hang HANG_FROM=$from timeout -s INT -k 120 0.7 "$moe" $arguments \
                -m "$work/sound.gguf" --io threads --quiet >"$work/text" 2>"$work/err"
            status=$?
            [ $status -eq 124 ] || fail "hung from $from, $arguments, Ctrl-C: $status"
        done
    done
    # An expert hangs, or only one that is read ahead: the first Ctrl-C ends the run all the same.
    for from in 80 100 140; do
        LD_PRELOAD=$hang HANG_FROM=$from timeout -s INT -k 120 1 "$moe" run -p a -n 400 --temp 0 \
            --ignore-eos -m "$work/sound.gguf" --expert-cache 50% --io threads --quiet \
            >"$work/text" 2>"$work/err"
        status=$?
        [ $status -eq 124 ] || [ $status -eq 0 ] || fail "hung from $from, run, Ctrl-C: $status"
    done
    # The calibration's header and its tables. One that nobody named is left out; Ctrl-C ends all.
    for from in 1 2 5; do
        LD_PRELOAD=$hang HANG_FROM=$from HANG_ON=moe-cal timeout 120 "$moe" run -p a -n 4 \
            -m "$work/sound.gguf" --calibration "$work/sound.moe-cal.gguf" --io-timeout 0.3 --quiet \
            >"$work/text" 2>"$work/err"
        status=$?
        [ $status -eq 1 ] && grep -q 'moe-cal.gguf.*not answered for 0.3 s' "$work/err" ||
            fail "calibration hung from $from: $status $(cat "$work/err")"
        for arguments in 'run -p a -n 4' verify; do
            # shellcheck disable=SC2086
            LD_PRELOAD=$hang HANG_FROM=$from HANG_ON=moe-cal timeout -s INT -k 120 0.7 "$moe" \
                $arguments -m "$work/sound.gguf" --quiet >"$work/text" 2>"$work/err"
            status=$?
            [ $status -eq 124 ] || fail "calibration hung from $from, $arguments, Ctrl-C: $status"
        done
    done
    LD_PRELOAD=$hang HANG_FROM=1 HANG_ON=moe-cal timeout 120 "$moe" run -p a -n 4 \
        -m "$work/sound.gguf" --io-timeout 0.3 >"$work/text" 2>"$work/err"
    status=$?
    [ $status -eq 0 ] && grep -q 'note: .*moe-cal.gguf.*not answered for 0.3 s' "$work/err" ||
        fail "calibration hung: $status $(cat "$work/err")"
    # timeout(1) tells with 124 that it had to send a signal, with 137 that one was not enough.
    LD_PRELOAD=$hang HANG_FROM=70 "$moe" verify -m "$work/sound.gguf" --io threads --quiet \
        2>"$work/err" &
    pid=$!
    # Once it catches SIGINT, which a shell's background has ignored: bit 1 of the mask.
    tries=0
    until grep -q '^SigCgt:.*[2367abef]$' /proc/$pid/status || [ $tries -ge 2400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -INT $pid
    wait $pid
    status=$?
    [ $status -eq 130 ] || fail "hung, Ctrl-C: exit status $status"
fi

[ $failed -eq 0 ] && echo "all as it should be"
exit $((failed > 0))
