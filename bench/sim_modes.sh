#!/bin/sh
# SPDX-License-Identifier: MIT
# Offload modes on a simulated device, in turn, several times: medians of decode speed, and bytes over
# the link for a token. Arguments: the command, a model, [link], [repetitions], [calibration].
# A paper's ratio of link to device memory (64 GB/s : 3.35 TB/s = 1 : 52) is what the default link
# gives for the demo model, whose experts take about 4 us each on two cores and 98 KiB on the link.
# All figures are simulated: transfers take the model's time, arithmetic is this machine's.
set -eu
moe=$1
model=$2
link=${3:-500MB/s}
repetitions=${4:-5}
calibration=${5:-none}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
device="sim:memory=2G,link=$link,latency=10us"

field() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$2"; }

# Arguments: name, further options.
measure() {
    name=$1
    shift
    "$moe" run -m "$model" -p 'Natalia sold clips to 48 of her friends in April, and then' -n 96 \
        --temp 0 --ignore-eos -c 256 --json --device "$device" "$@" 2>"$work/json" >/dev/null
    tr ',' '\n' <"$work/json" >"$work/lines"
    field decode_tokens_per_s "$work/lines" >>"$work/$name.speed"
    field bytes_moved_link "$work/lines" >"$work/$name.bytes"
    sed -n 's/.*"tokens_xxh128": *"\([0-9a-f]*\)".*/\1/p' "$work/lines" >>"$work/hashes"
}

i=0
while [ "$i" -lt "$repetitions" ]; do
    measure on-demand --offload on-demand
    measure overlap --offload overlap
    [ "$calibration" = none ] || measure caching --offload caching --calibration "$calibration"
    measure auto-moves --expert-cache 10% --host-compute off
    measure auto --expert-cache 10%
    measure auto-25 --expert-cache 25%
    i=$((i + 1))
done

echo "simulated: $device, $model, $repetitions repetitions in turn"
for name in on-demand overlap caching auto-moves auto auto-25; do
    [ -f "$work/$name.speed" ] || continue
    sort -n "$work/$name.speed" | awk -v name="$name" -v bytes="$(cat "$work/$name.bytes")" '
        { v[NR] = $1 }
        END { printf "%-12s median %8.1f tokens/s (%.1f to %.1f), %.2f MiB a token over the link\n",
              name, v[int((NR + 1) / 2)], v[1], v[NR], bytes / 96 / 1048576 }'
done
[ "$(sort -u "$work/hashes" | wc -l)" -eq 1 ] || { echo "the tokens differ between modes"; exit 1; }
echo "the tokens are the same in every run"
