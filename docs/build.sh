#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the documentation as HTML: the tutorial, and the reference of C (from the headers, by Doxygen
# and Breathe) and of Python (from the package, by autodoc). Arguments: the build folder, which has the
# library, and a folder for the pages. Needs doxygen and the Python packages sphinx, breathe and numpy
# (`.ci/packages full` and `.ci/packages tools` install them; PYTHONPATH=build/tools finds them).
set -eu
if [ $# -ne 2 ]; then
    echo "usage: docs/build.sh BUILD-FOLDER OUTPUT-FOLDER" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
MOE_OFFLOAD_LIBRARY=$(realpath "$1")/libmoe_offload.so.0
mkdir -p "$2"
out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MOE_OFFLOAD_LIBRARY MOE_DOXYGEN_XML="$work/xml"
doxygen - >"$work/doxygen.log" <<SETTINGS
INPUT = $here/../runtime/include/moe
FILE_PATTERNS = *.h
OUTPUT_DIRECTORY = $work
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
OPTIMIZE_OUTPUT_FOR_C = YES
EXTRACT_ALL = YES
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
MARKDOWN_SUPPORT = YES
INPUT_FILTER = "$python $here/doc_comments.py"
STRIP_FROM_PATH = $here/../runtime/include
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = "__attribute__(x)=" MOE_API=
SETTINGS
"$python" -m sphinx -q -b html -d "$work/doctrees" "$here" "$out"
echo "$out/index.html"
