#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares the range reader with fio, which is what the device can do: the same block size, depth,
# registered huge-page buffers and O_DIRECT, runs interleaved. Prints every pair and the medians.
# The first run of each is thrown away. Of fio only reads at random multiples of the block are
# asked; ours are ranges of 1 to 6 MiB at any offset, cut into blocks.
# Runs are short, since shared disks are throttled after some seconds of full speed: look at the pairs
# before you believe the medians.
#   io_vs_fio.sh BENCH_IO FILE [PAIRS [BLOCK_BYTES [DEPTH [BYTES_A_RUN]]]]
set -u
bench=${1:?the bench_io program}
file=${2:?a file of at least 4 GiB}
pairs=${3:-5}
block=${4:-1048576}
depth=${5:-16}
bytes=${6:-1073741824}
command -v fio >/dev/null || {
    echo "fio is not installed: only our own figure" >&2
    exec "$bench" -m "$file" --block "$block" --depth "$depth" --bytes "$bytes"
}

# Each prints "GB/s CPU-seconds-per-GB".
run_fio() {
    # malloc() of that size asks for huge pages.
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=read --filename="$file" --readonly \
        --rw=randread --direct=1 --ioengine=io_uring --fixedbufs=1 --registerfiles=1 \
        --bs="$block" --iodepth="$depth" --io_size="$bytes" --randseed="$1" \
        --norandommap --output-format=json |
        python3 -c '
import json, sys
job = json.load(sys.stdin)["jobs"][0]
seconds = job["job_runtime"] / 1000
gb = job["read"]["io_bytes"] / 1e9
print("%.4f %.5f" % (gb / seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / gb))'
}

run_ours() {
    "$bench" -m "$file" --io uring --block "$block" --depth "$depth" --bytes "$bytes" \
        --seed "$1" --json |
        python3 -c '
import json, sys
r = json.load(sys.stdin)
print("%.4f %.5f" % (r["gb_per_s"], r["cpu_s_per_gb"]))'
}

echo "block $block, depth $depth, $bytes bytes a run: fio GB/s, CPU-s/GB; ours GB/s, CPU-s/GB; ratio"
pair=0
while [ "$pair" -le "$pairs" ]; do
    if [ $((pair % 2)) -eq 0 ]; then
        theirs=$(run_fio "$pair") && ours=$(run_ours "$pair") || exit 1
    else
        ours=$(run_ours "$pair") && theirs=$(run_fio "$pair") || exit 1
    fi
    [ "$pair" -gt 0 ] && echo "$theirs $ours"
    pair=$((pair + 1))
done | python3 -c '
import statistics, sys
rows = []
for line in sys.stdin:
    row = [float(word) for word in line.split()]
    rows.append(row + [row[2] / row[0]])
    print("%7.3f %8.4f   %7.3f %8.4f   %6.3f" % tuple(rows[-1]), flush=True)
print("medians:")
print("%7.3f %8.4f   %7.3f %8.4f   %6.3f" % tuple(statistics.median(c) for c in zip(*rows)))'
