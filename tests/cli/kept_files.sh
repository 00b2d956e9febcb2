#!/bin/sh
# SPDX-License-Identifier: MIT
# A named pipe that nobody writes to is refused at once, wherever a file can be given; a pipe that is
# open already is read.
# Arguments: the command, a model with a chat template.
set -u
command=$1
model=$2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAIL $*: $(head -c 400 "$work/err")"
    failed=$((failed + 1))
}

# Arguments: the command's. A command that waits for the pipe is ended, and that is status 124.
fifo=$work/fifo
mkfifo "$fifo" || exit 77
refused() {
    timeout -k 1 20 "$command" "$@" >/dev/null 2>"$work/err" </dev/null
    got=$?
    [ "$got" -eq 1 ] || fail "$* (status $got)"
    grep -qE 'regular file|a pipe or device' "$work/err" || fail "$*"
}
printf 'root ::= "a"' >"$work/a.gbnf"
run="run -m $model -n 2 --temp 0 --quiet"
# shellcheck disable=SC2086
{
    refused run -m "$fifo" -p a
    refused $run -f "$fifo"
    refused $run -p a --grammar "$fifo"
    refused $run -p a --json-schema "$fifo"
    refused $run -p a --chat --chat-template "$fifo"
    refused $run -p a --calibration "$fifo"
    mv "$fifo" "$work/pipe.so"
    refused $run -p a --policy "$work/pipe.so"
    mv "$work/pipe.so" "$fifo"
    refused $run -p a --model-copy "$fifo"
    refused $run -p a --speculate "model:$fifo"
    refused bench io --file "$fifo"
    refused bench speculate -m "$model" --suite "$fifo"
    refused bench decode -m "$model" -n 2 -p 2 --repeat 1 --route-trace "$fifo"
    refused simulate --trace "$fifo"
    refused analyze --trace "$fifo"
    refused analyze --trace "$fifo" --layers 2 --experts 4
    refused serve -m "$model" --port 0 --api-key-file "$fifo"
    refused bench decode -m "$model" -n 2 -p 2 --repeat 1 --tokens-from "$fifo"
    refused calibrate -m "$model" -f "$fifo" -o "$work/cal"
    refused tokenize -m "$model" -f "$fifo"
    refused perplexity -m "$model" -f "$fifo"
    refused logits -m "$model" -f "$fifo" -o "$work/l.npy"
    refused calibrate -m "$model" -f "$work/a.gbnf" -o "$fifo"
}

# The same content through a file and through pipes without a name.
# shellcheck disable=SC2086
{
    printf 'the cat and the dog' >"$work/prompt"
    wanted=$("$command" $run -f "$work/prompt")
    got=$(timeout 240 "$command" $run -f /dev/stdin <"$work/prompt" 2>"$work/err")
    [ "$got" = "$wanted" ] || fail '-f /dev/stdin, a file'
    got=$(timeout 240 cat "$work/prompt" | timeout 240 "$command" $run -f /dev/stdin 2>"$work/err")
    [ "$got" = "$wanted" ] || fail '-f /dev/stdin, a pipe'
    got=$({ sleep 0.2; cat "$work/prompt"; } | timeout 240 "$command" $run -f /dev/fd/3 3<&0 </dev/null \
        2>"$work/err")
    [ "$got" = "$wanted" ] || fail '-f <(...)'
    "$command" $run -p a --trace "$work/t.jsonl" >/dev/null 2>&1
    wanted=$("$command" analyze --trace "$work/t.jsonl" | tail -n +2)
    got=$(timeout 240 "$command" analyze --trace /dev/stdin <"$work/t.jsonl" 2>"$work/err" | tail -n +2)
    [ -n "$wanted" ] && [ "$got" = "$wanted" ] || fail 'analyze --trace /dev/stdin'
}

exit "$((failed > 0))"
