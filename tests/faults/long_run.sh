#!/bin/sh
# SPDX-License-Identifier: MIT
# A long run of all that makes faults. Prints a table for each part; status 0: nothing went wrong.
# Arguments: a build folder, seconds or xSEEDS (300), the first seed (1), faults of each soak (1000000).
set -u
build=${1:?"say which build folder"}
seconds=${2:-300}
seed=${3:-1}
soak=${4:-1000000}
oracle=$(dirname "$0")/../oracle
failed=0

"$build/tests/faults/fault_hunt" "$build/moe-offload" "$build/tests/faults/fault_api" \
    "$build/tests/faults/libfault_preload.so" "$oracle/olmoe/model.gguf" "$seconds" "$seed" ||
    failed=1
if [ "$soak" -gt 0 ]; then
    "$build/tests/io/test_io_soak" "$soak" || failed=1
    "$build/tests/offload/test_store_soak" "$oracle" "$soak" || failed=1
fi
[ $failed -eq 0 ] && echo "nothing went wrong" || echo "something went wrong"
exit $failed
