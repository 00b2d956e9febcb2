#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the tree given as $1 against the rules that a compiler does not know. Every breach is a line
# "file:line: what"; the exit status is 1 when there was one. Lines that begin with "note:" are told
# and do not fail.
set -u
export LC_ALL=C
cd "$1" || exit 2
layers=${2:-tests/tidy/layers.txt}
found=$(mktemp) || exit 2
trap 'rm -f "$found"' EXIT

# Arguments: further conditions of find.
all_files() {
    find . -name .git -prune -o -path './build*' -prune -o -name __pycache__ -prune \
        -o -type f "$@" -print | sed 's|^\./||'
}

c_files() {
    all_files | grep -E '\.(c|h|cu|cuh)$'
}

library_files() {
    c_files | grep -E '^(runtime|cache|offload|cpu|cuda)/' | grep -vE '^runtime/(cli|cli_base|far|hub)/'
}

# Quoted includes name the folder from the top of the tree, or a file by its bare name: a neighbour,
# or one of another folder of the command.
check_layers() {
    headers=$(c_files | grep -v '^tests/' | grep '\.h$')
    c_files | grep -v '^tests/' | while read -r file; do
        folder=${file%/*}
        row=$folder
        case $folder in runtime/include/*) row=runtime/include ;; esac
        if ! grep -q "^$row:" "$layers"; then
            echo "$file:1: folder $row is not in the table of layers"
            continue
        fi
        allowed=$(sed -n "s|^$row:||p" "$layers")
        sed -n 's/^#include "\([^"]*\)".*/\1/p' "$file" | while read -r include; do
            case $include in
            */*) target=${include%/*} ;;
            *)
                target=$folder
                if [ ! -f "$folder/$include" ]; then
                    target=$(echo "$headers" | sed -n "s|/$include\$||p" | head -n 1)
                    target=${target:-$folder} # a header that the build makes
                fi
                ;;
            esac
            case " $folder $allowed " in
            *" $target "*) ;;
            *) echo "$file:1: $folder must not include \"$include\" (see the table of layers)" ;;
            esac
        done
    done
}

# A function's body stands between braces in the first column.
check_lengths() {
    c_files | xargs awk '
        FNR == 1 { if (NR > 1) end_file(); body = 0 }
        { name = FILENAME; lines = FNR }
        {
            text = $0
            gsub(/[\200-\277]/, "", text)
            if (length(text) > 100) printf "%s:%d: line of %d columns, 100 are allowed\n",
                FILENAME, FNR, length(text)
        }
        /[ \t]$/ { printf "%s:%d: blank at the end of the line\n", FILENAME, FNR }
        /\t/ { printf "%s:%d: tab\n", FILENAME, FNR }
        /^{/ { body = FNR }
        /^}/ && body {
            size = FNR - body - 1
            if (size > 100) printf "%s:%d: function of %d lines\n", FILENAME, body, size
            else if (size > 70) printf "note: %s:%d: function of %d lines, 70 are aimed at\n",
                FILENAME, body, size
            body = 0
        }
        function end_file() {
            if (lines > 800) printf "%s:1: file of %d lines, 800 are allowed\n", name, lines
            else if (lines > 500) printf "note: %s:1: file of %d lines, 500 are aimed at\n",
                name, lines
        }
        END { end_file() }'
}

# Comments and strings are taken out before looking for calls.
check_banned() {
    library_files | xargs awk '
        BEGIN {
            n = split("abort exit _exit quick_exit printf puts putchar perror getenv setenv " \
                "secure_getenv strcpy strcat sprintf vsprintf gets strtok rand srand assert " \
                "system popen alloca setlocale signal", words, " ")
            for (i = 1; i <= n; i++) banned[words[i]] = 1
        }
        FNR == 1 { comment = 0 }
        {
            text = $0
            gsub(/\\./, "", text)
            gsub(/"[^"]*"/, "\"\"", text)
            while (1) {
                if (comment) {
                    end = index(text, "*/")
                    if (!end) { text = ""; break }
                    text = substr(text, end + 2); comment = 0
                }
                start = index(text, "/*")
                if (!start) break
                rest = substr(text, start + 2)
                end = index(rest, "*/")
                if (!end) { text = substr(text, 1, start - 1); comment = 1; break }
                text = substr(text, 1, start - 1) " " substr(rest, end + 2)
            }
            sub(/\/\/.*/, "", text)
            rest = text
            while (match(rest, /[A-Za-z_][A-Za-z_0-9]*[ ]*\(/)) {
                word = substr(rest, RSTART, RLENGTH - 1)
                sub(/ +$/, "", word)
                before = RSTART > 1 ? substr(rest, RSTART - 1, 1) : " "
                if ((word in banned) && before !~ /[.>A-Za-z_0-9]/)
                    printf "%s:%d: the library must not call %s()\n", FILENAME, FNR, word
                if (word == "fprintf" && rest ~ /fprintf *\( *(stderr|stdout)/)
                    printf "%s:%d: the library must not print\n", FILENAME, FNR
                if (word == "dprintf" && FILENAME != "runtime/base/moe_assert.c")
                    printf "%s:%d: the library must not print\n", FILENAME, FNR
                if (word == "MOE_ASSERT" && rest ~ /\+\+|--|[^=!<>]=[^=]/)
                    printf "%s:%d: an assertion has a side effect\n", FILENAME, FNR
                rest = substr(rest, RSTART + RLENGTH)
            }
        }'
}

