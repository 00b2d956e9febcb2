#!/bin/sh
# SPDX-License-Identifier: MIT
# A library without assertions has nothing of them: no call, and no function that prints and traps.
# One with assertions calls that function from many of its files.
# Arguments: static library, "on" or "off".
set -u
calls=$(nm "$1" 2>/dev/null | grep -c ' U moe_assert_failed$')
functions=$(nm "$1" 2>/dev/null | grep -c ' T moe_assert_failed$')
echo "$calls files of the library assert, $functions functions end it"
case $2 in
off) [ "$calls" -eq 0 ] && [ "$functions" -eq 0 ] ;;
on) [ "$calls" -ge 40 ] && [ "$functions" -eq 1 ] ;;
esac
