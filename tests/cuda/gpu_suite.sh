#!/bin/sh
# SPDX-License-Identifier: MIT
# Everything about the GPU that only a GPU can show, in one command:
#
#     tests/cuda/gpu_suite.sh [OPTIONS] [SECTION...]
#
# Sections, in this order when none is named (README.md says what each shows):
#     info contract kernels engines bench decode sanitizer
# Options:
#     --build FOLDER      build here (default: build-gpu, made if it is not there)
#     --pack FILE         build, put all programs and the libraries that they need into this .tar.xz
#                         (or .tar.gz, where xz may be missing), and end: for a machine that has a GPU
#                         and lacks the packages
#     --packed FILE       run the programs of such a file; nothing is built
#     --programs FOLDER   run the programs of this folder
#     --results FOLDER    a text for each section, and summary.txt (default: gpu-results)
#     --time SECONDS      of all sections together; what does not fit is not run (default: 540)
#     --section-time S    of one section, instead of its own limit
#     --test-time S       of one test; longer is a failure (default: 120)
#     --models PATTERN    of the oracles' models alone, by folder; the demo model is left out
#
# A failure in one test or section does not stop the next. The last line is "N passed, N failed, N not
# run"; the exit status is 0 when none failed, 77 after "SKIPPED: why" where no GPU can be used.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
architectures=sm_90
build=$root/build-gpu
pack=
packed=
programs=
results=gpu-results
total_time=540
section_time=
test_time=120
models=
sections=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 ;;
    --pack) pack=$2 ;;
    --packed) packed=$2 ;;
    --programs) programs=$2 ;;
    --results) results=$2 ;;
    --time) total_time=$2 ;;
    --section-time) section_time=$2 ;;
    --test-time) test_time=$2 ;;
    --models) models=$2 ;;
    info | contract | kernels | engines | bench | decode | sanitizer)
        sections="$sections $1"
        shift
        continue
        ;;
    *)
        sed -n '5,25s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    [ $# -ge 2 ] || exit 2
    shift 2
done
[ -n "$sections" ] || sections='info contract kernels engines bench decode sanitizer'

# Its tools are often installed and not found.
PATH=$PATH:/usr/local/cuda/bin
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
gpu_programs='gpu_kernels_vector gpu_kernels_attention gpu_kernels_attend_matrix gpu_kernels_choice
    gpu_kernels_resident_route gpu_kernels_product gpu_kernels_matrix gpu_device_contract gpu_kv_contract gpu_delta_contract
    gpu_streams_contract bench_gpu'

# ---- Programs ----

build_all() {
    cd "$root" || exit 1
    [ -f "$build/build.ninja" ] ||
        meson setup "$build" -Dtests=true -Dcuda=enabled "-Dgpu_archs=$architectures" >"$work/log" 2>&1 || {
        sed -n '/ERROR/,$p' "$work/log"
        echo "It cannot be built here. Install what is missing (.ci/packages test lists and installs the"
        echo "packages of Debian and Ubuntu), or build on another machine with nvcc, by"
        echo "\`tests/cuda/gpu_suite.sh --pack gpu.tar.xz\`, and run here with \`--packed gpu.tar.xz\`."
        exit 1
    }
    ninja -C "$build" moe-offload cuda/module/moe_cuda.so gpu_programs >"$work/log" 2>&1 || {
        tail -n 30 "$work/log"
        echo "0 passed, 1 failed (does not build), 0 not run"
        exit 1
    }
    programs=$work/programs
    mkdir -p "$programs/lib" || exit 1
    cp "$build/moe-offload" "$build/cuda/module/moe_cuda.so" "$programs" || exit 1
    for name in $gpu_programs; do
        cp "$build/tests/cuda/$name" "$programs" || exit 1
    done
}

