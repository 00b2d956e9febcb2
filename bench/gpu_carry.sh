#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a folder with everything that gpu_day.sh needs on a machine with a GPU, where nothing can be
# built or installed: programs, the libraries that they load, scripts and models.
#
#     bench/gpu_carry.sh FOLDER [--build FOLDER] [--llama FOLDER] [--most MB]
#
#     --build FOLDER   a build with nvcc (default: build-gpu, made for sm_90 if it is not there)
#     --llama FOLDER   holds llama-bench, built for CUDA, and its libraries: carried too
#     --most MB        fail if the folder is larger (default: 60)
#
# There: FOLDER/bench/gpu_day.sh, until nothing is left. The machine needs the driver, a shell, tar, xz or Python, and awk. Its glibc
# must be no older than the one here.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
folder=
build=$root/build-gpu
llama=
most=60
usage() {
    sed -n '5,13s/^# \{0,1\}//p' "$0"
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2-} ;;
    --llama) llama=${2-} ;;
    --most) most=${2-} ;;
    -*) usage ;;
    *)
        [ -z "$folder" ] || usage
        folder=$1
        shift
        continue
        ;;
    esac
    [ $# -ge 2 ] || usage
    shift 2
done
[ -n "$folder" ] || usage
[ -e "$folder" ] && {
    echo "$folder is there already; name another folder"
    exit 1
}
mkdir -p "$folder/bench" "$folder/tests/cuda" "$folder/examples/demo-model" || exit 1
folder=$(cd "$folder" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# The suite builds its programs and packs them with their libraries; ours are added.
"$root/tests/cuda/gpu_suite.sh" --build "$build" --pack "$work/suite.tar.gz" || exit 1
ninja -C "$build" bench/write_shape bench/residency_speeds >"$work/log" 2>&1 || {
    tail -n 20 "$work/log"
    exit 1
}
programs=$work/programs
mkdir "$programs" && tar -C "$programs" -xzf "$work/suite.tar.gz" || exit 1
cp "$build/bench/write_shape" "$build/bench/residency_speeds" "$programs" || exit 1
if [ -n "$llama" ]; then
    [ -x "$llama/llama-bench" ] || {
        echo "there is no llama-bench in $llama"
        exit 1
    }
    cp -RL "$llama" "$programs/llama" || exit 1
fi
find "$programs" -type f -exec strip --strip-unneeded {} \; 2>/dev/null
# The programs have most of their code in common, further apart than gzip looks.
tar -C "$programs" -cf - . | xz -9e >"$folder/programs.tar.xz" || exit 1

# Scripts and models lie as they do in the tree.
cp "$root/bench/gpu_day.sh" "$folder/bench" && cp "$root/tests/cuda/gpu_suite.sh" "$folder/tests/cuda" ||
    exit 1
for name in olmoe-q8_0 olmoe qwen3moe-q4_k deepseek2-v3 gpt-oss qwen35moe qwen3next; do
    [ -f "$root/tests/oracle/$name/model.gguf" ] || continue
    mkdir -p "$folder/tests/oracle/$name" &&
        cp "$root/tests/oracle/$name/model.gguf" "$folder/tests/oracle/$name" || exit 1
done
cp "$root/examples/demo-model/moe-demo-q4.gguf" "$folder/examples/demo-model" || exit 1

bytes=$(find "$folder" -type f -exec cat {} + | wc -c)
echo "$folder: $((bytes / 1000000)) MB in $(find "$folder" -type f | wc -l) files"
[ "$bytes" -le $((most * 1000000)) ] || {
    echo "that is more than $most MB"
    exit 1
}
