#!/bin/sh
# SPDX-License-Identifier: MIT
# bench io, cache, offload and speculate: what they print, and that a sweep that was killed, torn,
# interrupted or is another one goes on, or is refused, as it should.
# Arguments: the command, json_fields, a tiny model.
set -u
moe=$1
json_fields=$2
model=$3
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# Arguments: exit status, what one line on stderr says, the command's arguments. Programs are looked
# for in $programs.
programs=$PATH
refused() {
    status=$1
    words=$2
    shift 2
    (PATH=$programs exec "$moe" "$@") >"$work/out" 2>"$work/err"
    [ $? -eq "$status" ] || fail "exit status, not $status: $*"
    grep -q -e "$words" "$work/err" || fail "'$words' is not in: $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than one line on stderr: $*"
}

awk 'BEGIN { for (i = 0; i < 40; i++) print "the cat and the dog went out, and the day was good." }' \
    >"$work/text.txt"
cache() {
    "$moe" bench cache -m "$model" -f "$work/text.txt" -p 20 -n 12 --expert-cache 50%,75% "$@"
}

# ---- The cache's hits are the simulator's, and nobody beats Belady.
cache --repeat 2 --csv "$work/cache.csv" --json >"$work/json" 2>"$work/err" || fail "bench cache"
[ -s "$work/err" ] && fail "bench cache wrote on stderr: $(cat "$work/err")"
"$json_fields" "$work/json" bench:string machine:string model:string fingerprint:string \
    prompt:string threads:string rows:array || fail "bench cache --json"
rows=$(sed 1,2d "$work/cache.csv" | wc -l)
[ "$rows" -ge 32 ] || fail "bench cache measured $rows times"
# Columns: 1 cache, 2 policy, 3 repetition, 5 hits, 6 regret, 11 simulated hits.
sed 1,2d "$work/cache.csv" | awk -F, '
    $5 != $11 { print "hits of " $1 " " $2 ": " $5 ", simulated " $11; bad = 1 }
    $6 == "" || $6 < 0 { print "regret of " $1 " " $2 ": " $6; bad = 1 }
    $5 < 99 { misses++ }
    END { exit bad || misses == 0 }' || fail "the engine's hits are not the simulator's"
cut -d, -f1-3 "$work/cache.csv" | sort | uniq -d | grep -q . && fail "measured twice"

# ---- Resuming: everything is there, so nothing is run; more repetitions add rows alone.
cp "$work/cache.csv" "$work/before.csv"
cache --repeat 2 --csv "$work/cache.csv" --resume --json >"$work/again" 2>"$work/err" || fail "again"
cmp -s "$work/before.csv" "$work/cache.csv" || fail "a complete file was changed"
cmp -s "$work/json" "$work/again" || fail "the same measurements gave other results"
cache --repeat 3 --csv "$work/cache.csv" --resume --policy lru >/dev/null 2>"$work/err" ||
    fail "a third repetition"
grep -q 'note: 4 of 6 measurements were in' "$work/err" || fail "note: $(cat "$work/err")"
[ "$(sed 1,2d "$work/cache.csv" | wc -l)" -eq $((rows + 2)) ] || fail "not two more rows"
head -c "$(wc -c <"$work/before.csv")" "$work/cache.csv" | cmp -s - "$work/before.csv" ||
    fail "older rows were changed"

# ---- Speculation: recall of a self draft by layer and position, where there was one.
"$moe" bench speculate -m "$model" -f "$work/text.txt" -p 20 -n 24 --repeat 1 --expert-cache 50% \
    --configs 'off; self --length-control static --draft-max 3' --format csv >"$work/speculate.csv" ||
    fail "bench speculate"
tr -d '"' <"$work/speculate.csv" | awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { recall = $at["foreseen_percent"]; hidden = $at["hidden_percent"] }
    NR == 2 { bad += recall != "" || hidden != "" || $at["foreseen_layer_0"] != "" }
    NR == 3 {
        bad += !(recall > 0 && recall <= 100 && hidden >= 0 && hidden <= 100)
        bad += !($at["hidden_ready_percent"] <= hidden && hidden != "")
        bad += !($at["foreseen_layer_0"] > 0)
        for (i = 0; i < 4; i++) bad += !($at["foreseen_position_" i] > 0)
        bad += ("foreseen_layer_1" in at) + ("foreseen_position_4" in at)
    }
    END { exit bad || NR != 3 }' || fail "recall of foresight: $(cat "$work/speculate.csv")"

