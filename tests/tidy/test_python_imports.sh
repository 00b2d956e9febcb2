#!/bin/sh
# SPDX-License-Identifier: MIT
# python_imports.py lets a tree pass whose imports exist, and tells one that does not. $1: this folder
set -u
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/part"
echo 'X = 1' > "$work/part/there.py"
printf 'import json\nfrom there import X\nimport numpy as np\n' > "$work/main.py"
"$1/python_imports.py" "$work" || {
    status=$?
    [ $status = 77 ] && exit 77
    echo "a right tree was refused"
    exit 1
}
echo 'def f(): from gone import X' >> "$work/main.py"
"$1/python_imports.py" "$work" > "$work/told" && {
    echo "a module that is gone was not told"
    exit 1
}
grep -q '^main.py:4: no module gone:' "$work/told" || {
    cat "$work/told"
    exit 1
}
