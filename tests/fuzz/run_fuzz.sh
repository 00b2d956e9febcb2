#!/bin/sh
# SPDX-License-Identifier: MIT
# Fuzzes every target with libFuzzer, two side by side, and tells what came of it:
#
#     tests/fuzz/run_fuzz.sh [--keep] MINUTES [TARGET...]
#
# Builds build-fuzz (clang; address and undefined-behaviour sanitizers), gives each target an equal
# share of MINUTES on two cores, starts from the corpora in the tree and what earlier runs found
# (build-fuzz/corpus), and reduces what was found to the inputs that cover something of their own
# (build-fuzz/minimised). With --keep, small ones of those replace the corpora of the tree, but for
# files named case-*: inputs that once failed. The
# table: executions since build-fuzz/totals was begun, their speed in this run, edges covered of
# those that the target's program has, files and bytes of the minimised corpus, findings (inputs that
# crash, leak, hang or break a promise; they lie in build-fuzz/findings). The exit status is 1 when
# there are any.
set -u
cd "$(dirname "$0")/../.." || exit 1
keep=false
[ "${1:-}" = --keep ] && keep=true && shift
minutes=${1:-}
case $minutes in '' | *[!0-9]*)
    echo "usage: tests/fuzz/run_fuzz.sh [--keep] MINUTES [TARGET...]" >&2
    exit 2
    ;;
esac
shift
[ $# -gt 0 ] || set -- chat gguf options session sidecar split template tokenizer trace words

build=build-fuzz
if [ ! -f $build/build.ninja ]; then
    CC=clang CXX=clang++ meson setup $build --werror -Dtests=true -Dfuzzers=true \
        -Db_lundef=false -Ddebug=true -Doptimization=1 >/dev/null || exit 1
fi
ninja -C $build fuzz_targets >$build/build.log 2>&1 || {
    cat $build/build.log
    exit 1
}
seconds=$((minutes * 60 * 2 / $#))
[ $seconds -gt 0 ] || seconds=1
mkdir -p $build/totals $build/findings $build/logs
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1

# Runs a target. Argument: its name.
fuzz() {
    name=$1
    program=$build/tests/fuzz/fuzz_$name
    found=$build/corpus/$name
    minimised=$build/minimised/$name
    log=$build/logs/$name
    rm -rf "$minimised"
    mkdir -p "$found" "$minimised"
    "$program" -max_total_time=$seconds -timeout=60 -report_slow_units=60 -max_len=16384 \
        -rss_limit_mb=2048 -print_final_stats=1 -dict="tests/fuzz/dictionaries/$name.dict" \
        -artifact_prefix="$build/findings/$name-" "$found" "tests/fuzz/corpus-$name" \
        >"$log" 2>&1
    sed -n 's/^stat::number_of_executed_units: //p' "$log" >>"$build/totals/$name"
    # Smallest inputs first, each kept for the edges that no input before it has.
    "$program" -merge=1 -use_counters=0 -max_len=16384 "$minimised" "tests/fuzz/corpus-$name" \
        "$found" >"$log.merge" 2>&1
}

# Replaces the tree's corpus of a target by the minimised one: files of up to 8 KiB, 100 KiB in all.
keep_corpus() {
    find "tests/fuzz/corpus-$1" -type f ! -name 'case-*' -delete
    room=102400
    for input in $(ls -Sr "$build/minimised/$1"); do
        size=$(stat -c %s "$build/minimised/$1/$input")
        [ "$size" -le 8192 ] && [ "$size" -le $room ] || continue
        cp "$build/minimised/$1/$input" "tests/fuzz/corpus-$1/$(echo "$input" | cut -c1-12)"
        room=$((room - size))
    done
}

tell() {
    log=$build/logs/$1
    executions=$(awk '{sum += $1} END {printf "%d", sum}' "$build/totals/$1")
    speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    of=$(sed -n 's/.*(\([0-9]*\) inline 8-bit counters).*/\1/p' "$log")
    files=$(ls "$build/minimised/$1" | wc -l)
    bytes=$(cat "$build/minimised/$1"/* 2>/dev/null | wc -c)
    findings=$(ls "$build/findings" | grep -c "^$1-")
    printf '| %-9s | %11s | %12s | %6s of %6s | %5s | %7s | %8s |\n' "$1" "$executions" \
        "${speed:-?}" "${edges:-?}" "${of:-?}" "$files" "$bytes" "$findings"
}

# Two queues: the first, third, ... target and the second, fourth, ...
queue() {
    turn=$1
    shift
    for target in "$@"; do
        [ "$turn" = 0 ] && fuzz "$target"
        turn=$((1 - turn))
    done
}
queue 0 "$@" &
queue 1 "$@" &
wait

echo '| target    |  executions | executions/s | edges            | files |   bytes | findings |'
echo '|-----------|-------------|--------------|------------------|-------|---------|----------|'
for target in "$@"; do
    $keep && keep_corpus "$target"
    tell "$target"
done
cat $build/totals/* | awk '{sum += $1} END {printf "%d executions in all\n", sum}'
[ -z "$(ls $build/findings)" ]
