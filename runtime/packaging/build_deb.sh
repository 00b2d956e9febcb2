#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the Debian packages of this tree into the folder $1: command, library, headers, and their
# bill of materials (sbom.py). The tree's
# top level has no debian/ folder, so the sources and runtime/packaging/debian are put together in a
# scratch folder. Needs dpkg-dev and debhelper, and what debian/control lists.
set -eu
[ $# -eq 1 ] || {
    echo "usage: build_deb.sh FOLDER" >&2
    exit 2
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" "$top/meson.build" | head -n 1)
grep -q "^moe-offload ($version)" "$top/runtime/packaging/debian/changelog" || {
    echo "build_deb: runtime/packaging/debian/changelog does not begin with version $version" >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/moe-offload-$version
"$top/runtime/packaging/debian_tree.sh" "$tree"
cd "$tree"
dpkg-buildpackage -b -us -uc
cp "$scratch"/*.deb "$out"
"$top/runtime/packaging/sbom.py" "$scratch" "$version" >"$out/moe-offload_$version.spdx.json"
