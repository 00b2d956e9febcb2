#!/bin/sh
# SPDX-License-Identifier: MIT
# Everything about the GPU that only a GPU can show, in one command:
#
#     tests/cuda/gpu_suite.sh [BUILD_FOLDER]        (default: build-gpu, made if it is not there)
#
# It has not run on a GPU yet: expect to mend it on the first. The last line is "N passed, N failed";
# the exit status is 0 when none failed, and 77 after "SKIPPED: why" where no GPU can be used. Parts:
# kernels against their references, the device contract, exactness of whole engines under small
# memories, compute-sanitizer, and last the figures, which are printed and judged by nobody.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build-gpu}
log=$(mktemp) || exit 1
first=$(mktemp) || exit 1
second=$(mktemp) || exit 1
trap 'rm -f "$log" "$first" "$second"' EXIT
passed=0
failed=0

skip() {
    echo "SKIPPED: $1"
    exit 77
}

# Arguments: name, command. What it said is shown when it failed.
try() {
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok      $name"
        passed=$((passed + 1))
    else
        echo "FAILED  $name (exit status $?): $*"
        sed 's/^/        /' "$log" | tail -n 30
        failed=$((failed + 1))
    fi
}

[ -f "$build/build.ninja" ] || meson setup "$build" -Dcuda=enabled >"$log" 2>&1 || {
    why=$(grep -m 1 ERROR "$log")
    skip "cannot be built: $why"
}
ninja -C "$build" moe-offload cuda/module/moe_cuda.so gpu_programs >"$log" 2>&1 || {
    tail -n 30 "$log"
    echo "0 passed, 1 failed (does not build)"
    exit 1
}
moe=$build/moe-offload
"$moe" devices --json >"$log" || exit 1
why=$(python3 -c '
import json, sys
gpus = json.load(sys.stdin)["gpus"]
usable = [g for g in gpus["devices"] if "why_not" not in g]
print("" if usable else gpus.get("why_none") or gpus["devices"][0]["why_not"])' <"$log") || exit 1
[ -z "$why" ] || skip "$why"
"$moe" devices

echo "== Kernels against their references"
# The tests hand ordinary memory to the kernels, which needs a driver that lets the GPU read it.
mode=$(nvidia-smi -q 2>/dev/null | sed -n 's/.*Addressing Mode *: *//p' | head -n 1)
case $mode in
HMM | ATS)
    for subject in vector attention resident_route product; do
        try "kernels: $subject" env CUDA_LAUNCH_BLOCKING=1 "$build/tests/cuda/gpu_kernels_$subject"
    done
    ;;
*) echo "not run: the GPU cannot read ordinary memory (addressing mode: ${mode:-not known})" ;;
esac

echo "== Device contract"
try "device contract" "$build/tests/cuda/gpu_device_contract"
try "contract of the KV cache" "$build/tests/cuda/gpu_kv_contract"

# Arguments: model, options. Logits of every position, bit by bit.
same_as_cpu() {
    model=$1
    shift
    "$moe" logits -m "$model" --tokens "$tokens" --device cuda -o "$second" "$@" &&
        cmp "$first" "$second"
}

# Arguments: options. A text of the demo model.
same_text() {
    set -- -m "$demo" -p "Once upon a time" -n 64 --temp 0 --ignore-eos "$@"
    "$moe" run "$@" --device cpu >"$first" && "$moe" run "$@" --device cuda >"$second" &&
        cmp "$first" "$second"
}

echo "== Engines, held to the CPU bit by bit"
tokens="1 5 9 2 17 40 3 33 21 60 11 7 5 2 19 28 35 8 41 13 6 22 31 4"
demo=examples/demo-model/moe-demo-q4.gguf
for model in tests/oracle/*/model.gguf $demo; do
    try "$model on the CPU" "$moe" logits -m "$model" --tokens "$tokens" --device cpu -o "$first"
    try "$model, all on the GPU" same_as_cpu "$model"
    # The small ones of the oracles have few experts: less than half does not hold one layer.
    shares="75% 50%"
    [ "$model" = $demo ] && shares="50% 25%"
    for share in $shares; do
        for host in off on auto; do
            try "$model, $share of the experts, host computing $host" same_as_cpu "$model" \
                --expert-cache "$share" --host-compute $host -b 7
        done
    done
    try "$model, on demand" same_as_cpu "$model" --offload on-demand
done
try "a text, all on the GPU" same_text
try "a text, a quarter of the experts on the GPU" same_text --expert-cache 25%
try "a text with speculation" same_text --expert-cache 25% --speculate ngram

echo "== compute-sanitizer"
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck synccheck initcheck; do
        try "$tool: contract of the KV cache" compute-sanitizer --tool $tool --error-exitcode 9 \
            "$build/tests/cuda/gpu_kv_contract"
        try "$tool: an engine" compute-sanitizer --tool $tool --error-exitcode 9 "$moe" \
            logits -m tests/oracle/olmoe-q8_0/model.gguf --tokens "1 2 3" --device cuda \
            --expert-cache 50% -o "$second"
    done
else
    echo "not run: compute-sanitizer is not installed"
fi

echo "== Figures (for bench/RESULTS.md: with date, commit and machine)"
try "memory, products, link" "$build/tests/cuda/bench_gpu"
cat "$log"
for share in 100% 50% 25% 10%; do
    try "demo model, $share of the experts on the GPU" "$moe" bench decode \
        -m "$demo" -p 512 -n 128 --repeat 5 --device cuda --expert-cache "$share"
    cat "$log"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
