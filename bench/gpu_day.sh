#!/bin/sh
# SPDX-License-Identifier: MIT
# The first hours on a machine with a GPU, as one command that is called again until nothing is left:
#
#     bench/gpu_day.sh [OPTIONS]
#
# It goes through a list of steps, what matters most first (--list prints it). Every figure, and the beginning
# and end of every step, is a line of JSON that is written as it comes, so that a call that is killed loses the
# step under way and nothing else. The next call goes on behind the steps that have ended. A step that was
# begun in three calls and ended in none counts as failed.
#
# Options:
#     --programs FOLDER   what gpu_carry.sh made (default: programs, or programs.tar.xz, above this folder)
#     --results FOLDER    gpu-day.jsonl, gpu-day.txt (the table), gpu-day.log (default: $OUT, else gpu-results)
#     --after FILE        lines of earlier calls, if they are not in the results' folder (may be repeated;
#                         gpu-results/gpu-day.jsonl above this folder is read in any case)
#     --scratch FOLDER    for models; not a file system in memory (default: /tmp)
#     --llama COMMAND     llama-bench (default: llama/llama-bench beside the programs, if it is there)
#     --time SECONDS      of this call; a step that needs more than is left is not begun (default: 480)
#     --matrix-tflops N   dense bf16 of the GPU by its datasheet (default: known for H100, H200, RTX 4090)
#     --tiny              small sizes, to see that it runs
#     --list              print the steps and end
#
# Nothing is built and nothing fetched. The last line is "N figures, N passed, N failed, N left"; the exit
# status is 0 when none failed, 77 after "SKIPPED: why" where no GPU can be used.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
programs=
results=${OUT:-gpu-results}
earlier=$root/gpu-results/gpu-day.jsonl # and others
scratch=/tmp
llama=
total_time=480
tera_flops=
tiny=false
list=false
usage() {
    sed -n '5,25s/^# \{0,1\}//p' "$0"
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --tiny) tiny=true && shift && continue ;;
    --list) list=true && shift && continue ;;
    --programs) programs=${2-} ;;
    --results) results=${2-} ;;
    --after) earlier="$earlier ${2-}" ;;
    --scratch) scratch=${2-} ;;
    --llama) llama=${2-} ;;
    --time) total_time=${2-} ;;
    --matrix-tflops) tera_flops=${2-} ;;
    *) usage ;;
    esac
    [ $# -ge 2 ] || usage
    shift 2
done

# ---- The steps: name, seconds that it takes at most, command of this script, its arguments ----

if $tiny; then
    first=tiny second=tiny tag=second n_short=40 n_long=40 depth=12 n_decode=4 repeat=1 topic=8
    suites='--models olmoe-q8_0'
else
    first=olmoe second=qwen3-30b tag=qwen3-30b n_short=512 n_long=4096,32768 depth=512 n_decode=128 repeat=3 topic=8
    suites=
fi

steps() {
    cat <<END
contract-device 60 program gpu_device_contract
contract-kv 60 program gpu_kv_contract
contract-delta 60 program gpu_delta_contract
memory 40 device memory
$first-100 90 speeds $first 100 off $n_short
$first-profile 150 profile $first
link 60 device link
kernels-vector 60 kernel vector
kernels-attention 90 kernel attention
kernels-attend-matrix 60 kernel attend_matrix
kernels-choice 60 kernel choice
kernels-route 60 kernel resident_route
kernels-product 120 kernel product
kernels-matrix 120 kernel matrix
$first-25 90 speeds $first 25 off
$first-25-host 90 speeds $first 25 auto
$first-50 90 speeds $first 50 off
$first-beside 90 beside $first 0
$first-long 120 speeds $first 100 off $n_long 0
$first-long-exact 120 speeds $first 100 off $n_long 0 exact
types 90 device types
experts 60 device experts
attention 90 device attention
attention-exact 90 device attention --exact-attention
$tag-100 150 speeds $second 100 off $n_short
$tag-25 150 speeds $second 25 off
$tag-25-host 150 speeds $second 25 auto
$tag-50 150 speeds $second 50 off
$tag-long 180 speeds $second 100 off $n_long 0
$tag-beside 150 beside $second 0
$tag-75 150 speeds $second 75 off
$tag-99 150 speeds $second 99 off
staging 60 device staging
direct 60 device direct
pinning 60 device pinning
rows 60 device rows
exactness 240 engines
sanitize-memcheck 200 sanitize memcheck
sanitize-racecheck 200 sanitize racecheck
sanitize-synccheck 200 sanitize synccheck
sanitize-initcheck 200 sanitize initcheck
END
}

if $list; then
    steps
    exit 0
fi

# Not every machine has xz.
unpack() {
    if command -v xz >/dev/null 2>&1; then
        xz -dc "$1"
    else
        python3 -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$1"
    fi
}

begin=$(date +%s)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
if [ -z "$programs" ]; then
    programs=$root/programs
    if [ ! -d "$programs" ] && [ -f "$programs.tar.xz" ]; then
        programs=$work/programs
        mkdir "$programs" && unpack "$root/programs.tar.xz" | tar -C "$programs" -xf - || exit 1
    fi
fi
[ -x "$programs/moe-offload" ] || {
    echo "there are no programs in $programs: bench/gpu_carry.sh makes them, on a machine with nvcc"
    exit 1
}
programs=$(cd "$programs" && pwd) || exit 1
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 1
LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PATH=$PATH:/usr/local/cuda/bin
export LD_LIBRARY_PATH PATH
moe=$programs/moe-offload
[ -n "$llama" ] || llama=$programs/llama/llama-bench
lines=$results/gpu-day.jsonl
log=$results/gpu-day.log
: >>"$lines"
case $scratch in /dev/shm*) usage ;; esac

