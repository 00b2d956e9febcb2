#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu_suite.sh itself, on the emulated GPU: what it runs, counts and leaves behind when something
# fails, hangs or has no time. Arguments: the command, the emulated module, and the emulated device
# contract and kernels of vectors.
set -u
suite=$(dirname "$0")/gpu_suite.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/programs"
cp "$1" "$work/programs/moe-offload"
cp "$2" "$work/programs/moe_cuda.so"
cp "$3" "$work/programs/gpu_device_contract"
cp "$4" "$work/programs/gpu_kernels_vector"

# Arguments: name, what it does.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/programs/$1"
    chmod +x "$work/programs/$1"
}

fail() {
    echo "FAILED: $1"
    cat "$work/out"
    exit 1
}

# Arguments: expected exit status, expected last line, options.
run() {
    expected=$1
    last=$2
    shift 2
    "$suite" --programs "$work/programs" --results "$work/results" "$@" >"$work/out" 2>&1
    status=$?
    [ $status -eq "$expected" ] || fail "exit status $status, not $expected"
    tail -n 1 "$work/out" | grep -q "^$last\$" || fail "the last line is not \"$last\""
}

for name in gpu_kernels_attention gpu_kernels_attend_matrix gpu_kernels_choice gpu_kernels_resident_route \
    gpu_kernels_product gpu_kernels_matrix gpu_delta_contract gpu_streams_contract; do
    program $name 'exit 0'
done
program gpu_kv_contract 'echo it went wrong; exit 3'
program bench_gpu 'echo 40 GB/s'
run 1 '13 passed, 1 failed, 0 not run' info contract kernels bench
grep -q 'FAILED  contract of the KV cache (exit status 3)' "$work/results/summary.txt" ||
    fail "the failure is not in the summary"
grep -q 'it went wrong' "$work/results/summary.txt" || fail "nor what it said"
grep -q 'bench: 1 passed' "$work/results/summary.txt" || fail "a section after failures did not run"
grep -q '40 GB/s' "$work/results/bench.txt" || fail "the bench's figures are not kept"

program gpu_kernels_vector 'exit 0'
program gpu_kernels_attention 'exec sleep 60'
run 1 '6 passed, 1 failed, 0 not run' --test-time 2 kernels
grep -q 'FAILED  kernels: attention (exit status 124: stopped after' "$work/results/summary.txt" ||
    fail "what hangs is not told"
run 0 '1 passed, 0 failed, 6 not run' --section-time 2 kernels

# On a bare machine, without Python; and without a GPU it says why there is none.
mkdir "$work/bare"
for tool in awk cat cp date dirname env grep mkdir mktemp mv pwd rm sed sh tail tee timeout; do
    ln -s "$(command -v $tool)" "$work/bare/$tool"
done
usual=$PATH
# shellcheck disable=SC2123
PATH=$work/bare
run 0 '2 passed, 0 failed, 0 not run' info
mv "$work/programs/moe_cuda.so" "$work/moe_cuda.so"
run 77 'SKIPPED: there is no CUDA module.*' info
mv "$work/moe_cuda.so" "$work/programs/moe_cuda.so"
PATH=$usual

run 0 '[0-9]* passed, 0 failed, 0 not run' --models qwen3moe-q4_k engines
for what in '50% of the experts, host computing off: bits' 'attention by matrix units: near the CPU' \
    'attention by matrix units, 50% of the experts, host computing on: bits'; do
    grep -q "^== tests/oracle/qwen3moe-q4_k/model.gguf, $what" "$work/results/engines.txt" ||
        fail "engines were not compared: $what"
done
exit 0
