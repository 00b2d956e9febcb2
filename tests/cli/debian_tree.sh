#!/bin/sh
# SPDX-License-Identifier: MIT
# What goes into the Debian packages has all that its build asks for: meson configures it. The
# packages themselves are built by debian_package.sh, at night. Argument: source folder.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1/runtime/packaging/debian_tree.sh" "$scratch/tree"
[ -x "$scratch/tree/debian/rules" ] || {
    echo "FAIL no debian/rules"
    exit 1
}
meson setup "$scratch/build" "$scratch/tree" >"$scratch/log" 2>&1 || {
    echo "FAIL meson does not configure what the packages are built from:"
    tail -n 15 "$scratch/log"
    exit 1
}
echo "all held"
