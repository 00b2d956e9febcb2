#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts the sources that the Debian packages are built from into the new folder $1, with debian/ at
# their top, where Debian's tools look for it.
set -eu
[ $# -eq 1 ] || {
    echo "usage: debian_tree.sh FOLDER" >&2
    exit 2
}
top=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/examples" "$1/bench"
for part in runtime cache offload cpu cuda meson.build meson_options.txt LICENSE README.md; do
    cp -R "$top/$part" "$1/"
done
for part in examples bench; do
    cp "$top/$part"/*.c "$top/$part/meson.build" "$1/$part/"
done
cp -R "$top/runtime/packaging/debian" "$1/debian"
