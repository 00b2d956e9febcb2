#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time to the first token of a model on a server: with --disk-cache, while it comes, against downloading it first, over
the same link, in turn; and again with what the disk cache has then.

    far_first_token.py COMMAND MODEL [--gbit 1] [--pairs 3] [--no-download] [--options "OPTIONS OF run"]

The server is Python's on loopback and sends so many bits a second over all connections together. A download is one
request of the whole file by the same server to the same drive, and the run then starts at once, from the page cache."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "far"))
from range_server import RangeServer  # noqa: E402


class File:
    """Slices of a file, which may be larger than memory."""

    def __init__(self, path):
        self.fd, self.size = os.open(path, os.O_RDONLY), os.path.getsize(path)

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        return os.pread(self.fd, part.stop - part.start, part.start)


def first_token(command, source, options):
    """Seconds from the start of the command to the first piece of text, and the whole text."""
    begun = time.monotonic()
    process = subprocess.Popen([command, "run", *source, "-p", "Once upon a time", "-n", "16", "--temp", "0",
                                "--ignore-eos", "--quiet", *options], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    text = os.read(process.stdout.fileno(), 4096)
    seconds = time.monotonic() - begun
    text += process.stdout.read()
    if process.wait() != 0:
        sys.exit("the run failed")
    return seconds, text


def download(url, path):
    with urllib.request.urlopen(url) as answer, open(path, "wb") as out:
        while piece := answer.read(1 << 20):
            out.write(piece)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--no-download", action="store_true", help="count it as bytes by the link's speed")
    parser.add_argument("--options", default=["-c", "512"], type=str.split)
    o = parser.parse_args()
    model, rows, texts = File(o.model), [], set()
    with RangeServer({"/model.gguf": model}) as server:
        server.link.bytes_per_s = o.gbit * 1e9 / 8
        url = server.address + "/model.gguf"
        for _ in range(o.pairs):
            with tempfile.TemporaryDirectory() as folder:
                row = {}
                row["far"], text = first_token(o.command, ("-m", url, "--disk-cache", folder), o.options)
                texts.add(text)
                row["far, again"], text = first_token(o.command, ("-m", url, "--disk-cache", folder), o.options)
                texts.add(text)
            with tempfile.TemporaryDirectory() as folder:
                begun, path = time.monotonic(), o.model
                if not o.no_download:
                    path = os.path.join(folder, "model.gguf")
                    download(url, path)
                row["download"] = time.monotonic() - begun if not o.no_download else len(model) / server.link.bytes_per_s
                seconds, text = first_token(o.command, ("-m", path), o.options)
                row["download, then run"] = row["download"] + seconds
                texts.add(text)
            rows.append(row)
            print(json.dumps({k: round(v, 2) for k, v in row.items()}), file=sys.stderr)
    if len(texts) != 1:
        sys.exit(f"the texts differ: {texts}")
    print(f"{len(model) / 1e9:.2f} GB over {o.gbit:g} Gbit/s, medians of {o.pairs}, seconds to the first token; the text is "
          "the same")
    for name in rows[0]:
        print(f"{statistics.median(r[name] for r in rows):8.2f}  {name}")


if __name__ == "__main__":
    main()
