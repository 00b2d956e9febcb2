#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the table of cases.txt. Arguments: the command, this folder, a tiny model; with a fourth
# argument "--accept" the golden files are written instead of compared.
set -u
command=$1
here=$2
MODEL=$3
accept=${4:-}
WORK=$(mktemp -d) || exit 2
trap 'rm -rf "$WORK"' EXIT
failed=0
n=0

printf 'Hello\n' >"$WORK/hello.txt"
echo '1 2 99999' >"$WORK/ids.txt"
awk 'BEGIN { for (i = 0; i < 60; i++) print "the cat and the dog went out, and the day was good." }' \
    >"$WORK/text.txt"
printf '{%% if %%}' >"$WORK/wrong.jinja"
printf 'x\n{{ raise_exception("no questions") }}' >"$WORK/refuses.jinja"
printf '{%% set n = range(3000) %%}{%% for i in n %%}{%% for j in n %%}{%% for k in n %%}%s' \
    '{% endfor %}{% endfor %}{% endfor %}' >"$WORK/long.jinja"
printf 'this is no model file at all' >"$WORK/not-gguf.bin"
head -c 3000 "$MODEL" >"$WORK/cut.gguf"
# The architecture is told once as a value; the keys keep their prefix.
sed '0,/architecture\(.\{12\}\)olmoe/s//architecture\1nomoe/' "$MODEL" >"$WORK/unknown.gguf"

fail() {
    echo "FAIL $name: $1"
    sed 's/^/    stdout: /' "$WORK/stdout" | head -n 20
    sed 's/^/    stderr: /' "$WORK/stderr" | head -n 5
    failed=$((failed + 1))
}

# Arguments: stream name, what is expected of it, the file.
check_stream() {
    case $2 in
    any) ;;
    empty) [ -s "$3" ] && fail "$1 should be empty" ;;
    golden)
        golden=$here/golden/$name.txt
        sed "s|$MODEL|MODEL|g" "$3" >"$WORK/masked"
        if [ "$accept" = --accept ]; then
            cp "$WORK/masked" "$golden"
        elif ! diff -u "$golden" "$WORK/masked"; then
            fail "$1 differs from golden/$name.txt"
        fi
        ;;
    *) grep -qaE -e "$2" "$3" || fail "$1 does not match '$2'" ;;
    esac
    return 0
}

check_case() {
    # shellcheck disable=SC2154
    "$command" "$@" >"$WORK/stdout" 2>"$WORK/stderr" </dev/null
    got=$?
    [ "$got" -eq "$status" ] || fail "exit status $got, expected $status"
    check_stream stdout "$out" "$WORK/stdout"
    check_stream stderr "$(eval "echo \"$err\"")" "$WORK/stderr"
    if [ "$status" -ne 0 ]; then
        [ "$(wc -l <"$WORK/stderr")" -eq 1 ] || fail "more than one line on stderr"
        grep -q '^moe-offload: ' "$WORK/stderr" || fail "stderr does not begin with moe-offload:"
    fi
}

# A '|' inside a field is written '\|'.
while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    line=$(printf '%s' "$line" | sed 's/\\|/\x01/g')
    IFS='|' read -r name status out err arguments <<LINE
$line
LINE
    err=$(printf '%s' "$err" | sed 's/\x01/\\\\|/g')
    eval "set -- $arguments"
    check_case "$@"
    n=$((n + 1))
done <"$here/cases.txt"

[ "$n" -gt 50 ] || { echo "only $n cases were read"; failed=$((failed + 1)); }
echo "$n cases, $failed failed"
[ "$failed" -eq 0 ]