# The lines of all calls.
all_lines() {
    for file in $earlier; do
        case $(readlink -f "$file") in "$(readlink -f "$lines")") continue ;; esac
        [ -f "$file" ] && cat "$file"
    done
    cat "$lines"
}

left() {
    echo $((begin + total_time - $(date +%s)))
}

# ---- Is there a GPU ----

"$moe" devices --json >"$work/devices" 2>"$work/out" || {
    cat "$work/out"
    echo "the command does not run here (its glibc must be no older than that of the machine that built it)"
    exit 1
}
why=$(sed -n '/"gpus"/,$p' "$work/devices" | awk '
    /"name":/ { n_gpus++ }
    /"why_not":"/ { n_useless++ }
    /"why_(not|none)":"/ { why = $0 }
    END {
        sub(/^[^:]*:"/, "", why)
        sub(/",?$/, "", why)
        print (n_gpus > n_useless ? "" : why == "" ? "there is no GPU" : why)
    }')
if [ -n "$why" ]; then
    echo "SKIPPED: no GPU: $why"
    exit 77
fi
gpu=$(sed -n '/"gpus"/,$s/.*"name":"\([^"]*\)".*/\1/p' "$work/devices" | head -n 1)
if [ -z "$tera_flops" ]; then
    case $gpu in
    *H100* | *H200*) tera_flops=989 ;;
    *4090*) tera_flops=165 ;;
    *) tera_flops=0 ;;
    esac
fi
echo "{\"call\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\", \"gpu\": \"$gpu\", \"tiny\": $tiny}" >>"$lines"

# ---- What a step may do. Returns 0: passed; 77: cannot be run here; else failed ----

# Runs a command of a step within the step's time. Its output goes to $work/out and the log.
try() {
    echo "== $step: $*" >>"$log"
    seconds=$(left)
    [ "$seconds" -lt "$limit" ] || seconds=$limit
    timeout -k 5 "$seconds" "$@" >"$work/out" 2>&1
    status=$?
    cat "$work/out" >>"$log"
    return $status
}

program() {
    try "$programs/$1"
}

kernel() {
    try env CUDA_LAUNCH_BLOCKING=1 "$programs/gpu_kernels_$1"
}

device() {
    part=$1
    shift
    set -- "$@" --figures "$lines" --matrix-tflops "$tera_flops"
    $tiny && set -- "$@" --quick
    try "$programs/bench_gpu" "$@" "$part"
}

