#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the Debian packages, unpacks them into a scratch root and uses them: the command runs, its
# page and completions are there, and a program written from moe.h alone is built against header and
# library. Arguments: source folder, model; a folder of packages that are built already.
set -eu
source=$1
model=$2
for tool in dpkg-buildpackage dh dpkg-deb pkg-config; do
    command -v $tool >/dev/null || {
        echo "skipped: $tool is not installed (Debian: dpkg-dev, debhelper, pkg-config)"
        exit 77
    }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
packages=${3:-$scratch/packages}
if [ $# -lt 3 ]; then
    "$source/runtime/packaging/build_deb.sh" "$packages" >"$scratch/log" 2>&1 || {
        tail -n 40 "$scratch/log"
        exit 1
    }
fi
root=$scratch/root
status=0
fail() {
    echo "FAIL $*"
    status=1
}

for package in moe-offload moe-offload-workers libmoe-offload0 libmoe-offload-dev; do
    dpkg-deb -x "$packages/${package}"_*.deb "$root"
done
dpkg-deb -f "$packages"/libmoe-offload0_*.deb Depends | grep -q libhwloc ||
    fail "the library's package does not depend on hwloc's"
# The bill of materials: each package by its checksum, and each that the library's needs by its version.
python3 - "$packages" <<'PYTHON' || fail 'the bill of materials'
import hashlib, json, pathlib, re, subprocess, sys
folder = pathlib.Path(sys.argv[1])
bill = json.loads(next(folder.glob("moe-offload_*.spdx.json")).read_text())
listed = {package["name"]: package for package in bill["packages"]}
for deb in folder.glob("*.deb"):
    name = subprocess.check_output(["dpkg-deb", "-f", deb, "Package"], text=True).strip()
    if not name.endswith("-dbgsym"):
        assert listed[name]["checksums"][0]["checksumValue"] == hashlib.sha256(deb.read_bytes()).hexdigest()
    if name.startswith("libmoe-offload0"):
        needs = subprocess.check_output(["dpkg-deb", "-f", deb, "Depends"], text=True)
        for needed in re.findall(r"(?:^|, )([a-z0-9.+-]+)", needs):
            assert listed[needed]["versionInfo"] != "NOASSERTION", needed
PYTHON
for file in usr/bin/moe-offload usr/include/moe/moe.h usr/share/man/man1/moe-offload.1.gz \
    lib/systemd/system/moe-offload.service usr/share/bash-completion/completions/moe-offload.bash \
    usr/share/zsh/site-functions/_moe-offload \
    usr/share/fish/vendor_completions.d/moe-offload.fish; do
    [ -s "$root/$file" ] || fail "no $file"
done

[ -n "$(find "$root/usr/lib" -path '*/moe-offload/moe_ucx.so')" ] || fail "no module for workers"

PKG_CONFIG_PATH=$(dirname "$(find "$root" -name moe-offload.pc)")
export PKG_CONFIG_PATH
prefix=$root/usr
libdir=$(pkg-config --define-variable=prefix="$prefix" --variable=libdir moe-offload)
# shellcheck disable=SC2046
${CC:-cc} -std=c11 -Wall -Wextra -Werror -pedantic -O1 "$source/examples/two_sessions.c" \
    $(pkg-config --define-variable=prefix="$prefix" --cflags --libs moe-offload) -o "$scratch/two"
LD_LIBRARY_PATH=$libdir
export LD_LIBRARY_PATH
ldd "$scratch/two" | grep -q "=> $libdir/libmoe_offload.so.0" || fail 'the program links another library'

# Two sessions: the second one is cancelled after 4 tokens, the first has all that it has alone.
run() {
    "$scratch/two" "$model" "$1" "$2" "$3" 12 2>&1
}
# The first person's text, pieces joined.
text_of() {
    sed -n 's/^1: //p' | tr -d '\n'
}
together=$(run 60 'Once upon a time' 'ROMEO:') || fail "two sessions: $together"
[ "$(echo "$together" | grep -c 'cancelled after 4 tokens')" -eq 1 ] || fail "not cancelled: $together"
swapped=$(run 512 'Once upon a time' 'GREMIO:') || fail "two sessions: $swapped"
[ -n "$(echo "$together" | text_of)" ] || fail 'nothing was written'
[ "$(echo "$together" | text_of)" = "$(echo "$swapped" | text_of)" ] ||
    fail "the text depends on the budget or the other session: $together, $swapped"
refused=$(run 1 'Once' 'ROMEO:') && fail 'a budget of 1 MiB is accepted'
case $refused in *'below the least that works'*) ;; *) fail "budget of 1 MiB: $refused" ;; esac
"$root/usr/bin/moe-offload" inspect -m "$model" | grep -q 'runnable' || fail 'the command does not run'
exit $status
