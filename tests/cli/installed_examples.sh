#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the build into a scratch folder and uses it as a stranger would: headers and libraries
# found through pkg-config alone, the examples built as C11 (against the shared and the static
# library), the headers read by a C++ compiler, the command and its manual page in their places.
# Arguments: build folder, source folder, model.
set -eu
build=$1
source=$2
model=$3
cc=${CC:-cc}
cxx=${CXX:-c++}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
status=0

# A library with a sanitizer in it needs a program with the same one.
sanitize=$(meson introspect --buildoptions "$build" |
    sed -n 's/.*"name": "b_sanitize", "value": "\([a-z,]*\)".*/\1/p')
[ "${sanitize:-none}" = none ] || { echo "a sanitizer build is not installed"; exit 77; }

DESTDIR=$root meson install -C "$build" --no-rebuild --quiet
pc=$(find "$root" -name moe-offload.pc)
[ -n "$pc" ] || { echo "no moe-offload.pc was installed"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
prefix=$root$(pkg-config --variable=prefix moe-offload)
config() {
    pkg-config --define-variable=prefix="$prefix" "$@" moe-offload
}
LD_LIBRARY_PATH=$(config --variable=libdir)
export LD_LIBRARY_PATH

# Arguments: words that the output must have, then the program and its arguments.
expect() {
    words=$1
    shift
    output=$("$@" 2>&1) || {
        echo "$* failed: $output"
        status=1
        return 0
    }
    case $output in
    *"$words"*) ;;
    *)
        echo "$*: no '$words' in: $output"
        status=1
        ;;
    esac
}

for example in stream batch cancel embeddings progress two_sessions; do
    # shellcheck disable=SC2046
    $cc -std=c11 -Wall -Wextra -Werror -pedantic -O1 "$source/examples/$example.c" \
        $(config --cflags --libs) -o "$root/$example"
    # The static library with the shared ones of the packages that it names.
    # shellcheck disable=SC2046
    $cc -std=c11 -O1 "$source/examples/$example.c" \
        $(config --cflags --libs | sed 's/-lmoe_offload/-l:libmoe_offload.a/') \
        $(pkg-config --libs $(config --print-requires-private)) -lm -pthread \
        -o "$root/$example-static"
done
for kind in '' -static; do
    expect '' "$root/stream$kind" "$model" 'Once upon' 8
    expect 'Once|' "$root/batch$kind" "$model" 'Once' 'There was' 'A'
    expect 'cancelled after' "$root/cancel$kind" "$model" 'Once upon' 50
    expect '0.' "$root/embeddings$kind" "$model" 'A dog' 'A cat' 'Once upon a time'
    expect 'experts' "$root/progress$kind" "$model"
    expect 'given up' "$root/progress$kind" "$model" 0
    expect 'cancelled after 4 tokens' "$root/two_sessions$kind" "$model" 512 'Once' 'There was'
done
# Two sessions under a budget: what the first person reads, pieces joined, is the same beside another
# one, with another budget; each piece is a line of its own; a budget that is too small is refused.
first_person() {
    "$root/two_sessions" "$model" "$1" 'Once' "$2" 12 | sed -n 's/^1: //p' | tr -d '\n'
}
pieces=$("$root/two_sessions" "$model" 512 'Once' 'There was' 12 | grep -c '^1: ')
[ "$pieces" -ge 4 ] || { echo "two_sessions: $pieces pieces, no stream"; status=1; }
beside_one=$(first_person 512 'There was')
beside_other=$(first_person 256 'A')
if [ -z "$beside_one" ] || [ "$beside_one" != "$beside_other" ]; then
    echo "two_sessions: '$beside_one' is not '$beside_other'"
    status=1
fi
if refused=$("$root/two_sessions" "$model" 1 'Once' 'There was' 2>&1); then
    echo "two_sessions: a budget of 1 MiB is accepted"
    status=1
fi
case $refused in
*'memory budget of 1 MiB is below the least that works'*) ;;
*)
    echo "two_sessions: no budget in: $refused"
    status=1
    ;;
esac
# Nothing but moe.h is needed for that.
[ "$(grep '#include <moe/' "$source/examples/two_sessions.c")" = '#include <moe/moe.h>' ] ||
    { echo "two_sessions.c includes more than moe.h"; status=1; }

# A batch does not change what a prompt is continued with.
together=$("$root/batch" "$model" 'Once' 'There was' | head -n 1)
alone=$("$root/batch" "$model" 'Once' | head -n 1)
[ "$together" = "$alone" ] || { echo "batch: '$together' is not '$alone'"; status=1; }

# A cache policy as a plug-in needs the header alone.
# shellcheck disable=SC2046
$cc -std=c11 -Wall -Wextra -Werror -pedantic -O1 -shared -fPIC "$source/examples/policy_plugin.c" \
    $(config --cflags) -o "$root/clock.so"
expect 'clock.so' "$prefix/bin/moe-offload" simulate --synthetic olmoe -n 9 --policy "$root/clock.so"

for header in "$prefix"/include/moe/*.h; do
    printf '#include <moe/%s>\nint main() { return 0; }\n' "${header##*/}" >"$root/header.cc"
    # shellcheck disable=SC2046
    $cxx -std=c++17 -Wall -Wextra -Werror -pedantic -fsyntax-only $(config --cflags) \
        "$root/header.cc" || status=1
done

expect 'moe-offload' "$prefix/bin/moe-offload" --version
[ -n "$(find "$prefix" -name 'moe-offload.1*')" ] || { echo "no manual page"; status=1; }
exit $status
