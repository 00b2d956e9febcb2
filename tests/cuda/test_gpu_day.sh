#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu_day.sh on the emulated GPU, with tiny sizes: each of its three commands writes its figures, as a
# table and as JSON, counts what failed, and says why when there is no GPU. Arguments: the command, the
# emulated module, the emulated device contract and bench, write_shape, json_fields.
set -u
day=$(cd "$(dirname "$0")/../../bench" && pwd)/gpu_day.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/programs/llama"
cp "$1" "$work/programs/moe-offload"
cp "$2" "$work/programs/moe_cuda.so"
cp "$3" "$work/programs/gpu_device_contract"
cp "$4" "$work/programs/bench_gpu"
cp "$5" "$work/programs/write_shape"
json_fields=$6

fail() {
    echo "FAILED: $1"
    cat "$work/out"
    exit 1
}

# Arguments: name, what it does.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/programs/$1"
    chmod +x "$work/programs/$1"
}

# Arguments: day, expected exit status, what the last line is, options.
run() {
    number=$1
    expected=$2
    last=$3
    shift 3
    "$day" "$number" --tiny --programs "$work/programs" --results "$work/results" \
        --scratch "$work" "$@" >"$work/out" 2>&1
    status=$?
    [ $status -eq "$expected" ] || fail "day $number: exit status $status, not $expected"
    tail -n 1 "$work/out" | grep -q "^$last\$" || fail "day $number: the last line is not \"$last\""
}

# Arguments: a pattern that the table must have.
has() {
    grep -q "$1" "$work/results/day$number.txt" || fail "day $number: no line has \"$1\""
}

is_json() {
    "$json_fields" "$work/results/day$number.json" day:int gpu:string tiny:boolean passed:int \
        failed:int not_run:int figures:array || fail "day $number: its JSON"
}

for name in gpu_kernels_vector gpu_kernels_attention gpu_kernels_choice gpu_kernels_resident_route \
    gpu_kernels_product gpu_kernels_matrix gpu_kv_contract gpu_delta_contract; do
    program $name 'exit 0'
done
# Another engine, which is given what it would be on a GPU.
program llama/llama-bench 'echo "$@" >>"'"$work"'/asked"
echo "{\"avg_ts\": 2.5, \"stddev_ts\": 0.1}"'

run 1 0 '[0-9]* figures, [0-9]* passed, 0 failed, [0-9]* not run'
is_json
for what in '^product .*Q4_K .*% of memory' '^product .*MXFP4' '^attention .*1 row at' \
    '^attention .*4 rows at .*MLA' '^experts .*1 row, 8 experts' '^experts .*8 rows' '^link .*pieces' \
    '^link .*beside products' '^pinning ' '^staging .*behind 8 experts, 99th' '^direct .*copied first' \
    '^rows .*as chosen' '^contract: 3 passed'; do
    has "$what"
done
grep -q '"subject": "product".*"roofline_share": ' "$work/results/day1.json" || fail "no roofline share"

program gpu_kv_contract 'echo it went wrong; exit 3'
run 2 0 '[0-9]* figures, [0-9]* passed, 0 failed, [0-9]* not run'
is_json
for what in '^decode .*tiny, 100% resident, host computing off .*% of memory and link .* times llama-bench' \
    '^decode .*tiny, 50% resident, host computing off' '^decode .*50% resident, host computing auto' \
    '^prompt .*tiny, 40 tokens .* times llama-bench' '^engines: '; do
    has "$what"
done
grep -q '"subject": "decode".*"ratio": ' "$work/results/day2.json" || fail "no ratio"
grep -q -- '-ngl 99 .*-n 8 -ncmoe 2' "$work/asked" || fail "the other engine was not asked for half of the layers"
ls "$work"/*.gguf >/dev/null 2>&1 && fail "the model is still there"

# The profile is not run without ncu; no time left is told.
rm "$work/programs/llama/llama-bench"
run 3 0 '[0-9]* figures, [0-9]* passed, 0 failed, [0-9]* not run'
is_json
has '^decode .*tiny, 100% resident'
grep -q 'llama-bench$' "$work/results/day3.txt" && fail "a ratio to nothing"
run 3 0 '0 figures, 0 passed, 0 failed, [1-9][0-9]* not run' --time 1

program bench_gpu 'exit 4'
run 1 1 '[0-9]* figures, [0-9]* passed, [1-9][0-9]* failed, [0-9]* not run'
has '^FAILED  attention (exit status 4)'
is_json

rm "$work/programs/moe_cuda.so"
for number in 1 2 3; do
    run $number 77 'SKIPPED: no GPU: .*'
done
exit 0
