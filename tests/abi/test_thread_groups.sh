#!/bin/sh
# SPDX-License-Identifier: MIT
# The public headers pass thread_groups.sh; a function without a group, in two groups, or listed and
# not declared does not. Arguments: thread_groups.sh, header...
set -u
check=$1
shift
status=0
"$check" "$@" || status=1
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
header() {
    printf '/* Threads:\n *   free: %s\n *   last: %s */\n#ifndef X_H\n%s\n#endif\n' \
        "$1" "$2" 'MOE_API int moe_x_open(void);
MOE_API void
moe_x_close(void);
static inline int moe_x_init(void)
{
    return 0;
}' >"$folder/x.h"
    "$check" "$folder/x.h" >/dev/null
}
header 'moe_x_open, moe_x_init' moe_x_close || { echo "a whole list is refused"; status=1; }
header 'moe_x_open (always), moe_x_init' moe_x_close || { echo "a remark is refused"; status=1; }
header moe_x_init moe_x_close && { echo "a function without a group passes"; status=1; }
header moe_x_open moe_x_close && { echo "an inline function without a group passes"; status=1; }
header 'moe_x_open, moe_x_init, moe_x_close' moe_x_close && { echo "two groups pass"; status=1; }
header 'moe_x_open, moe_x_init, moe_y' moe_x_close && { echo "a stranger passes"; status=1; }
exit $status