# Writes the model of a shape, unless an earlier call did. A model that is written in part has no text beside it.
need_model() {
    model=$scratch/gpu-day-$1.gguf
    [ -s "$model" ] && [ -s "$model.txt" ] && return 0
    mkdir -p "$scratch" && rm -f "$model" "$model.txt"
    try "$programs/write_shape" "$1" "$model" || return
    cp "$work/out" "$model.txt"
}

# Arguments: shape, percent of the experts on the GPU, host computing, lengths of prompts, tokens to decode,
# attention: own or exact.
speeds() {
    need_model "$1" || return
    try "$programs/residency_speeds" "$model" --name "$1" --figures "$lines" --share "$2" --host "$3" \
        --prompts "${4:-}" --depth $depth --decode "${5:-$n_decode}" --repeat $repeat --topic $topic \
        --attention "${6:-own}"
}

# llama-bench, all layers on the GPU, at the depth of our decoding. Arguments: shape, layers with experts on the
# host.
beside() {
    [ -x "$llama" ] || {
        echo "llama-bench was not carried" >"$work/out"
        return 77
    }
    need_model "$1" || return
    try env "LD_LIBRARY_PATH=$(dirname "$llama"):$LD_LIBRARY_PATH" "$llama" -m "$model" -ngl 99 -fa 1 \
        -r "$repeat" -o jsonl -p 0 -n $n_decode -d $depth -ncmoe "$2" || return
    theirs=$(sed -n 's/.*"avg_ts": *\([0-9.]*\).*/\1/p' "$work/out" | tail -n 1)
    echo "{\"subject\": \"decode\", \"of\": \"$1, 100% resident, llama-bench\", \"value\": ${theirs:-0}," \
        "\"unit\": \"tokens/s\", \"depth\": $depth}" >>"$lines"
}

