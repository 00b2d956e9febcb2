#!/bin/sh
# SPDX-License-Identifier: MIT
# The checker itself: a small clean tree passes, and each breach made in it is told.
set -u
here=$1
failed=0
tree=$(mktemp -d) || exit 2
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/runtime/base" "$tree/runtime/host" "$tree/runtime/cli"
spdx='/* SPDX-License-Identifier: MIT */'

write() {
    file=$1
    shift
    printf '%s\n' "$@" >"$tree/$file"
}

expect() {
    output=$("$here/check_tidy.sh" "$tree" "$here/layers.txt")
    status=$?
    if [ "$1" = clean ]; then
        [ $status -eq 0 ] && [ -z "$output" ] && return
    else
        [ $status -eq 1 ] && echo "$output" | grep -q "$1" && return
    fi
    echo "expected '$1', got status $status: $output"
    failed=1
}

repeat() {
    awk -v n="$1" -v text="$2" 'BEGIN { while (n-- > 0) print text }'
}

write runtime/base/low.h "$spdx" '/* abort() in a comment, and "printf(" here */' \
    'static const int table[] = {1};' 'void low(void);'
write runtime/host/high.c "$spdx" '#include "runtime/base/low.h"' 'void high(void)' '{' \
    '    low("call abort() not", p->abort(1));' '}'
write runtime/cli/command.c "$spdx" '#include <moe/moe.h>' '    printf("allowed here");'
expect clean

write runtime/base/wrong.c "$spdx" '#include "runtime/host/high.h"'
expect 'runtime/base must not include "runtime/host/high.h"'
write runtime/base/wrong.c "$spdx" '    abort();'
expect 'wrong.c:2: the library must not call abort()'
write runtime/base/wrong.c "$spdx" '    fprintf(stderr, "no");'
expect 'wrong.c:2: the library must not print'
write runtime/base/wrong.c "$spdx" '    dprintf(2, "no");'
expect 'wrong.c:2: the library must not print'
write runtime/base/wrong.c "$spdx" '    MOE_ASSERT(n-- > 0);'
expect 'wrong.c:2: an assertion has a side effect'
write runtime/base/wrong.c "$spdx" '    MOE_ASSERT(n = 1);'
expect 'wrong.c:2: an assertion has a side effect'
write runtime/base/wrong.c "$spdx" '    MOE_ASSERT(n >= 1 && n == m && n != 3 && n <= 4);'
expect clean
write runtime/base/wrong.c "$spdx" 'static int counter;'
expect 'wrong.c:2: mutable state'
write runtime/base/wrong.c 'void nothing(void);'
expect 'wrong.c:1: no SPDX line'
write runtime/base/wrong.c "$spdx" "/* in /""root/somewhere */"
expect 'wrong.c:2: a path of one machine'
write runtime/base/wrong.c "$spdx" "/* $(printf '%098d' 0) */"
expect 'wrong.c:2: line of 104 columns'
write runtime/base/wrong.c "$spdx" 'void f(void)' '{' "$(repeat 101 '    f();')" '}'
expect 'wrong.c:3: function of 101 lines'
write runtime/base/wrong.c "$spdx" "$(repeat 800 'void f(void);')"
expect 'wrong.c:1: file of 801 lines'
write runtime/base/wrong.c "$spdx" 'void f(void); '
expect 'wrong.c:2: blank at the end'
rm "$tree/runtime/base/wrong.c"
write runtime/host/low.h "$spdx"
expect 'two files of one name'
rm "$tree/runtime/host/low.h"
mkdir -p "$tree/runtime/include/moe"
write runtime/include/moe/open.h "$spdx"
write runtime/host/open.c "$spdx"
expect 'runtime/host/open.c:1: the name of a public header, moe/open.h'
rm -r "$tree/runtime/host/open.c" "$tree/runtime/include"
mkdir "$tree/runtime/cli_base"
write runtime/cli/above.h "$spdx"
write runtime/cli_base/below.c "$spdx" '#include "above.h"'
expect 'runtime/cli_base must not include "above.h"'
write runtime/cli_base/below.c "$spdx"
write runtime/cli/command.c "$spdx" '#include "runtime/base/low.h"'
expect 'runtime/cli must not include'
mkdir "$tree/runtime/secret"
write runtime/secret/new.c "$spdx"
expect 'folder runtime/secret is not in the table'
rm -r "$tree/runtime/secret" "$tree/runtime/cli" "$tree/runtime/cli_base"
mkdir -p "$tree/tests/tidy"
head -c 1048577 /dev/zero >"$tree/tests/weights.bin"
expect 'tests/weights.bin:1: 1048577 bytes, more than 1 MiB'
echo '1048577 tests/weights.bin' >"$tree/tests/tidy/large_files.txt"
expect clean
head -c 1048578 /dev/zero >"$tree/tests/weights.bin"
expect 'tests/weights.bin:1: 1048578 bytes'
printf 'See [this](weights.bin) and [that](https://example.org/no.md).\n' >"$tree/tests/README.md"
rm "$tree/tests/weights.bin"
expect 'tests/README.md:1: a link to weights.bin, which does not exist'
exit $failed