# ---- Torn: cut at any byte, what was whole stays, and the rest is measured again.
sweep="bench cache -m $model -f $work/text.txt -p 20 -n 12 --repeat 1 --policy lru,lfu"
sweep="$sweep --expert-cache 50%,100%"
# shellcheck disable=SC2086
"$moe" $sweep --csv "$work/whole.csv" >/dev/null || fail "a whole sweep"
size=$(wc -c <"$work/whole.csv")
head=$(head -n 2 "$work/whole.csv" | wc -c)
for cut in 0 10 $((head - 9)) "$head" $((head + 7)) $((size - 40)) $((size - 1)); do
    head -c "$cut" "$work/whole.csv" >"$work/torn.csv"
    kept=$(sed 1,2d "$work/torn.csv" | grep -c '"*[0-9a-f]\{32\}$')
    [ "$cut" -eq $((size - 1)) ] && kept=$((kept - 1)) # whole but for its end
    # shellcheck disable=SC2086
    "$moe" $sweep --csv "$work/torn.csv" --resume >/dev/null 2>"$work/err" ||
        fail "cut at $cut: $(cat "$work/err")"
    [ "$(sed 1,2d "$work/torn.csv" | wc -l)" -eq 4 ] || fail "cut at $cut: not 4 rows"
    [ "$(sed 1,2d "$work/torn.csv" | grep -c '[0-9a-f]\{32\}$')" -eq 4 ] || fail "cut at $cut: torn"
    head -n $((kept + 2)) "$work/torn.csv" >"$work/kept"
    head -n $((kept + 2)) "$work/whole.csv" | cmp -s - "$work/kept" || fail "cut at $cut: not kept"
done

# ---- Killed, as often as it takes, and interrupted once: it ends with what one run gives.
lines() {
    cat "$work/killed.csv" 2>/dev/null | wc -l
}
long="bench cache -m $model -f $work/text.txt -p 20 -n 400 --repeat 2 --policy lru,lfu,sieve"
long="$long --expert-cache 50%,75% --csv $work/killed.csv --resume"
tries=0
for signal in KILL KILL INT KILL; do
    status=0
    while [ $status -eq 0 ] && [ $tries -lt 40 ]; do
        before=$(lines)
        # shellcheck disable=SC2086
        "$moe" $long >/dev/null 2>"$work/err" &
        pid=$!
        while [ "$(lines)" -le $((before + 1)) ] && kill -0 $pid 2>/dev/null; do
            sleep 0.01
        done
        kill -$signal $pid 2>/dev/null
        wait $pid 2>/dev/null
        status=$?
        # It was through before it was looked at: once more from the beginning.
        [ $status -ne 0 ] || rm -f "$work/killed.csv"
        tries=$((tries + 1))
    done
    [ $signal != INT ] || [ $status -eq 130 ] || fail "SIGINT: exit status $status"
    [ $status -ne 0 ] || fail "never killed: the sweep is too short for this test"
    cp "$work/killed.csv" "$work/left.csv"
done
# shellcheck disable=SC2086
"$moe" $long >/dev/null 2>"$work/err" || fail "after kills: $(cat "$work/err")"
[ "$(sed 1,2d "$work/killed.csv" | wc -l)" -eq 12 ] || fail "after kills: not 12 rows"
[ "$(sed 1,2d "$work/killed.csv" | cut -d, -f1-3 | sort -u | wc -l)" -eq 12 ] ||
    fail "after kills: a measurement twice"
grep -c . "$work/left.csv" >/dev/null && grep -vxFf "$work/killed.csv" "$work/left.csv" |
    grep -q '[0-9a-f]\{32\}$' && fail "after kills: a whole row was lost"

# ---- What is not this sweep is refused, and untouched.
cp "$work/whole.csv" "$work/other.csv"
# shellcheck disable=SC2086
{
    refused 1 'other.csv exists: --resume' $sweep --csv "$work/other.csv"
    refused 2 '--resume needs --csv' $sweep --resume
    refused 1 "measured with tokens '20 of .* now it is '20 of" $sweep -n 13 --csv "$work/other.csv" \
        --resume
    refused 1 "measured with threads 'cores', and now it is '1'" $sweep -t 1 \
        --csv "$work/other.csv" --resume
}
echo 'and more' >>"$work/text.txt"
# shellcheck disable=SC2086
refused 1 "measured with prompt 'xxh128 " $sweep --csv "$work/other.csv" --resume
sed -i '$d' "$work/text.txt"
refused 1 "measured with bench 'cache', and now it is 'offload'" bench offload -m "$model" -p 8 \
    -n 4 --csv "$work/other.csv" --resume
