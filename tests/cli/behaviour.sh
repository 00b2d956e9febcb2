#!/bin/sh
# SPDX-License-Identifier: MIT
# What a table of cases cannot say: JSON, standard input, interrupts, the same tokens in every
# configuration, ids that give their text back.
# Arguments: the command, json_fields, a tiny model, a folder that may hold a model with a template.
set -u
moe=$1
json_fields=$2
model=$3
demo=$(find "$4" -maxdepth 1 -name '*.gguf' | head -n 1)
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
prompt='the cat and the dog went out, and the day was'

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# The hash of what `run` writes with these arguments.
tokens_of() {
    "$moe" run -m "$model" -p "$prompt" -n 24 --ignore-eos --json "$@" 2>"$work/json" \
        >"$work/text" || { fail "run $*"; return; }
    sed -n 's/.*"tokens_xxh128": "\([0-9a-f]\{32\}\)".*/\1/p' "$work/json"
}

# --json: one object on stderr with the fields that scripts rely on.
first=$(tokens_of --temp 0)
[ ${#first} -eq 32 ] || fail "no hash of the tokens: '$first'"
"$json_fields" "$work/json" prompt_tokens:int prompt_tokens_per_s:number decode_tokens:int \
    decode_tokens_per_s:number bytes_read_disk:int bytes_moved_link:int expert_hits:int \
    passes_recorded:int passes_missed:int expert_misses:int disk_retries:int expert_failures:int expert_timeouts:int \
    peak_rss_bytes:int tokens_xxh128:string seed:int stop:string ||
    fail "run --json"
grep -q '"decode_tokens": 24,' "$work/json" || fail "decode_tokens is not 24"
cp "$work/text" "$work/first-text"

copy=$work/copy.gguf second_copy=$work/second.gguf
cp "$model" "$copy" && cp "$model" "$second_copy" || exit 2
# Temperature 0: the same tokens whatever the configuration; another prompt gives others.
for arguments in '-t 1' '-t 2' '-t 3' '-b 1' '-b 7' '-b 4096' '-c 100' '--kernels reference' \
    '--kernels native' '-s 7' '--raw' '--offload on-demand' \
    '--prefetch off' '--prefetch on' '--policy lru' '--policy lfu' '--io sync' '--io threads' '--io-block 8K --io-depth 3' \
    '--host-memory 1G' '--expert-cache 100%' '--expert-cache 50%' "--expert-cache 50% --model-copy $copy" \
    "--expert-cache 50% --io threads --model-copy $copy --model-copy $second_copy"; do
    # shellcheck disable=SC2086
    hash=$(tokens_of --temp 0 $arguments)
    [ "$hash" = "$first" ] || fail "other tokens with $arguments"
    cmp -s "$work/text" "$work/first-text" || fail "another text with $arguments"
done
for kernels in avx2 avx512; do
    # A processor may lack them: then it is refused by name.
    if "$moe" run -m "$model" -p a -n 0 --kernels $kernels --quiet 2>"$work/err"; then
        [ "$(tokens_of --temp 0 --kernels $kernels)" = "$first" ] || fail "other tokens: $kernels"
    else
        grep -q "$kernels" "$work/err" || fail "$kernels refused without its name"
    fi
done
[ "$(tokens_of --temp 0 -n 23)" != "$first" ] || fail "the hash does not depend on the tokens"

# Sampling: a seed repeats itself, and two seeds differ.
[ "$(tokens_of -s 5)" = "$(tokens_of -s 5)" ] || fail "seed 5 twice gave two texts"
[ "$(tokens_of -s 5 --temp 2)" != "$(tokens_of -s 6 --temp 2)" ] || fail "seeds 5 and 6 agree"

# The prompt from -p, -f and standard input is the same prompt.
printf '%s\n' "$prompt" >"$work/prompt.txt"
run='run -n 24 --ignore-eos --temp 0 --quiet'
# shellcheck disable=SC2086
{
    "$moe" $run -m "$model" -f "$work/prompt.txt" >"$work/from-file" || fail "run -f"
    "$moe" $run -m "$model" <"$work/prompt.txt" >"$work/from-stdin" || fail "run from stdin"
    "$moe" $run -m "$model" -f - <"$work/prompt.txt" >"$work/from-dash" || fail "run -f -"
}
for source in file stdin dash; do
    cmp -s "$work/from-$source" "$work/first-text" || fail "another text from-$source"
done

# Ids give their text back.
"$moe" tokenize -m "$model" -p "$prompt" --json >"$work/ids.json" || fail "tokenize"
"$json_fields" "$work/ids.json" n_tokens:int tokens:array || fail "tokenize --json"
[ "$("$json_fields" "$work/ids.json" --join tokens piece)" = "$prompt" ] ||
    fail "the pieces are not the text"
[ "$("$moe" tokenize -m "$model" -p "$prompt" | tr -d '\n')" = \
    "$("$json_fields" "$work/ids.json" --join tokens id)" ] || fail "ids differ with --json"

# The other JSON results.
"$moe" inspect -m "$model" --json >"$work/json" && "$json_fields" "$work/json" gguf_version:int \
    runnable:boolean n_expert:int expert_bytes:int by_kind:array metadata:object ||
    fail "inspect --json"
"$moe" inspect -m "$model" --json --all >"$work/json" &&
    "$json_fields" "$work/json" tensors:array || fail "inspect --json --all"
"$moe" devices -m "$model" --json >"$work/json" && "$json_fields" "$work/json" cpu:object \
    memory:object huge_pages:object io:object gpus:object storage:object || fail "devices --json"
"$moe" plan -m "$model" --json >"$work/json" && "$json_fields" "$work/json" fits:boolean \
    floor_bytes:int expert_cache_bytes:int total_bytes:int expected_tokens_per_s:number ||
    fail "plan --json"
"$moe" bench decode -m "$model" -p 8 -n 4 --repeat 2 --json >"$work/json" &&
    "$json_fields" "$work/json" results:array model_fingerprint:string threads:int seed:int \
        machine:object tokens_xxh128:string || fail "bench decode --json"
awk 'BEGIN { for (i = 0; i < 60; i++) print "the cat and the dog went out, the day was good." }' \
    >"$work/long.txt"
"$moe" perplexity -m "$model" -f "$work/long.txt" -c 64 --json >"$work/json" &&
    "$json_fields" "$work/json" perplexity:number bits_per_byte:number scored_tokens:int \
        chunks:int || fail "perplexity --json"

# Logits do not depend on the chunk, and ids are as good as their text.
ids=$("$moe" tokenize -m "$model" -p "$prompt" | tr '\n' ' ')
"$moe" logits -m "$model" -p "$prompt" -o "$work/a.npy" --quiet || fail "logits -p"
"$moe" logits -m "$model" --tokens "$ids" -b 3 -t 1 -o "$work/b.npy" --quiet || fail "logits ids"
cmp -s "$work/a.npy" "$work/b.npy" || fail "logits of -p and of --tokens -b 3 differ"
n=$(echo "$ids" | wc -w)
[ "$(wc -c <"$work/a.npy")" -eq $((128 + n * 288 * 4)) ] || fail "logits: size of the file"

# Arguments: the exit status, a model, and a command that is run when the first text has appeared.
# What was written stays and is the beginning of the whole text; the statistics are in $work/err.
break_off() {
    expected=$1
    broken=$2
    shift 2
    rm -f "$work/text"
    "$moe" run -m "$broken" -p "$prompt" -c 200000 --ignore-eos --temp 0 --expert-cache 50% \
        $flags >"$work/text" 2>"$work/err" &
    pid=$!
    tries=0
    while [ ! -s "$work/text" ] && [ $tries -lt 2400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    "$@"
    wait $pid
    status=$?
    [ $status -eq "$expected" ] || fail "$*: exit status $status: $(cat "$work/err")"
    [ -s "$work/text" ] || fail "$*: no text"
    n=$(cat "$work/text" "$work/first-text" | wc -c) # of both; then the lesser
    for text in text first-text; do
        size=$(wc -c <"$work/$text")
        [ "$size" -lt "$n" ] && n=$size
    done
    cmp -s -n "$n" "$work/text" "$work/first-text" || fail "$*: another text"
}

interrupt() {
    kill -INT $pid
}

# Ctrl-C: status 130. A file that is cut short under the command: 1, and what was not read.
for flags in '' '--json'; do
    break_off 130 "$model" interrupt
    grep -q 'interrupted' "$work/err" || fail "SIGINT: statistics do not tell it"
    [ -z "$flags" ] || "$json_fields" "$work/err" decode_tokens:int stop:string ||
        fail "SIGINT: --json"
    cp "$model" "$work/cut.gguf"
    break_off 1 "$work/cut.gguf" truncate -s 100000 "$work/cut.gguf"
    grep -q 'cut.gguf: .*truncated' "$work/err" || fail "cut short: $(cat "$work/err")"
    grep -Eq 'reads made again, [1-9][0-9]* experts not read|"expert_failures": [1-9]' \
        "$work/err" || fail "cut short: statistics do not tell it: $(cat "$work/err")"
done

# A full disk, a closed reader: told, not ignored.
if [ -w /dev/full ]; then
    "$moe" run -m "$model" -p "$prompt" -n 4 --quiet >/dev/full 2>"$work/err"
    [ $? -eq 1 ] && grep -q 'standard output' "$work/err" || fail "run to a full device"
    "$moe" tokenize -m "$model" -p "$prompt" >/dev/full 2>"$work/err"
    [ $? -eq 1 ] && grep -q 'standard output' "$work/err" || fail "tokenize to a full device"
fi

# A note that comes from the mover's thread after opening: here that memory cannot be locked, as for
# users other than root. Runs the command as such a user: without --quiet, into a file and on a
# terminal.
if setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock prlimit --memlock=65536 true; then
    limited='setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock prlimit --memlock=65536'
    noted="$limited $moe run -m $model -n 24 --ignore-eos --temp 0 --io uring --expert-cache 50%"
    # The limit is for all processes of a user: another test may have locked all of it for a moment.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        $noted -p "$prompt" >"$work/text" 2>"$work/err"
        status=$?
        grep -q 'io_uring is not available' "$work/err" || break
        sleep 1
    done
    [ $status -eq 0 ] && cmp -s "$work/text" "$work/first-text" ||
        fail "a note after opening: exit status $status: $(cat "$work/err")"
    if ! grep -q 'io_uring.*not available' "$work/err"; then
        grep -q 'note: .*RLIMIT_MEMLOCK' "$work/err" || fail "no note: $(cat "$work/err")"
        script -qec "$noted -p '$prompt'" /dev/null </dev/null >"$work/terminal"
        status=$?
        [ $status -eq 0 ] && grep -q 'note: .*RLIMIT_MEMLOCK' "$work/terminal" ||
            fail "a note on a terminal: exit status $status: $(cat "$work/terminal")"
    fi
fi

# Lossy modes: a short answer has a figure, what was not measured has none, and --quiet still tells
# that the text is lossy. The limit acts within the first tokens.
cp "$model" "$work/lossy.gguf"
"$moe" calibrate -m "$work/lossy.gguf" -f "$work/long.txt" -n 600 --quiet || fail "calibrate"
lossy() {
    n=$1
    shift
    "$moe" run -m "$work/lossy.gguf" -p "$prompt" -n "$n" --ignore-eos --temp 0 \
        --expert-cache 50% --speculate off --buddy random,rho=8 "$@" 2>"$work/err" >"$work/text" ||
        fail "run --buddy -n $n $*: $(cat "$work/err")"
}
lossy 20 --quiet
[ "$(wc -l <"$work/err")" -eq 1 ] && grep -Eq '^LOSSY: .*on [1-9][0-9]* positions compared.*KL ' \
    "$work/err" || fail "--quiet hides that the text is lossy: $(cat "$work/err")"
lossy 20 --json
"$json_fields" "$work/err" lossy:boolean lossy_mean_kl:number lossy_max_kl:number \
    lossy_agreed:int && grep -q '"lossy": true' "$work/err" || fail "lossy JSON: $(cat "$work/err")"
lossy 9 --json --quality-limit 1e-9
grep -q '"lossy": true, "lossy_on": false' "$work/err" ||
    fail "--quality-limit after 9 tokens: $(cat "$work/err")"
lossy 1 --json # comes from the prompt, which is exact
grep -q '"lossy_compared": 0, "lossy_agreed": null, "lossy_mean_kl": null, "lossy_max_kl": null' \
    "$work/err" ||
    fail "nothing was compared: $(cat "$work/err")"

# A budget that drops experts: a trace has what is left, and can be read; a conversation counts that; with
# buddies beside it no more is dropped than was chosen.
printf '%s\n%s\n' "$prompt" "$prompt" >"$work/calibrate.txt"
cp "$model" "$work/drops.gguf"
"$moe" calibrate -m "$work/drops.gguf" -f "$work/calibrate.txt" --quiet || fail "calibrate"
drops() {
    "$moe" run -m "$work/drops.gguf" -n 24 --temp 0 --ignore-eos --expert-cache 50% --expert-budget 3 \
        --expert-budget-mode static,truncate "$@" >"$work/text" 2>"$work/err" <"$work/calibrate.txt" ||
        fail "a budget that drops, $*: $(cat "$work/err")"
}
drops -p "$prompt" --trace "$work/drops.jsonl" --json
grep -q '"lossy_dropped": [1-9]' "$work/err" || fail "nothing is dropped: $(cat "$work/err")"
"$moe" simulate --trace "$work/drops.jsonl" --policy lru >"$work/text" 2>"$work/err" ||
    fail "the trace of a run that dropped experts: $(cat "$work/err")"
drops -cnv --chat-template chatml
grep -q 'LOSSY' "$work/err" || fail "a lossy conversation: $(cat "$work/err")"
drops -p "$prompt" --buddy on --json
dropped=$(sed -n 's/.*"lossy_dropped": \([0-9]*\).*/\1/p' "$work/err")
[ "$dropped" -le "$(sed -n 's/.*"lossy_picks": \([0-9]*\).*/\1/p' "$work/err")" ] ||
    fail "$dropped were dropped: $(cat "$work/err")"

# Through the chat template, when a model with one is at hand.
if [ -n "$demo" ]; then
    "$moe" tokenize -m "$demo" -p 'Hi <|im_end|>' --chat --system 'Be brief.' >"$work/chat" ||
        fail "tokenize --chat"
    "$moe" run -m "$demo" -p 'Hi' --chat -n 4 --temp 0 --quiet >/dev/null || fail "run --chat"
    # Reasoning goes to standard error, the answer to standard output.
    printf '%s' "{{ messages[0].content }} <think>{{ '</think>' if false }}" >"$work/opens.jinja"
    thinks() {
        "$moe" run -m "$demo" -p 'Say Hello.' --chat --chat-template "$work/opens.jinja" -n 6 \
            --temp 0 "$@" >"$work/text" 2>"$work/err" || fail "run with reasoning $*"
        [ -s "$work/text" ] && fail "reasoning on standard output $*: $(cat "$work/text")"
        return 0
    }
    thinks
    sed -n '1p' "$work/err" | grep -qxF '[reasoning]' && [ -n "$(sed -n '2p' "$work/err")" ] ||
        fail "no heading over the reasoning: $(cat "$work/err")"
    thinks --quiet
    [ -s "$work/err" ] && fail "--quiet shows reasoning: $(cat "$work/err")"
    thinks --json
    grep -q '"reasoning": "..*", "' "$work/err" || fail "--json without reasoning: $(cat "$work/err")"
    "$moe" run -m "$demo" -p 'Say Hello.' --chat -n 6 --temp 0 --json 2>"$work/err" >"$work/text"
    grep -q '"reasoning": "", ' "$work/err" && [ -s "$work/text" ] ||
        fail "an answer without reasoning: $(cat "$work/err")"
    # What a user writes never becomes a control token.
    "$moe" tokenize -m "$demo" -p '<|im_start|><|im_end|>' --chat >"$work/chat"
    end=$("$moe" tokenize -m "$demo" -p '<|im_end|>' --raw)
    [ "$(grep -cx "$end" "$work/chat")" -eq 1 ] || fail "control tokens from a user"
fi

# A text that is cut off within a character ends before it.
for n in 1 2 4; do
    "$moe" run -m "$model" -p once --grammar 'root ::= "𝔊𝔊"' -n $n --temp 0 --quiet >"$work/cut"
    [ "$(cat "$work/cut")" = "$([ $n -lt 4 ] || echo 𝔊)" ] || fail "-n $n: half a character is printed"
done

echo "$failed failed"
[ "$failed" -eq 0 ]
