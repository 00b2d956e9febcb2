#!/bin/sh
# SPDX-License-Identifier: MIT
# The first thirty minutes on a machine with a GPU, as three commands of at most nine minutes each:
#
#     bench/gpu_day.sh 1|2|3 [OPTIONS]
#
#     1   device contract, kernels against the reference, the device's speeds, compute-sanitizer
#     2   engines' exactness, then a model of the OLMoE shape, written there: decoding by residency,
#         prompts by length, llama-bench in turn on the same file
#     3   the same speeds for the shape of Qwen3-30B-A3B, and a profile where ncu is installed
#
# Options:
#     --programs FOLDER   what gpu_carry.sh made (default: programs, or programs.tar.xz, above this folder)
#     --results FOLDER    dayN.json, dayN.txt (the table) and dayN-log.txt (default: gpu-results)
#     --scratch FOLDER    for the model (default: /dev/shm if it has room, else /tmp)
#     --llama COMMAND     llama-bench (default: llama/llama-bench beside the programs, if it is there)
#     --time SECONDS      of all together; what does not fit is not run (default: 530)
#     --gpus NAME=TFLOPS  dense bf16 of the GPU by its datasheet (default: known for H100, H200, RTX 4090)
#     --tiny              small sizes, to see that it runs
#
# Nothing is built and nothing fetched. The last line is "N figures, N passed, N failed, N not run"; the
# exit status is 0 when none failed, 77 after "SKIPPED: why" where no GPU can be used.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
day=
programs=
results='gpu-results'
scratch=
llama=
total_time=530
tera_flops=
tiny=false
usage() {
    sed -n '5,23s/^# \{0,1\}//p' "$0"
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    1 | 2 | 3) day=$1 && shift && continue ;;
    --tiny) tiny=true && shift && continue ;;
    --programs) programs=${2-} ;;
    --results) results=${2-} ;;
    --scratch) scratch=${2-} ;;
    --llama) llama=${2-} ;;
    --time) total_time=${2-} ;;
    --gpus) tera_flops=${2-} && tera_flops=${tera_flops#*=} ;;
    *) usage ;;
    esac
    [ $# -ge 2 ] || usage
    shift 2
done
[ -n "$day" ] || usage
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
model=
trap 'rm -rf "$work" ${model:+"$model"}' EXIT
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
log=$results/day$day-log.txt
table=$results/day$day.txt
figures=$work/figures
: >"$log"
: >"$table"
: >"$figures"
passed=0
failed=0
not_run=0

say() {
    echo "$*" | tee -a "$table"
}

left() {
    echo $((begin + total_time - $(date +%s)))
}

# ---- Is there a GPU ----

"$moe" devices --json >"$work/devices" 2>"$work/out" || {
    cat "$work/out"
    say "the command does not run here (its glibc must be no older than that of the machine that built it)"
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
    say "SKIPPED: no GPU: $why"
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
say "day $day on $gpu, $(date -u +%Y-%m-%dT%H:%M:%SZ)"

# ---- Running ----

# Arguments: most seconds, name, command. What it says is in $work/out and in the log.
try() {
    limit=$1
    name=$2
    shift 2
    seconds=$(left)
    if [ "$seconds" -lt 3 ]; then
        say "NOT RUN $name: no time left"
        not_run=$((not_run + 1))
        return 1
    fi
    [ "$seconds" -lt "$limit" ] && limit=$seconds
    echo "== $name: $*" >>"$log"
    timeout -k 5 "$limit" "$@" >"$work/out" 2>&1
    status=$?
    cat "$work/out" >>"$log"
    [ $status -eq 0 ] && passed=$((passed + 1)) && return 0
    [ $status -eq 124 ] && status="124: stopped after $limit s"
    say "FAILED  $name (exit status $status)"
    tail -n 6 "$work/out" | sed 's/^/        /' | tee -a "$table"
    failed=$((failed + 1))
    return 1
}

# Sections of gpu_suite.sh. Arguments: seconds, sections and options.
suite() {
    seconds=$(left)
    [ "$seconds" -lt "$1" ] || seconds=$1
    shift
    if [ "$seconds" -lt 3 ]; then
        say "NOT RUN $*: no time left"
        not_run=$((not_run + 1))
        return
    fi
    "$root/tests/cuda/gpu_suite.sh" --programs "$programs" --results "$work/suite" \
        --time "$seconds" "$@" >"$work/out" 2>&1
    cat "$work"/suite/*.txt >>"$log"
    tee -a "$table" <"$work/suite/summary.txt"
    counts=$(tail -n 1 "$work/suite/summary.txt" | tr -dc '0-9 ')
    # shellcheck disable=SC2086
    set -- $counts
    if [ $# -ne 3 ]; then
        failed=$((failed + 1))
        return
    fi
    passed=$((passed + $1))
    failed=$((failed + $2))
    not_run=$((not_run + $3))
}

# One part of bench_gpu. Arguments: seconds, part.
device_figures() {
    set -- "$1" "$2" --figures "$figures" --matrix-tflops "$tera_flops"
    $tiny && set -- "$@" --quick
    limit=$1
    part=$2
    shift 2
    try "$limit" "$part" "$programs/bench_gpu" "$@" "$part"
    grep -v '^memory  ' "$work/out" | tee -a "$table"
}

# Arguments: subject, case, value, unit, the best that the machine allows or 0, what that is, the other
# engine's value or 0.
figure() {
    awk -v subject="$1" -v of="$2" -v value="$3" -v unit="$4" -v bound="$5" -v bound_of="$6" \
        -v other="$7" -v json="$figures" 'BEGIN {
        line = sprintf("%-12s %-46s %10.2f %-8s", subject, of, value, unit)
        text = sprintf("{\"subject\": \"%s\", \"of\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"",
            subject, of, value, unit)
        if (bound > 0) {
            line = line sprintf(" %4.0f%% of %s", 100 * value / bound, bound_of)
            text = text sprintf(", \"roofline_share\": %.4f, \"roofline\": \"%s\"", value / bound, bound_of)
        }
        if (other > 0) {
            line = line sprintf(" %5.2f times llama-bench", value / other)
            text = text sprintf(", \"ratio\": %.4f, \"ratio_to\": \"llama-bench\"", value / other)
        }
        print line
        print text "}" >>json
    }' | tee -a "$table"
}

# The value of the first figure of this subject whose case begins so, or 0.
measured() {
    awk -v start="{\"subject\": \"$1\", \"of\": \"$2" '
        index($0, start) == 1 { sub(/.*"value": /, ""); sub(/,.*/, ""); value = $0; exit }
        END { print value == "" ? 0 : value }' "$figures"
}

