#!/bin/sh
# SPDX-License-Identifier: MIT
# ./demo goes through with a command that is built already, and answers what the README quotes of it.
# Arguments: the command, the tree.
set -u
moe=$(realpath "$1")
tree=$(realpath "$2")
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# A tree with nothing to install and nothing to build.
mkdir -p "$work/.ci" "$work/build" "$work/bin"
cp "$tree/demo" "$work/demo"
ln -s "$tree/examples" "$work/examples"
ln -s "$moe" "$work/build/moe-offload"
: >"$work/build/build.ninja"
printf '#!/bin/sh\n' >"$work/.ci/packages"
printf '#!/bin/sh\necho "ninja was given $*"\n' >"$work/bin/ninja"
chmod +x "$work/.ci/packages" "$work/bin/ninja"

# On a terminal, if that can be had, ninja counts the files.
quiet='--quiet '
PATH=$work/bin:$PATH
if command -v script >/dev/null; then
    quiet=
    SHELL=/bin/sh script -qec "'$work/demo'" /dev/null </dev/null >"$work/seen" 2>"$work/err" || fail "status $?: $(cat "$work/seen")"
    tr -d '\r' <"$work/seen" >"$work/out"
else
    "$work/demo" >"$work/out" 2>"$work/err" || fail "status $?: $(cat "$work/err")"
fi
for heading in '1. Packages' '2. Build' '3. A question' '4. A continuation' '5. Speed'; do
    grep -q "^$heading" "$work/out" || fail "'$heading' is not in what it prints"
done
grep -Fxq "ninja was given -C build ${quiet}moe-offload" "$work/out" || fail "the counter of ninja: $(grep ninja "$work/out")"
grep -Eq '^decode +64 +[0-9]' "$work/out" || fail "no speed of decoding"
grep -Eq '[0-9a-f]{32}' "$work/out" && fail 'a fingerprint'
# The question and its answer: from the line that begins with "> " to the README's "...".
sed -n '/^> Anna/,/^\.\.\.$/p' "$tree/README.md" | sed '$d' >"$work/quoted"
[ "$(wc -l <"$work/quoted")" -ge 3 ] || fail "the README quotes no answer"
while IFS= read -r line; do
    grep -Fxq -- "$line" "$work/out" || fail "the README quotes '$line', which ./demo does not print"
done <"$work/quoted"

[ "$failed" -eq 0 ] && echo "./demo prints what the README says"
exit "$failed"
