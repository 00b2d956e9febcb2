# SPDX-License-Identifier: MIT
"""vocabulary_lines.py TOKENIZER.json: the tokens of a byte-level BPE tokenizer in the form of tiktoken's
files, for mask_cost."""
import base64
import json
import sys

# The characters that stand for bytes which are not printed.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
bytes_of = {chr(b): b for b in plain}
bytes_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
with open(sys.argv[1], encoding="utf-8") as file:
    vocabulary = json.load(file)["model"]["vocab"]
for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
    if all(c in bytes_of for c in token):
        print(base64.b64encode(bytes(bytes_of[c] for c in token)).decode(), number)