# Time and share of the memory's peak of each kernel of some tokens. Where ncu is missing, or may not read the
# counters, a layer's experts are timed by the host's clock.
profile() {
    need_model "$1" || return
    try ncu --clock-control none --print-units base --csv --launch-skip 1500 --launch-count 450 \
        --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed \
        "$programs/residency_speeds" "$model" --name "$1" --figures /dev/null --depth 16 --decode 16 --repeat 1 || {
        device experts
        return
    }
    awk -v shape="$1" '
        function cells(line, cell) {
            sub(/^"/, "", line)
            sub(/"$/, "", line)
            return split(line, cell, /","/)
        }
        /^"ID"/ { for (i = cells($0, cell); i > 0; i--) at[cell[i]] = i; next }
        /^"[0-9]+"/ && ("Metric Value" in at) {
            cells($0, cell)
            kernel = cell[at["Kernel Name"]]
            gsub(/["\\]/, "", kernel)
            value = cell[at["Metric Value"]]
            gsub(/,/, "", value)
            if (cell[at["Metric Name"]] ~ /time_duration/) { n[kernel]++; ns[kernel] += value }
            else { share[kernel] += value }
        }
        END {
            for (k in n)
                printf "{\"subject\": \"kernel\", \"of\": \"%s, %s\", \"value\": %.3f, \"unit\": \"us\", " \
                    "\"calls\": %d, \"roofline_share\": %.4f, \"roofline\": \"memory\"}\n", shape, k,
                    ns[k] / n[k] / 1000, n[k], share[k] / n[k] / 100
        }' "$work/out" >"$work/kernels"
    [ -s "$work/kernels" ] || return
    cat "$work/kernels" >>"$lines"
}

engines() {
    # shellcheck disable=SC2086
    try "$root/tests/cuda/gpu_suite.sh" --programs "$programs" --results "$work/suite" --time "$limit" $suites engines
}

sanitize() {
    command -v compute-sanitizer >/dev/null 2>&1 || {
        echo "compute-sanitizer is not installed" >"$work/out"
        return 77
    }
    try compute-sanitizer --tool "$1" --error-exitcode 9 "$moe" logits -m \
        "$root/tests/oracle/olmoe-q8_0/model.gguf" --tokens "1 2 3" --device cuda --expert-cache 50% \
        -o "$work/logits" &&
        try compute-sanitizer --tool "$1" --error-exitcode 9 "$programs/gpu_kv_contract"
}

# ---- Going through them ----

# Writes the end of a step. Arguments: passed, failed or not run; why.
note() {
    why=$(printf '%s' "${2:-}" | tr -d '"\\\n' | tr -c '[:print:]' ' ' | cut -c 1-200)
    seconds=$(($(date +%s) - step_begin))
    echo "{\"step\": \"$step\", \"state\": \"$1\", \"seconds\": $seconds, \"why\": \"$why\"}" >>"$lines"
}

# How often a step has this state.
count() {
    all_lines | grep -c "^{\"step\": \"$step\", \"state\": \"$1\""
}

n_left=0
steps >"$work/steps"
while read -r step limit call arguments; do
    if [ "$(count passed)" -gt 0 ] || [ "$(count failed)" -gt 0 ] || [ "$(count 'not run')" -gt 0 ]; then
        continue
    fi
    step_begin=$(date +%s)
    if [ "$(count begun)" -ge 3 ]; then
        note failed "begun three times, ended never"
        continue
    fi
    if [ "$(left)" -lt "$limit" ]; then
        n_left=$((n_left + 1))
        continue
    fi
    note begun
    # shellcheck disable=SC2086
    "$call" $arguments </dev/null
    status=$?
    case $status in
    0) note passed ;;
    77) note 'not run' "$(tail -n 1 "$work/out")" ;;
    *) note failed "exit status $status: $(tail -n 3 "$work/out")" ;;
    esac
done <"$work/steps"

# The models go when no step is left; until then they spare the next call the writing.
[ $n_left -gt 0 ] || rm -f "$scratch/gpu-day-$first.gguf"* "$scratch/gpu-day-$second.gguf"*

# ---- The table: of all calls ----

# A token's bound: what it reads of the device's memory, or what it took over the link, whichever is longer.
all_lines | awk '
    function text(key) {
        if (!match($0, "\"" key "\": \"[^\"]*\"")) return ""
        return substr($0, RSTART + length(key) + 5, RLENGTH - length(key) - 6)
    }
    function number(key) {
        if (!match($0, "\"" key "\": [-0-9.e+]+")) return 0
        return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0
    }
    /^{"step"/ {
        if (text("state") ~ /failed|not run/)
            problems = problems sprintf("%-8s %s: %s\n", text("state"), text("step"), text("why"))
        next
    }
    /^{"subject"/ {
        line = sprintf("%-10s %-52s %10.2f %-9s", text("subject"), text("of"), number("value"), text("unit"))
        if (text("subject") == "memory") memory = number("value") * 1e9
        if (text("subject") == "link" && link == 0) link = number("value") * 1e9
        if (number("roofline_share") > 0)
            line = line sprintf(" %4.0f%% of %s", 100 * number("roofline_share"), text("roofline"))
        if (/"hit_rate"/) {
            line = line sprintf(" %6.2f%% hits", 100 * number("hit_rate"))
            over = (number("bytes_moved") + number("bytes_in_place")) / number("tokens")
            slowest = memory > 0 ? number("active_bytes") / memory : 0
            if (link > 0 && over / link > slowest) slowest = over / link
            if (text("subject") == "decode" && slowest > 0)
                line = line sprintf(" %4.0f%% of memory and link", 100 * number("value") * slowest)
        }
        print line
    }
    END { printf "%s", problems }' | tee "$results/gpu-day.txt"

all_lines >"$work/all"
n_failed=$(grep -c '"state": "failed"' "$work/all")
n_figures=$(grep -c '^{"subject"' "$work/all")
n_passed=$(grep -c '"state": "passed"' "$work/all")
echo "$n_figures figures, $n_passed passed, $n_failed failed, $n_left left" | tee -a "$results/gpu-day.txt"
[ "$n_failed" -eq 0 ]
