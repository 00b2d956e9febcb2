#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds with coverage counters, runs the tests and prints the share of lines that ran, folder by
# folder. Arguments: "--files" prints a line a file as well; all others go to "meson test" (default:
# every suite but tidy, install, slow, nightly and release). Needs gcc, gcov, gcov-tool and
# python3.
# The build is in build-coverage; what it counted is cleared first.
set -u
cd "$(dirname "$0")/.." || exit 1
files=
if [ "${1:-}" = --files ]; then
    files=--files
    shift
fi
[ $# -gt 0 ] || set -- --no-suite tidy --no-suite install --no-suite slow --no-suite nightly \
    --no-suite release
folder=build-coverage
for tool in gcc gcov gcov-tool meson ninja python3; do
    command -v "$tool" >/dev/null || {
        echo "coverage needs $tool" >&2
        exit 1
    }
done
if [ ! -f $folder/build.ninja ]; then
    CC=gcc CXX=g++ meson setup $folder -Dtests=true -Db_coverage=true -Doptimization=1 || exit 1
fi
ninja -C $folder || exit 1
# Every test counts into a folder of its own: tests that kill their processes, or make reads and
# writes fail, leave damaged counts, which must not damage those of other tests.
rm -rf $folder/counts
mkdir $folder/counts
find $folder -name '*.gcda' -delete
cat >$folder/count.sh <<'WRAPPER'
#!/bin/sh
GCOV_PREFIX=$(dirname "$0")/counts/$$
export GCOV_PREFIX
exec "$@"
WRAPPER
chmod +x $folder/count.sh
meson test -C $folder --no-rebuild --num-processes "$(nproc)" --wrapper "$PWD/$folder/count.sh" "$@"
echo "the tests ended with status $?; coverage is of what they ran"
exec python3 tests/coverage_table.py $files $folder
