# SPDX-License-Identifier: MIT
"""doc_comments.py HEADER: prints a public header with its comments as Doxygen reads them. The headers
have plain comments: before a declaration, or behind it on its line. Doxygen's INPUT_FILTER."""
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
text = re.sub(r"/\* SPDX.*?\*/\n|/\* -+ .*? -+ \*/\n", "\n", text)
text = text.replace("/*", "/** @file\n *", 1)  # what the header is for
text = re.sub(r"^( *)/\*(?!\*)", r"\1/**", text, flags=re.M)
text = re.sub(r"(?<=\S)( +)/\*(?!\*)", r"\1/**<", text)


def as_markup(comment):
    """Escapes what Doxygen would read as commands; keeps indented lines of a file's comment as they are."""
    lines, kept, listed = [], False, False
    for line in comment[0].split("\n"):
        indented = re.match(r" \*  +\S", line) is not None
        listed = re.match(r" \* +- ", line) is not None or listed and indented
        keeps = indented and not listed and "@file" in comment[0]
        if keeps != kept:
            lines.append("@verbatim" if keeps else "@endverbatim")
        kept = keeps
        lines.append(line[2:] if keeps else
                     re.sub(r"(?<!\*)<(?=[|\w/])|\\(?=[a-zA-Z])|&(?=\w+;)", r"\\\g<0>", line))
        if keeps and line.endswith("*/"):  # the comment ends with such a line
            lines[-1] = lines[-1][:-2] + "\n@endverbatim */"
            kept = False
    return "\n".join(lines)


sys.stdout.write(re.sub(r"/\*\*.*?\*/", as_markup, text, flags=re.S))
