#!/bin/bash
# SPDX-License-Identifier: MIT
# Every option of every command's --help-all is offered by the three shells' completions, and a choice's
# words follow the option. bash runs its own; zsh's and fish's are read, and run where the shell is
# installed. Arguments: the command, the completions of bash, zsh and fish.
set -u
moe=$1 bash_file=$2 zsh_file=$3 fish_file=$4
failed=0
n=0

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

# What bash offers after these words, the last of which is being typed; one a line.
offered() {
    COMP_WORDS=(moe-offload "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _moe_offload
    printf '%s\n' ${COMPREPLY[@]+"${COMPREPLY[@]}"}
}

# shellcheck disable=SC1090
. "$bash_file" || fail 'bash does not read its completions'
titles=$("$moe" --help | sed -n 's/^  \([a-z]\+\( [a-z]\+\)\?\)   *.*/\1/p')
[ "$(echo "$titles" | wc -l)" -gt 10 ] || fail "few commands: $titles"
while read -r title; do
    read -r -a words <<<"$title"
    offered "${words[0]}" | grep -qx -e "${words[0]}" || fail "bash does not offer ${words[0]}"
    [ ${#words[@]} -eq 1 ] || offered "${words[@]}" | grep -qx -e "${words[1]}" ||
        fail "bash does not offer $title"
    in_bash=" $(offered "${words[@]}" - | tr '\n' ' ')"
    # The command's part of zsh's and fish's files, in which names stand apart.
    in_zsh=" $(sed -n "/^    '$title')/,/^        ;;/p" "$zsh_file" |
        sed "s/'\[.*//" | tr "'(){}*,\\\\\n" '         ') "
    in_fish=" $(grep -F "'__moe_offload_is $title'" "$fish_file" | sed "s/ -d '.*//" | tr '\n' ' ') "
    for option in $("$moe" "${words[@]}" --help-all | sed -n 's/^  \(-[^ ]*\( -[^ ]*\)\?\).*/\1/p' |
        tr -d ','); do
        n=$((n + 1))
        case $in_bash in *" $option "*) ;; *) fail "bash: $title: no $option" ;; esac
        case $in_zsh in *" $option "*) ;; *) fail "zsh: $title: no $option" ;; esac
        case $option in
        --*) in_words="-l ${option#--}" ;;
        -?) in_words="-s ${option#-}" ;;
        *) in_words="-o ${option#-}" ;;
        esac
        case $in_fish in *" $in_words "*) ;; *) fail "fish: $title: no $option" ;; esac
    done
done <<<"$titles"

# The words that follow an option; files; nothing that is not known.
[ "$(offered run --kv '' | sort | tr '\n' ' ')" = 'f16 f32 f8 q4_0 q8_0 ' ] || fail 'run --kv'
[ "$(offered bench decode --kv q8)" = q8_0 ] || fail 'bench decode --kv q'
offered run --speculate n | grep -qx ngram || fail 'run --speculate n'
[ -z "$(offered run -n '')" ] || fail 'run -n offers something'
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
: >"$scratch/model.gguf"
[ "$(offered run -m "$scratch/mo")" = "$scratch/model.gguf" ] || fail 'run -m offers no file'
offered inspect - | grep -qx -e --temp && fail 'inspect offers --temp'

# Names of the cache, also where bash has divided a word at : and @.
moe-offload() {
    [ "$*" = list ] && printf '%-20s 1 GiB\n' me/tiny:Q4_K_M me/tiny:Q8_0 me/tiny@v1:Q4_K_M you/big:IQ2_XXS
}
[ "$(offered run -hf '' | wc -l)" = 4 ] || fail 'run -hf offers no names'
[ "$(offered run -hf m | tr '\n' ' ')" = 'me/tiny:Q4_K_M me/tiny:Q8_0 me/tiny@v1:Q4_K_M ' ] || fail 'run -hf m'
[ "$(offered run -hf me/tiny : | tr '\n' ' ')" = 'Q4_K_M Q8_0 ' ] || fail 'run -hf me/tiny:'
[ "$(offered rm me/tiny : Q8)" = Q8_0 ] || fail 'rm me/tiny:Q8'
[ "$(offered run -hf me/tiny @)" = v1:Q4_K_M ] || fail 'run -hf me/tiny@'
[ "$(offered rm me/tiny @ v1 : Q4)" = Q4_K_M ] || fail 'rm me/tiny@v1:Q4'
[ "$(offered show you)" = you/big:IQ2_XXS ] || fail 'show you'
offered rm - | grep -qx -e --quiet || fail 'rm offers no options'
unset -f moe-offload
grep -q '_moe_offload_names' "$zsh_file" && grep -q '__moe_offload_names' "$fish_file" || fail 'zsh and fish offer no names'
[ -z "$(offered nothing -)" ] || fail 'a command that does not exist has options'

if command -v zsh >/dev/null; then
    zsh -n "$zsh_file" || fail 'zsh does not read its completions'
else
    echo 'note: zsh is not installed: its completions were read, not run'
fi
if command -v fish >/dev/null; then
    in_fish=$(HOME=$scratch fish --no-config -c "source '$fish_file'
        complete -C 'moe-offload '
        complete -C 'moe-offload bench '
        complete -C 'moe-offload run --'
        complete -C 'moe-offload bench decode --kv '" | cut -f 1)
    for word in run inspect decode --ignore-eos --help q8_0; do
        echo "$in_fish" | grep -qx -e "$word" || fail "fish does not offer $word"
    done
else
    echo 'note: fish is not installed: its completions were read, not run'
fi
[ "$n" -gt 300 ] || fail "only $n options were looked for"
echo "$n options looked for, $failed failed"
[ "$failed" -eq 0 ]