sed 's/"fingerprint":"[0-9a-f]*"/"fingerprint":"0"/' "$work/whole.csv" >"$work/foreign.csv"
# shellcheck disable=SC2086
refused 1 "measured with fingerprint '0', and now it is" $sweep --csv "$work/foreign.csv" --resume
sed '4s/.*/50%,lru/' "$work/whole.csv" >"$work/broken.csv"
# shellcheck disable=SC2086
refused 1 'broken.csv, line 4: 2 values, not' $sweep --csv "$work/broken.csv" --resume
# shellcheck disable=SC2086
refused 1 'not a file of measurements' $sweep --csv "$work/text.txt" --resume
cmp -s "$work/whole.csv" "$work/other.csv" || fail "a refused file was changed"
# shellcheck disable=SC2086
refused 2 'give a text with -f FILE or a recorded routing' bench cache -m "$model"
# shellcheck disable=SC2086
refused 2 "--expert-cache wants percentages such as 25%, not '7'" bench cache -m "$model" \
    -f "$work/text.txt" --expert-cache 25%,7
refused 2 "'lru' stands there twice" bench cache -m "$model" -f x --policy lru,lfu,lru
refused 1 'has [0-9]* tokens: -p [0-9]* or less' bench cache -m "$model" -f "$work/text.txt" -p 90000

# ---- A recorded routing, replayed.
"$moe" run -m "$model" -p 'the cat and the dog' -n 30 --ignore-eos --temp 0 --speculate off \
    --trace "$work/routing.jsonl" --quiet >/dev/null || fail "run --trace"
"$moe" bench cache -m "$model" --route-trace "$work/routing.jsonl" -p 4 -n 12 --repeat 1 \
    --policy lru --expert-cache 50% >"$work/out" 2>&1 || fail "--route-trace: $(cat "$work/out")"
grep -q '^text  *means nothing: the routing is replayed' "$work/out" || fail "no warning: routing"

# ---- bench offload: a row for every combination, and the same tokens in all.
"$moe" bench offload -m "$model" -p 8 -n 6 --repeat 1 --expert-cache 50% -t 1,2 --io sync,threads \
    --block 4K,1M --depth 1,8 --prefetch off --format csv >"$work/offload.csv" \
    2>"$work/err" || fail "bench offload: $(cat "$work/err")"
[ "$(wc -l <"$work/offload.csv")" -eq 17 ] || fail "bench offload: not 16 rows"
head -n 1 "$work/offload.csv" | grep -q 'tokens_per_s,.*stall_ms_per_token,.*cpu_s_per_gb,' ||
    fail "bench offload: columns"
[ "$(grep -o '[0-9a-f]\{32\}' "$work/offload.csv" | sort -u | wc -l)" -eq 1 ] || fail "other tokens"
grep -q '"sync, O_DIRECT, 1 x 4 KiB"\|"sync, buffered' "$work/offload.csv" || fail "block of 4K"

# ---- Plots: the script and its data, and by gnuplot itself.
# shellcheck disable=SC2086
"$moe" $sweep --format gnuplot -o "$work/plot" >"$work/out" || fail "--format gnuplot"
[ -s "$work/out" ] && fail "--format gnuplot wrote on stdout"
grep -q "^50 [0-9.]* [0-9.]* [0-9.]*$" "$work/plot.dat" || fail "plot.dat"
grep -q "plot.dat' index 1 using 1:2:3:4 .* title 'policy lfu'" "$work/plot.gp" || fail "plot.gp"
mkdir "$work/bin"
grep -q "set xlabel 'experts in memory (% of all)'" "$work/plot.gp" || fail "plot.gp: axis in words"
"$moe" simulate --synthetic olmoe -n 9 --policy lru,lfru --format gnuplot -o "$work/sim" || fail "simulate: gnuplot"
grep -q "set output '$work/sim.svg'" "$work/sim.gp" && grep -q "title 'belady (the bound)'" "$work/sim.gp" &&
    [ "$(grep -c '^[0-9]' "$work/sim.dat")" -eq 12 ] || fail "sim.gp: no picture, or no bound"