# Libraries that are no part of every system with a compiler.
pack_all() {
    for file in "$programs"/*; do
        [ -f "$file" ] && { strip "$file" 2>/dev/null; ldd "$file"; }
    done | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u >"$work/libraries"
    while read -r name path; do
        case $name in
        libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libstdc++.so* | libgcc_s.so*) ;;
        *) cp -L "$path" "$programs/lib/$name" || exit 1 ;;
        esac
    done <"$work/libraries"
    case $pack in *.gz) pressed='gzip -9' ;; *) pressed='xz -9e' ;; esac
    tar -C "$programs" -cf - . | $pressed >"$pack" || exit 1
    ls -l "$pack"
}

if [ -n "$packed" ]; then
    programs=$work/programs
    mkdir -p "$programs" && tar -C "$programs" -xf "$packed" || exit 1
elif [ -z "$programs" ]; then
    build_all
fi
if [ -n "$pack" ]; then
    pack_all
    exit 0
fi
case $programs in /*) ;; *) programs=$(pwd)/$programs ;; esac
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 1
cd "$root" || exit 1
LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
moe=$programs/moe-offload

# ---- Tests ----

passed=0
failed=0
not_run=0
summary=$results/summary.txt
: >"$summary"
begin=$(date +%s)

say() {
    echo "$*" | tee -a "$summary"
}

# Seconds left to the section, and to all of them.
left() {
    now=$(date +%s)
    of_section=$((section_end - now))
    of_all=$((begin + total_time - now))
    [ "$of_section" -lt "$of_all" ] && echo "$of_section" || echo "$of_all"
}

# Arguments: name, command. What it said goes to the section's text; its end is shown when it failed.
try() {
    name=$1
    shift
    seconds=$(left)
    if [ "$seconds" -le 0 ]; then
        echo "NOT RUN $name: no time left" >>"$results/$section.txt"
        not_run=$((not_run + 1))
        return 1
    fi
    [ "$seconds" -lt "$test_time" ] || seconds=$test_time
    echo "== $name: $*" >>"$results/$section.txt"
    timeout -k 5 "$seconds" "$@" >"$work/log" 2>&1
    status=$?
    cat "$work/log" >>"$results/$section.txt"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        return 0
    fi
    if [ $status -eq 124 ] && [ "$seconds" -lt "$test_time" ]; then
        say "NOT RUN $name to its end: the time was over after $seconds s"
        not_run=$((not_run + 1))
        return 1
    fi
    [ $status -eq 124 ] && status="124: stopped after $seconds s"
    say "FAILED  $name (exit status $status): $*"
    sed 's/^/        /' "$work/log" | tail -n 12 | tee -a "$summary"
    failed=$((failed + 1))
    return 1
}

# A section begins. Arguments: name, its limit in seconds.
enter() {
    section=$1
    : >"$results/$section.txt"
    section_begin=$(date +%s)
    section_end=$((section_begin + ${section_time:-$2}))
    before="$passed $failed $not_run"
}

leave() {
    # shellcheck disable=SC2086
    set -- $before
    say "$section: $((passed - $1)) passed, $((failed - $2)) failed, $((not_run - $3)) not run," \
        "$(($(date +%s) - section_begin)) s"
}

info_section() {
    enter info 30
    try "devices" "$moe" devices
    try "devices as JSON" "$moe" devices --json
    {
        nvidia-smi -q
        nvcc --version
        compute-sanitizer --version
        lscpu
        ldd "$moe"
    } >>"$results/info.txt" 2>&1
    leave
}

contract_section() {
    enter contract 90
    try "device contract" "$programs/gpu_device_contract"
    try "contract of the KV cache" "$programs/gpu_kv_contract"
    try "contract of recurrent layers" "$programs/gpu_delta_contract"
    try "contract of residual streams" "$programs/gpu_streams_contract"
    leave
}

kernels_section() {
    enter kernels 180
    for subject in vector attention attend_matrix choice resident_route product matrix; do
        try "kernels: $subject" env CUDA_LAUNCH_BLOCKING=1 "$programs/gpu_kernels_$subject"
    done
    leave
}

tokens="1 5 9 2 17 40 3 33 21 60 11 7 5 2 19 28 35 8 41 13 6 22 31 4"
demo=$root/examples/demo-model/moe-demo-q4.gguf

# Arguments: model, name, options. The GPU's logits of every position, in $work/second.
on_gpu() {
    model=$1
    name=$2
    shift 2
    try "$name" "$moe" logits -m "$model" --tokens "$tokens" --device cuda -o "$work/second" "$@"
}

# The same arguments. Bit by bit as the CPU's in $work/first.
same_as_cpu() {
    on_gpu "$@" --exact-attention && try "$name: bits" cmp "$work/first" "$work/second"
}

# Arguments: model, name, share of the experts. Attention by matrix units, where the model has heads for it: near
# the CPU's in $work/first, and the same bits with another cache and other chunks.
own_attention() {
    on_gpu "$1" "$2, attention by matrix units" || return
    near median 2e-2 "$name: near the CPU"
    mv "$work/second" "$work/own"
    for host in off on; do
        on_gpu "$1" "$2, attention by matrix units, $3 of the experts, host computing $host" \
            --expert-cache "$3" --host-compute $host -b 7 &&
            try "$name: bits" cmp "$work/own" "$work/second"
    done
}

# Arguments: name, options. A text of the demo model.
same_text() {
    name=$1
    shift
    set -- -m "$demo" -p "Once upon a time" -n 64 --temp 0 --ignore-eos "$@"
    # shellcheck disable=SC2016
    try "$name" sh -c 'moe=$1; out=$2; shift 2
        "$moe" run "$@" --device cpu >"$out.cpu" &&
        "$moe" run "$@" --device cuda --exact-attention >"$out.gpu" &&
        cmp "$out.cpu" "$out.gpu"' sh "$moe" "$work/text" "$@"
}

# Arguments: name, fields of --json that are the CPU's, a check of the GPU's by value(), options of the
# GPU's run alone, options of both.
same_fields() {
    name=$1
    fields=$2
    check=$3
    own=$4
    shift 4
    # shellcheck disable=SC2016
    try "$name" sh -c 'moe=$1; out=$2; fields=$3; check=$4; own=$5; shift 5
        "$moe" run "$@" --device cpu --json 2>"$out.cpu" >/dev/null &&
            "$moe" run "$@" --device cuda --exact-attention $own --json 2>"$out.cuda" >/dev/null || {
            cat "$out".c*
            exit 1
        }
        cat "$out.cpu" "$out.cuda"
        value() {
            sed -n "s/.*\"$2\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$out.$1"
        }
        for key in $fields; do
            [ -n "$(value cpu $key)" ] && [ "$(value cpu $key)" = "$(value cuda $key)" ] || exit 1
        done
        eval "$check"' sh "$moe" "$work/fields" "$fields" "$check" "$own" -m "$demo" \
        -p "Once upon a time" -n 64 --temp 0 --ignore-eos "$@"
}

# Self drafts that the GPU does by itself (graphs): as many tokens drafted, and as many accepted, as on
# the CPU, whose drafts the host routes. Costs in bytes: nothing depends on when reads arrive.
drafts_alone() {
    # shellcheck disable=SC2016
    same_fields "self drafts by the GPU alone: those of the CPU" \
        "drafted accepted draft_passes tokens_xxh128" \
        '[ "$(value cuda draft_passes_recorded)" = "$(value cuda draft_passes)" ] &&
            [ "$(value cuda drafted)" -gt 0 ]' \
        "--host-compute off" --expert-cache 25% --prefetch off --speculate self --cost bytes \
        --length-control static --draft-max 4
}

# With all experts on the GPU every token is one graph, but for the first, which the prompt's pass gives.
tokens_alone() {
    # shellcheck disable=SC2016
    same_fields "tokens by the GPU alone: all of them, the text of the CPU" tokens_xxh128 \
        '[ "$(value cuda passes_recorded)" = 63 ]' "" --speculate off
}

# Close, not equal. Arguments: max or median, of the positions' greatest differences; what it may be, as a share
# of the greatest value; name. Positions at which another expert was chosen are far apart.
near() {
    if ! command -v python3 >/dev/null 2>&1; then
        say "NOT RUN $3: python3, which compares, is not installed"
        not_run=$((not_run + 1))
        return
    fi
    python3 - "$work/first" "$work/second" "$1" "$2" >"$work/near" 2>&1 <<'PYTHON'
import re, statistics, struct, sys
def rows(path):
    data = open(path, "rb").read()
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    n = int(re.search(rb"\(\d+, (\d+)\)", data[:begin])[1])
    values = struct.unpack("<%df" % ((len(data) - begin) // 4), data[begin:])
    return [values[i:i + n] for i in range(0, len(values), n)]
a, b = (rows(path) for path in sys.argv[1:3])
greatest = max(max(map(abs, row)) for row in a)
each = [max(abs(x - y) for x, y in zip(*pair)) / greatest for pair in zip(a, b)]
apart = {"max": max, "median": statistics.median}[sys.argv[3]](each)
print(sys.argv[3], "difference", apart, "of the greatest value")
sys.exit(len(a) != len(b) or not apart <= float(sys.argv[4]))
PYTHON
    try "$3" sh -c "cat '$work/near'; exit $?"
}

engines_section() {
    enter engines 240
    for model in "$root"/tests/oracle/${models:-*}/model.gguf "$demo"; do
        [ -f "$model" ] || continue
        [ "$model" = "$demo" ] && [ -n "$models" ] && continue
        short=${model#"$root"/}
        try "$short on the CPU" "$moe" logits -m "$model" --tokens "$tokens" --device cpu \
            -o "$work/first" || continue
        same_as_cpu "$model" "$short, all on the GPU"
        # The small ones of the oracles have few experts: less than half does not hold one layer.
        share=50%
        [ "$model" = "$demo" ] && share=25%
        for host in off on auto; do
            same_as_cpu "$model" "$short, $share of the experts, host computing $host" \
                --expert-cache $share --host-compute $host -b 7
        done
        same_as_cpu "$model" "$short, on demand" --offload on-demand
        case $model in
        */olmoe-q4_k/* | */qwen3moe-q4_k/* | "$demo") own_attention "$model" "$short" $share ;;
        esac
    done
    if [ -z "$models" ]; then
        same_text "a text, all on the GPU"
        same_text "a text, a quarter of the experts on the GPU" --expert-cache 25%
        same_text "a text with n-gram drafts" --expert-cache 25% --speculate ngram
        same_text "a text with self drafts" --expert-cache 25% --speculate self
        drafts_alone
        tokens_alone
    fi
    model=$root/tests/oracle/olmoe/model.gguf
    [ -f "$model" ] && try "cuBLAS: the CPU" "$moe" logits -m "$model" --tokens "$tokens" --device cpu \
        -o "$work/first" && on_gpu "$model" cuBLAS --float-gemm blas &&
        near max 1e-3 "cuBLAS: near the exact logits"
    leave
}

bench_section() {
    enter bench 120
    try "memory, products, link, direct use" "$programs/bench_gpu" && cat "$work/log"
    leave
}

decode_section() {
    enter decode 120
    for share in 100% 50% 25% 10%; do
        try "demo model, $share of the experts on the GPU" "$moe" bench decode -m "$demo" \
            -p 512 -n 128 --repeat 5 --device cuda --expert-cache "$share" && cat "$work/log"
    done
    leave
}

sanitizer_section() {
    enter sanitizer 400
    if ! command -v compute-sanitizer >/dev/null 2>&1; then
        say "compute-sanitizer is not installed"
        not_run=$((not_run + 1))
    else
        for tool in memcheck racecheck synccheck initcheck; do
            try "$tool: an engine" compute-sanitizer --tool $tool --error-exitcode 9 "$moe" \
                logits -m "$root/tests/oracle/olmoe-q8_0/model.gguf" --tokens "1 2 3" \
                --device cuda --expert-cache 50% -o "$work/second"
            try "$tool: contract of the KV cache" compute-sanitizer --tool $tool \
                --error-exitcode 9 "$programs/gpu_kv_contract"
        done
    fi
    leave
}

"$moe" devices --json >"$work/devices" 2>"$work/log" || {
    cat "$work/log"
    say "the command does not run here (a packed one needs this machine's glibc to be as new as its own)"
    say "0 passed, 1 failed, 0 not run"
    exit 1
}
# Why there is none that can be used: of a GPU, or of the machine.
why=$(sed -n '/^  "gpus"/,$p' "$work/devices" | awk '
    /"name":/ { n_gpus++ }
    /"why_not":"/ { n_useless++ }
    /"why_(not|none)":"/ { why = $0 }
    END {
        sub(/^[^:]*:"/, "", why)
        sub(/",?$/, "", why)
        print (n_gpus > n_useless ? "" : why == "" ? "there is no GPU" : why)
    }')
if [ -n "$why" ]; then
    say "SKIPPED: $why"
    exit 77
fi
for name in $sections; do
    "${name}_section"
done
say "$passed passed, $failed failed, $not_run not run"
[ "$failed" -eq 0 ]
