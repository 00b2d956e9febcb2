#!/bin/sh
# SPDX-License-Identifier: MIT
# What nvcc makes of the kernels' arithmetic, by its portable code: arguments are the compiler, the
# tree, the folder of the module's objects, and the flags that kernels are compiled with. Objects that
# hold portable code in plain text are read; sources of the others are compiled once more.
#
# The flags must keep a product and a sum apart, and no kernel may approximate, flush subnormals to
# zero (in single precision: doubles are the buddies' entropies alone), or leave the compiler free to
# give a block's threads more registers than there are.
set -u
nvcc=$1
root=$2
objects=$3
shift 3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

# Arguments: flags, source, -o, output.
compile() {
    "$nvcc" "$@" -arch=compute_80 -ptx -I "$root" -I "$root/runtime/include" || exit 1
}

tell() {
    echo "FAILED: $1"
    failed=1
}

cat >"$work/probe.cu" <<'CUDA'
__global__ void probe(const float *x, float *y)
{
    y[0] = x[0] * x[1] + x[2];
    y[1] = x[3] / x[4];
}
CUDA
compile "$@" "$work/probe.cu" -o "$work/probe.txt"
grep -q 'fma\.' "$work/probe.txt" && tell "the flags let the compiler contract a product and a sum"
grep -q 'mul\.rn\.f32\|mul\.f32' "$work/probe.txt" || tell "no product in the probe"
grep -q 'div\.rn\.f32' "$work/probe.txt" || tell "a division is not rounded"

for source in "$root"/cuda/kernels/*.cu; do
    name=$(basename "$source" .cu)
    # Lines of the portable code are printable; what is around them need not be.
    LC_ALL=C tr -c '[:print:]\t\n' '\n' <"$objects/$name.cu.o" >"$work/$name.txt" 2>/dev/null
    grep -q '^\.visible \.entry' "$work/$name.txt" || compile "$@" "$source" -o "$work/$name.txt"
    if grep -n '\.approx.*\.f32\|\.ftz.*\.f32\|\.full\.f32' "$work/$name.txt"; then
        tell "$name: approximated or flushed"
    fi
    entries=$(grep -c '^\.visible \.entry' "$work/$name.txt")
    bounded=$(grep -c '^\.maxntid' "$work/$name.txt")
    [ "$entries" -eq "$bounded" ] ||
        tell "$name: $((entries - bounded)) kernels without __launch_bounds__"
done
exit $failed