# ---- Models of true shapes ----

# Arguments: shape, its bytes in GB.
write_model() {
    if [ -z "$scratch" ]; then
        room=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($4 / 1e6) }')
        scratch=/tmp
        [ "${room:-0}" -gt $(($2 * 2)) ] && scratch=/dev/shm
    fi
    model=$scratch/gpu-day-$$.gguf
    try 120 "writing the shape $1 to $scratch" "$programs/write_shape" "$1" "$model" || return 1
    active=$(awk '$1 == "active" { print $2 }' "$work/out")
    active_experts=$(awk '$1 == "active" { sub(/,/, "", $6); print $6 }' "$work/out")
    layers=$(awk '$1 == "active" { print $8 }' "$work/out")
    memory_speed=$(measured memory 'copies')
    link_speed=$(measured link 'pieces of')
}

# tokens_per_s_median of a test of `bench decode --json`.
median_of() {
    awk -v test="\"test\": \"$1\"" '(at = index($0, test)) {
        rest = substr($0, at)
        sub(/.*"tokens_per_s_median": /, "", rest)
        sub(/,.*/, "", rest)
        print rest
        exit
    }' "$work/one_test"
}

# Splits the results at tests, so that each line holds one.
ours() {
    name=$1
    shift
    try "$case_time" "$name" "$moe" bench decode -m "$model" --device cuda --json "$@" || return 1
    sed 's/{ "test"/\
{ "test"/g' "$work/out" >"$work/one_test"
}

# llama-bench in a fresh process: tokens a second in $theirs, 0 if it is not there or fails. Arguments: its
# options.
other() {
    theirs=0
    [ -x "$llama" ] || return
    try "$case_time" "llama-bench $*" env "LD_LIBRARY_PATH=$(dirname "$llama"):$LD_LIBRARY_PATH" \
        "$llama" -m "$model" -ngl 99 -fa 1 -r "$repeat" -o jsonl "$@" || return
    theirs=$(sed -n 's/.*"avg_ts": *\([0-9.]*\).*/\1/p' "$work/out" | tail -n 1)
    theirs=${theirs:-0}
}