cat >"$work/bin/gnuplot" <<'END'
#!/bin/sh
[ "${1:-}" = --version ] && exit 0
cat >"$(dirname "$0")/script"
END
cat >"$work/bin/fio" <<'END'
#!/bin/sh
[ "${1:-}" = --version ] && exit 0
echo "$@" >>"$(dirname "$0")/arguments"
echo 'a note of fio: {"jobs": [{"job_runtime": 500, "usr_cpu": 5.0, "sys_cpu": 20.0,
    "read": {"io_bytes": 1000000000, "total_ios": 77}}]}' | sed 1s/.*:\ {\"j/{\"j/
END
chmod +x "$work/bin/gnuplot" "$work/bin/fio"
# shellcheck disable=SC2086
{
    PATH="$work/bin:$PATH" "$moe" $sweep --plot "$work/x.svg" >"$work/out" || fail "--plot"
    grep -q "set output '$work/x.svg'" "$work/bin/script" || fail "--plot: script"
    grep -q '^expert_cache  *policy' "$work/out" || fail "--plot: no table"
    refused 2 "--plot must be FILE.svg" $sweep --plot "$work/x.bmp"
    programs=$work/none
    refused 1 'gnuplot is not installed' $sweep --plot "$work/x.svg"
}

# ---- bench io, with a fio of 2 GB/s and 0.125 CPU-seconds per GB.
head -c 3000000 /dev/zero >"$work/data.bin"
io="bench io --file $work/data.bin --bytes 4M --range 20K-200K --repeat 2 --depth 4"
# shellcheck disable=SC2086
PATH="$work/bin:$PATH" "$moe" $io --io sync,threads,fio --block 64K --csv "$work/io.csv" \
    --format csv >"$work/out" 2>"$work/err" || fail "bench io: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" -eq 4 ] || fail "bench io: not 3 rows"
grep -q '^"fio","64K","4",2.000,2.000,2.000,0.1250,' "$work/out" || fail "fio: $(cat "$work/out")"
# Of every pair: ours in percent of 2 GB/s, and the median of two is their mean.
awk -F, '$1 == "sync" { sum += $5 / 2 * 100 } END { printf "%.1f\n", sum / 2 }' "$work/io.csv" \
    >"$work/expected"
expected=$(cat "$work/expected")
share=$(awk -F, '$1 == "\"sync\"" { print $(NF - 2) }' "$work/out")
awk -v a="$expected" -v b="$share" 'BEGIN { exit !(a - b < 0.2 && b - a < 0.2 && b > 0) }' ||
    fail "percent of fio: $share, not $expected"
grep -q -e "--filename=$work/data.bin .* --bs=65536 --iodepth=4 --io_size=4194304 --randseed=2 " \
    "$work/bin/arguments" || fail "fio's arguments: $(cat "$work/bin/arguments")"
# Equal seeds ask for equal ranges: as many reads of both engines in a repetition.
[ "$(awk -F, '$1 != "fio" && NR > 2 { print $4, $8 }' "$work/io.csv" | sort -u | wc -l)" -eq 2 ] ||
    fail "engines read other ranges: $(cat "$work/io.csv")"
# shellcheck disable=SC2086
{
    refused 1 'fio is not installed' $io --io fio
    refused 2 "--block wants sizes such as 256K, .* not '5K'" $io --block 5K
    refused 2 "--depth wants numbers from 1 to 1024, not '0'" $io --depth 0
    refused 2 "--range must be a size" $io --range 6M-1M
    refused 2 "ranges of 4194304 to 4194304 bytes of a file of 3000000" $io --range 4M --io threads
}
refused 2 'say what to read: -m FILE, a model, or --file' bench io
refused 1 'No such file' bench io --file "$work/no-such-file"
"$moe" bench io -m "$model" --io threads --block 4K --depth 1 --repeat 1 --bytes 100K >"$work/out" ||
    fail "bench io -m"
grep -q '^fingerprint  *[0-9a-f]\{16\}$' "$work/out" || fail "bench io: no fingerprint"
grep -q '^ranges  *[1-9][0-9]* to ' "$work/out" || fail "bench io: no ranges"

echo "$failed failed"
[ "$failed" -eq 0 ]
