#!/bin/sh
# SPDX-License-Identifier: MIT
# What cannot be written is an error, whatever the form; what ends a run leaves nothing half done.
# Arguments: the command, json_fields, a tiny model.
set -u
moe=$1
json_fields=$2
model=$3
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAIL $*: status $got: $(head -c 300 "$work/err")"
    failed=$((failed + 1))
}

# Arguments: the status wanted, an expression of the message, the command's arguments. $out and $err
# are where its streams go.
expect() {
    wanted=$1
    says=$2
    shift 2
    : >"$work/err"
    "$moe" "$@" >"${out:-/dev/null}" 2>"${err:-$work/err}" </dev/null
    got=$?
    [ "$got" -eq "$wanted" ] || fail "$@"
    [ -z "$says" ] || grep -qE -e "$says" "$work/err" || fail "$@"
}

# A device without room, for everything that goes to standard output.
if [ -w /dev/full ]; then
    out=/dev/full
    while read -r arguments; do
        # shellcheck disable=SC2086
        expect 1 'moe-offload: .*(standard output|JSON output)' $arguments
    done <<LINES
--help
--version
bench --help
run --help
run -m $model -p Hello -n 4 --quiet
inspect -m $model
inspect -m $model --all
inspect -m $model --json
devices
devices --json
plan -m $model
plan -m $model --json
tokenize -m $model -p Hello
tokenize -m $model -p Hello --json
bench decode -m $model -p 4 -n 2 --repeat 1
bench decode -m $model -p 4 -n 2 --repeat 1 --json
simulate --synthetic olmoe -n 9 --policy lru
simulate --synthetic olmoe -n 9 --policy lru --format csv
simulate --synthetic olmoe -n 9 --policy lru --json
analyze --synthetic olmoe -n 9
analyze --synthetic olmoe -n 9 --format csv
LINES
    out=/dev/null
    # Statistics as JSON on standard error; a trace; logits; files of a trace. By a link: a command
    # that replaced the file it should write to would replace that, and no device.
    ln -s /dev/full "$work/full"
    err=/dev/full
    expect 1 '' run -m "$model" -p Hello -n 4 --json
    err=
    expect 1 '/full' run -m "$model" -p Hello -n 4 --quiet --trace "$work/full"
    expect 1 '/full: .*No space' logits -m "$model" -p Hello -o "$work/full"
    [ -c "$work/full" ] || fail 'logits replaced what it should write to'
    expect 1 '/full' analyze --synthetic olmoe -n 9 --export "$work/full"
fi

# A file system without room: files may hold 512 bytes.
limited() {
    (
        trap '' XFSZ
        ulimit -f 1
        expect "$@"
        [ "$failed" -eq 0 ]
    ) || failed=$((failed + 1))
}
err=/dev/null
limited 1 '' logits -m "$model" -p Hello -o "$work/full.npy"
[ ! -e "$work/full.npy" ] && [ -z "$(find "$work" -name 'moe-offload-*.tmp')" ] || fail 'a cut .npy is left'
limited 1 '' run -m "$model" -p "Hello Hello Hello" -n 20 --ignore-eos --quiet --trace "$work/full.jsonl"
err=

# A bench that fails before its first measurement leaves no CSV in the way of the next attempt.
printf 'a b c d e f g h a b c d e f g h' >"$work/text.txt"
expect 1 '' bench offload -m "$model" -f "$work/text.txt" -p 4000 -n 4 --repeat 1 --csv "$work/b.csv"
[ ! -e "$work/b.csv" ] || fail 'a failed bench leaves its CSV'
expect 0 '' bench offload -m "$model" -f "$work/text.txt" -p 4 -n 4 --repeat 1 \
    --expert-cache 100% --csv "$work/b.csv"
[ -s "$work/b.csv" ] || fail 'no CSV'

# Signals: the text so far, statistics, a trace that can be read; 128 and the signal's number.
# Arguments: the signal's name, the exit status. Whoever runs this test may ignore SIGHUP, which
# children take over: env(1) undoes that where it can.
as_usual=
env --default-signal=HUP true 2>/dev/null && as_usual='env --default-signal=HUP'
end_by() {
    rm -f "$work/text" "$work/t.jsonl"
    $as_usual "$moe" run -m "$model" -p Hello -c 200000 --ignore-eos --temp 0 --json \
        --trace "$work/t.jsonl" >"$work/text" 2>"$work/err" &
    pid=$!
    tries=0
    while [ ! -s "$work/text" ] && [ $tries -lt 2400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -s "$1" $pid
    wait $pid
    got=$?
    [ $got -eq "$2" ] || fail "SIG$1"
    "$json_fields" "$work/err" decode_tokens:int stop:string || fail "SIG$1: no statistics"
    grep -q '"stop": "interrupted"' "$work/err" || fail "SIG$1: statistics do not tell it"
    "$moe" analyze --trace "$work/t.jsonl" >"$work/rows" 2>&1 || fail "SIG$1: the trace is torn"
    tokens=$(sed -n 's/.*"decode_tokens": \([0-9]*\),.*/\1/p' "$work/err")
    [ "$(sed -n 's/^rows: \([0-9]*\) .*/\1/p' "$work/rows")" -ge "$tokens" ] ||
        fail "SIG$1: rows of the trace: $(head -n 1 "$work/rows")"
}
end_by INT 130
end_by TERM 143
end_by HUP 129

# A hang-up that is ignored stays ignored, as under nohup.
rm -f "$work/text"
(
    trap '' HUP
    exec "$moe" run -m "$model" -p Hello -c 200000 --ignore-eos --temp 0 >"$work/text" 2>"$work/err"
) &
pid=$!
tries=0
while [ ! -s "$work/text" ] && [ $tries -lt 2400 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -s HUP $pid
sleep 0.2
got=0
kill -0 $pid 2>/dev/null || fail 'nohup: ended by SIGHUP'
kill -s TERM $pid
wait $pid
got=$?
[ $got -eq 143 ] || fail 'nohup, then SIGTERM'

echo "$failed failed"
[ "$failed" -eq 0 ]
