#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu_day.sh on the emulated GPU, with tiny sizes. It is killed with all of its processes at random seconds, and
# called again until nothing is left: no line is torn, no figure lost, no step done twice, no model left over.
# Arguments: the command, the emulated module, the emulated device contract and bench, write_shape,
# residency_speeds, json_fields; and a seed for the seconds.
set -u
day=$(cd "$(dirname "$0")/../../bench" && pwd)/gpu_day.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/programs/llama" "$work/bin" "$work/results"
cp "$1" "$work/programs/moe-offload"
cp "$2" "$work/programs/moe_cuda.so"
cp "$3" "$work/programs/gpu_device_contract"
cp "$4" "$work/programs/bench_gpu"
cp "$5" "$work/programs/write_shape"
cp "$6" "$work/programs/residency_speeds"
json_fields=$7
seed=${8:-1}
lines=$work/results/gpu-day.jsonl

fail() {
    echo "FAILED: $1 (seed $seed)"
    cat "$work/out" "$lines"
    exit 1
}

# Arguments: a program's place, what it does.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/$1"
    chmod +x "$work/$1"
}

for name in gpu_kernels_vector gpu_kernels_attention gpu_kernels_attend_matrix gpu_kernels_choice \
    gpu_kernels_resident_route gpu_kernels_product gpu_kernels_matrix gpu_delta_contract gpu_streams_contract; do
    program programs/$name 'exit 0'
done
program programs/gpu_kv_contract 'echo it went "wrong"; exit 3'
program programs/llama/llama-bench 'echo "$@" >>"'"$work"'/asked"
echo "{\"avg_ts\": 2.5, \"stddev_ts\": 0.1}"'
# The profiler's table, with thousands' commas.
program bin/ncu 'echo "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\""
echo "\"0\",\"moe_fetch(a, b)\",\"gpu__time_duration.sum\",\"ns\",\"12,500\""
echo "\"0\",\"moe_fetch(a, b)\",\"dram__throughput.avg\",\"%\",\"40\""'
program bin/compute-sanitizer 'exit 0'

call() {
    PATH=$work/bin:$PATH OUT=$work/results "$day" --tiny --programs "$work/programs" --scratch "$work/models" "$@"
}

# Time for nothing: nothing is begun, and all of it is left.
call --time 0 >"$work/out" 2>&1 || fail "a call without time"
tail -n 1 "$work/out" | grep -q '^0 figures, 0 passed, 0 failed, 41 left$' || fail "its last line"

seconds=$(awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 5; i++) printf "%.2f ", 0.2 + 6 * rand() }')
for second in $seconds; do
    # A step that is killed a third time would count as failed.
    sed -n 's/^{"step": "\([^"]*\)", "state": "begun".*/\1/p' "$lines" | sort | uniq -c | grep -q ' [2-9] ' && break
    cp "$lines" "$work/before"
    PATH=$work/bin:$PATH OUT=$work/results setsid "$day" --tiny --programs "$work/programs" \
        --scratch "$work/models" >"$work/out" 2>&1 &
    session=$!
    sleep "$second"
    # shellcheck disable=SC2046
    kill -KILL $session $(ps -o pid= -s $session) 2>/dev/null
    wait $session 2>/dev/null
    cmp -s -n "$(wc -c <"$work/before")" "$work/before" "$lines" || fail "lines of an earlier call changed"
done
call >"$work/out" 2>&1
status=$?
[ $status -eq 1 ] || fail "exit status $status, not 1, though a contract failed"
tail -n 1 "$work/out" | grep -q '^[0-9]* figures, [0-9]* passed, 1 failed, 0 left$' || fail "the last line"

# Every line is JSON.
{
    echo '{"lines": ['
    sed '$!s/$/,/' "$lines"
    echo ']}'
} >"$work/all.json"
"$json_fields" "$work/all.json" lines:array || fail "a torn line"

has() {
    grep -q -- "$1" "$2" || fail "$2 has no \"$1\""
}
for what in '"subject": "decode", "of": "tiny, 100% resident, host computing off".*"hit_rate": 1.0' \
    '"subject": "decode", "of": "tiny, 25% resident, host computing auto".*"hit_rate": 0' \
    '"subject": "prompt", "of": "tiny, 100% resident' \
    '"subject": "prompt", "of": "tiny, 100% resident, host computing off, exact attention"' \
    '"subject": "attention", "of": "1 row at 100: .*, exact"' '"of": "tiny, 100% resident, llama-bench", "value": 2.5' \
    '"subject": "kernel", "of": "tiny, moe_fetch(a, b)", "value": 12.500, .*"roofline_share": 0.4000' \
    '"subject": "product".*"roofline_share": ' '"subject": "attention"' '"subject": "experts"' '"subject": "link"' \
    '"subject": "pinning"' '"subject": "staging"' '"subject": "direct"' '"subject": "rows"' \
    '"step": "contract-kv", "state": "failed", .*"why": "exit status 3: it went wrong' \
    '"step": "exactness", "state": "passed"' '"step": "sanitize-initcheck", "state": "passed"'; do
    has "$what" "$lines"
done
has '^decode .*tiny, 25% resident, host computing off .*% hits .*% of memory and link' "$work/results/gpu-day.txt"
has '^failed .*contract-kv: exit status 3' "$work/results/gpu-day.txt"
has '-p 0 -n 4 -d 12' "$work/asked"
[ -z "$(sed -n 's/^{"step": "\([^"]*\)", "state": "\(passed\|failed\|not run\)".*/\1/p' "$lines" | sort | uniq -d)" ] ||
    fail "a step ended twice"
ls "$work"/models/* /dev/shm/gpu-day* >/dev/null 2>&1 && fail "a model is still there"

# Elsewhere, with these lines beside: nothing is left.
mkdir "$work/later"
OUT=$work/later "$day" --tiny --programs "$work/programs" --after "$lines" >"$work/out" 2>&1
tail -n 1 "$work/out" | grep -q ', 1 failed, 0 left$' || fail "earlier lines are not read"
grep -q '"step"' "$work/later/gpu-day.jsonl" && fail "a step ran again"
# A step that was begun three times and never ended is not begun again; without ncu, experts are timed.
program bin/ncu 'exit 1'
sed '/"step": "contract-delta"/d; /"step": "tiny-profile"/d' "$lines" >"$work/later.jsonl"
for _ in 1 2 3; do
    echo '{"step": "contract-delta", "state": "begun", "seconds": 0, "why": ""}' >>"$work/later.jsonl"
done
PATH=$work/bin:$PATH OUT=$work/later "$day" --tiny --programs "$work/programs" --scratch "$work/models" \
    --after "$work/later.jsonl" >"$work/out" 2>&1
has '"step": "contract-delta", "state": "failed", .*begun three times' "$work/later/gpu-day.jsonl"
has '"subject": "experts"' "$work/later/gpu-day.jsonl"

rm "$work/programs/moe_cuda.so"
call >"$work/out" 2>&1
[ $? -eq 77 ] || fail "without a GPU it does not skip"
tail -n 1 "$work/out" | grep -q '^SKIPPED: no GPU: ' || fail "nor says why"
exit 0