# Tokens a second that memory and link allow. A token's missing experts pass the link beside what is
# read of the device's memory. Argument: percent of the experts that are resident.
decode_bound() {
    awk -v active="$active" -v experts="$active_experts" -v share="$1" -v memory="$memory_speed" \
        -v link="$link_speed" 'BEGIN {
        if (memory <= 0 || (share < 100 && link <= 0)) { print 0; exit }
        on_device = active / (memory * 1e9)
        over_link = share < 100 ? experts * (100 - share) / 100 / (link * 1e9) : 0
        printf "%.6g", 1 / (on_device > over_link ? on_device : over_link)
    }'
}

# Decoding with a share of the experts on the GPU. Argument: percent.
decode_at() {
    on_host=$(awk -v n="$layers" -v share="$1" 'BEGIN { printf "%d", n * (100 - share) / 100 + 0.5 }')
    other -p 0 -n "$n_decode" -ncmoe "$on_host"
    for host in off auto; do
        [ "$1" -eq 100 ] && [ $host = auto ] && continue
        ours "$shape decode $1% host $host" -p "$n_short" -n "$n_decode" --repeat "$repeat" \
            --expert-cache "$1%" --host-compute $host || continue
        bound=0
        [ $host = off ] && bound=$(decode_bound "$1")
        figure decode "$shape, $1% resident, host computing $host" "$(median_of decode)" tokens/s \
            "$bound" "memory and link" "$theirs"
    done
}

# A prompt with all experts on the GPU. Arguments: tokens.
prompt_of() {
    other -p "$1" -n 0
    ours "$shape prompt $1" -p "$1" -n 0 --repeat "$repeat" --expert-cache 100% || return
    figure prompt "$shape, $1 tokens" "$(median_of prompt)" tokens/s 0 '' "$theirs"
}

speeds() {
    shape=$1
    write_model "$1" "$2" || return
    for share in $shares; do
        decode_at "$share"
    done
    for n in $prompts; do
        prompt_of "$n"
    done
    # Once more what counts most: all of this shares a machine with others.
    decode_at 100
    decode_at 25
}

profile() {
    command -v ncu >/dev/null 2>&1 || {
        say "NOT RUN profile: ncu is not installed"
        not_run=$((not_run + 1))
        return
    }
    try 120 profile ncu --clock-control none --launch-skip 2000 --launch-count 400 --csv \
        --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed \
        "$moe" bench decode -m "$model" --device cuda -p 16 -n 16 --repeat 1 --expert-cache 100% || return
    # Time of each kernel, and its share of the memory's peak.
    awk -F'","' '/gpu__time_duration/ { n[$5]++; time[$5] += $NF }
        /dram__throughput/ { share[$5] += $NF }
        END { for (k in n) printf "%-60.60s %6d calls %10.2f us %5.1f%% of memory\n", k, n[k],
            time[k] / n[k] / 1000, share[k] / n[k] }' "$work/out" | sort | tee -a "$table"
}

# ---- The days ----

if $tiny; then
    small_models='--models olmoe-q8_0'
    shares='100 50'
    prompts=40
    n_short=12
    n_decode=8
    repeat=1
    case_time=60
    first=tiny
    second=tiny
else
    small_models=
    shares='100 99 75 50 25'
    prompts='512 4096 32768'
    n_short=512
    n_decode=128
    repeat=3
    case_time=45
    first=olmoe
    second=qwen3-30b
fi

case $day in
1)
    # shellcheck disable=SC2086
    suite 200 info contract kernels $small_models
    for part in types link staging attention experts pinning rows direct; do
        device_figures 60 $part
    done
    suite 400 sanitizer
    ;;
2)
    # shellcheck disable=SC2086
    suite 200 engines $small_models
    device_figures 60 link >/dev/null
    speeds $first 4
    ;;
3)
    device_figures 60 link >/dev/null
    speeds $second 17
    profile
    ;;
esac

n_figures=$(wc -l <"$figures")
verdict="$((n_figures)) figures, $passed passed, $failed failed, $not_run not run"
{
    echo "{\"day\": $day, \"gpu\": \"$gpu\", \"tiny\": $tiny, \"seconds\": $(($(date +%s) - begin)),"
    echo " \"passed\": $passed, \"failed\": $failed, \"not_run\": $not_run, \"figures\": ["
    sed '$!s/$/,/' "$figures"
    echo "]}"
} >"$results/day$day.json"
say "$verdict"
[ $failed -eq 0 ]