check_names() {
    c_files | sed 's|.*/||' | sort | uniq -d | while read -r name; do
        echo "$(c_files | grep "/$name$" | tr '\n' ' '): two files of one name"
    done
    # Such a source would look like the one that implements the header, which folders below include.
    c_files | sed -n 's|^runtime/include/moe/\(.*\)\.h$|\1|p' | while read -r name; do
        c_files | grep -E "^(runtime|cache|offload|cpu|cuda)/(.*/)?$name\.c$" |
            sed "s|\$|:1: the name of a public header, moe/$name.h|"
    done
}

check_spdx() {
    all_files | grep -E '\.(c|h|cu|cuh|sh)$|^(demo|check|\.ci/run)$|^meson\.build$' |
        while read -r file; do
            head -n 2 "$file" | grep -q 'SPDX-License-Identifier: MIT' ||
                echo "$file:1: no SPDX line"
        done
}

# Paths of the machine that something was written on have no place in the tree.
check_paths() {
    all_files | grep -vE '\.(gguf|npy|bin|f32|png)$' | tr '\n' '\0' |
        xargs -0 grep -nIE '(^|[^A-Za-z0-9._])/(work|root|home/[a-z]+|mnt/[a-z]+)/' |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: a path of one machine/'
}

# A large file stays in the history for good. Those that the tree has to have are in large_files.txt
# with their sizes: one that changes is a change of that list as well.
check_sizes() {
    all_files -size +1048576c | while read -r file; do
        size=$(wc -c <"$file")
        grep -qsxF "$size $file" tests/tidy/large_files.txt ||
            echo "$file:1: $size bytes, more than 1 MiB, and not in tests/tidy/large_files.txt"
    done
}

# Links of documents to files of the tree. Code between backquotes is no link.
check_links() {
    all_files | grep '\.md$' | while read -r file; do
        sed 's/`[^`]*`/x/g' "$file" | grep -o '](\([^)#]*\)' | sed 's/^](//' |
            grep -v '^[a-z]*:' | while read -r target; do
            [ -z "$target" ] || [ -e "$(dirname "$file")/$target" ] ||
                echo "$file:1: a link to $target, which does not exist"
        done
    done
}

# Two reasons to keep state at file scope: none in the library.
check_state() {
    library_files | xargs awk '
        /^static / && !/\(/ && !/const/ && !/^static inline/ &&
            (/;$/ || /=/ || /\[/) {
            printf "%s:%d: mutable state at file scope\n", FILENAME, FNR
        }'
}

for check in check_layers check_lengths check_banned check_names check_spdx check_paths \
    check_sizes check_links check_state; do
    $check >>"$found"
done
sort -u "$found"
! grep -qv '^note:' "$found"
