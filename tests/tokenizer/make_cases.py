#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/tokenizer/cases: strings, and what the published tokenizers make of them.

Run by hand when cases are added (the tests need neither Python nor these packages):
    pip install tokenizers
    make_cases.py TOKENIZERS_FOLDER      # holds qwen3/ and deepseek-v3/, each a tokenizer.json

strings.bin            count, then size and bytes of each
qwen3.ids, ...         for each string: n, ids; then 0 (the same when special tokens are not parsed)
                       or n + 1 and the ids of that
gemma4.json, ...       small vocabularies of BPE of characters, trained on these strings, each a
                       tokenizer.json; the others' are too large for the tree
pretokenizers.json     for each pre-tokenizer of splitters() a tokenizer.json without words
splits.bin             for each string, for each pre-tokenizer of splitters(): FNV-1a of the pieces'
                       ends in bytes, each as a u32; the hash's halves are folded into a u16
Numbers are LEB128 unless a width is named; widths are little-endian.
"""
import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

OUT = pathlib.Path(__file__).parent / "cases"
N_STRINGS = 2400

WORDS = """the of and to in is you that it he was for on are with as I his they be at one have this
from or had by hot word but what some we can out other were all there when up use your how said an
each she which do their time if will way about many then them write would like so these her long
make thing see him two has look more day could go come did number sound no most people my over know
water than call first who may down side been now find any new work part take get place made live
expert router gate residency prefetch speculation tokenizer don't I'll we've you're he'd it's I'M
THEY'RE WE'VE naïve café résumé coöperate Straße İstanbul ŒUVRE ﬁnance Ångström""".split()
FOREIGN = """нещо на Български мир добрый вечер Київ γνῶθι σεαυτόν Ελλάδα שלום עולם مرحبا بالعالم
اَلْعَرَبِيَّةُ نمسته नमस्ते दुनिया বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทยสวัสดี ພາສາລາວ မြန်မာ ကြန့် កាន់តែពិសេស
ქართული ᲥᲐᲠᲗᲣᲚᲘ հայերեն አማርኛ 我想在apple工作1314151天～ 你好世界 繁體中文 日本語のテキスト カタカナ ﾊﾝｶｸ 한국어 안녕하세요
조선말 Tiếng Việt Cửa Việt ᎠᏂᏴᏫᏯ ⵜⴰⵎⴰⵣⵉⵖⵜ 𐐀𐐨𐑏 𝕳𝖊𝖑𝖑𝖔 ʻŌlelo Hawaiʻi""".split()
EMOJI = ["🚀", "😶‍🌫️", "✅", "🦙", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "❤️", "1️⃣", "⌛", "😁"]
SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\r\n", "\n\n", "\r", "\u00a0", "\u2003", "\u3000",
          "\u0085", "\u2028", "\u202f", "\u1680", "\u180e", "\u200b", "\v", "\f", " \n ", "\t\t \n"]
DIGITS = ["0", "7", "42", "123", "1984", "65536", "3.14159", "1e-9", "0xFF", "1,000,000", "٣٤٥", "१२३",
          "½", "Ⅷ", "²³", "①②", "三十", "𝟙𝟚𝟛", "１２３"]
PUNCTUATION = ["!", "?!", "...", "--", "—", "“", "”", "'", "''", "\"", "`", "```", "(", ")", "[]", "{}", "<",
               ">", "=>", "//", "/*", "*/", "#", "$", "%", "^", "&&", "||", "~", "@", "\\", "_", "__", ":", ";",
               "€", "£", "©", "→", "≠", "、", "。", "！", "：", "「", "」", "¿", "¡", "·", "•"]
CODE = ["def f(x):\n    return x**2  # square\n", "int main(void)\n{\n\treturn 0;\n}\n", "#include <stdio.h>\n",
        "for (size_t i = 0; i < n; i++) {", "if __name__ == '__main__':", "SELECT * FROM t WHERE a <> 'b';",
        "<a href=\"x\">y</a>", "{\"key\": [1, 2.5, null]}", "a->b.c[0] += ~mask & 0xffu;", "printf(\"%d\\n\", x);",
        "$HOME/.config/*.toml", "https://example.org/a?b=c&d=%20e", "\\frac{1}{2}\\alpha_{i}", "x=y\n\n\n\tz"]
CONTROL = ["\x00", "\x01", "\x07", "\x08", "\x1b[31m", "\x7f", "\x80", "\x9f", "\ufeff", "\ufffd", "\ue000",
           "\U0010ffff", "\u200d", "\u202e", "\ufffe"]
COMBINING = ["e\u0301", "a\u0323\u0302", "q\u0307\u0323", "\u0301", "o\u0308\u0304", "\u1112\u1161\u11ab",
             "\u212b", "\u2126", "\uf900", "n\u0303o", "\u0344", "\u0958", "\U0001d15e", "\u0f73", "ﬀ"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<｜User｜>",
           "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜fim▁hole｜>", "<|im_", "im_end|>", "<<|im_end|>>", "<｜",
           "<|EOT|>", "<｜tool▁calls▁begin｜>"]
ASSIGNED = [c for c in range(0x20, 0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def any_character(rng):
    return chr(rng.choice(ASSIGNED))


def make_string(rng, kind):
    join = lambda parts, lo, hi: "".join(rng.choice(parts) for _ in range(rng.randint(lo, hi)))
    sentence = lambda words: " ".join(rng.choice(words) for _ in range(rng.randint(2, 14)))
    mixed = WORDS + FOREIGN + EMOJI + SPACES + DIGITS + PUNCTUATION + CODE + CONTROL + COMBINING
    if kind == 0:
        return sentence(WORDS) + rng.choice(["", ".", "!", "\n"])
    if kind == 1:
        return sentence(FOREIGN)
    if kind == 2:
        return join(EMOJI + WORDS[:20] + [" "], 2, 10)
    if kind == 3:
        return join(SPACES, 1, 8) + rng.choice(WORDS) + join(SPACES, 1, 8)
    if kind == 4:
        return join(DIGITS + ["", " ", ","], 1, 10)
    if kind == 5:
        return join(CODE, 1, 3)
    if kind == 6:
        return join(CONTROL + WORDS[:10], 1, 8)
    if kind == 7:
        return join(COMBINING + WORDS[:10] + [" "], 2, 10)
    if kind == 8:
        return "".join(any_character(rng) for _ in range(rng.randint(1, 24)))
    if kind == 9:
        return join(PUNCTUATION + WORDS[:15] + [" "], 2, 16)
    if kind == 10:
        return join(SPECIAL + WORDS[:15] + [" ", "\n", "e\u0301"], 2, 10)
    return join(mixed, 3, 24)


def make_strings():
    rng = random.Random(20240229)
    strings = ["", " ", "\n", "a", "é", "🚀", "aaaa" * 200, " " * 301 + "x", "\n" * 77, "\t " * 60 + "\n",
               "ab" * 150, "".join(rng.choice("abcdefgh") for _ in range(600)), "=" * 333, "0" * 100,
               "的" * 90, "е\u0301" * 50, " '" * 40, "'ſ 'S 'Re 'VE 'K 'LL", "ǅ ǆ ʼn ŉ",
               "".join(chr(c) for c in range(1, 0x180)),
               " ".join(chr(c) for c in range(0x2000, 0x2070))]
    while len(strings) < N_STRINGS:
        strings.append(make_string(rng, len(strings) % 12))
    return strings + TELLING


# What tells one expression from its neighbours.
TELLING = [
    "getUserName iPhone HTTPServer's XMLhttp ABCdefGHI", "愛LOVE安A々Bb〇1〇23!⺀abc⺀⺁def", "Aㄅbㄅ ǅungla ʰAʰb ªºA",
    "ไทยABCไทยabcไทย", "क्षि क्षिKक्षि e\u0301E\u0301", "\u0301a\u0301B\u0301", "１２３㈠⑴Ⅷ½²³12²1①12\u030112_12a",
    "<sentinel:12><sentinel:><sentinel:3>x", "IMGIMGABCZIMGIMGABCDEZIMGIMGZ IMGIMGAZ", "a b c d, e f  g\nh i 1 j",
    "path/to//file/\n/\n//\r\n", "!!!\n\n\n???\r\r", " \n \r\n  \n\n x", "\t\n    x  y   z     w", "it's IT'S it'S o'clock 'tis '",
    "don't I'LLama they'REd 'REAL", "1 12 123 1234 12345 123456 1234567", "x1y12z123w1234v12345u123456t1234567s",
    "(a|b), c. d! e? f… g。 h，、i।j۔k،", "Türkiye'nin İstanbul'dan 5'te", "".join(" " * n + "x" for n in range(1, 40)),
    " " * 515 + "y" + " " * 1030 + "\n", "\u3000\u3000x\u2003\u2003\u2003y", "ㄅㄆㄇ가나다ㄱㄴ、。，〿︰﹏", "ⅣⅤ十二12ⅣⅤ一〇〇",
]


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The class of DeepSeek's first tokenizers, as numbers: letters with case of the oldest scripts.
CASED = [c for c in range(0x110000) if unicodedata.category(chr(c)) in ("Lu", "Ll", "Lt")]
CASED_WITHOUT = [(0x560, 0x588), (0x10C7, 0x10FF), (0x1C80, 0x1C88), (0x2D00, 0x2D2D), (0xA790, 0xAB68)]
CASED_ASTRAL = [(0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB), (0x10C80, 0x10CB2),
                (0x10CC0, 0x10CF2), (0x118A0, 0x118DF), (0x1E900, 0x1E943)]


def cased_class():
    kept = [c for c in CASED if not any(lo <= c <= hi for lo, hi in CASED_WITHOUT)
            and (c < 0x10000 or any(lo <= c <= hi for lo, hi in CASED_ASTRAL))]
    return "".join(r"\x{%X}" % c for c in kept)


def splits(patterns):
    return Sequence([Split(Regex(p), "isolated") for p in patterns])


# The expressions as the tokenizers are published with them.
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
NO_WORD = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def o200k(ending, digits):
    return (f"{NO_WORD}{UPPER}*{LOWER}+{ending}|{NO_WORD}{UPPER}+{LOWER}*{ending}|{digits}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES_END)


def kimi_k2():
    upper = UPPER[:-1] + r"&&[^\p{Han}]]"
    lower = LOWER[:-1] + r"&&[^\p{Han}]]"
    return (rf"[\p{{Han}}]+|{NO_WORD}{upper}*{lower}+{CONTRACTIONS}?|{NO_WORD}{upper}+{lower}*{CONTRACTIONS}?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES_END)


GPT4O = o200k(CONTRACTIONS + "?", r"\p{N}{1,3}")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK3_CJK = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK3_WORDS = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                   r"| ?[\p{P}\p{S}]+")
AFMOE_SCRIPTS = ("[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff"
                 "가-\ud7afᄀ-ᇿ]+")
JAIS2_SPACES = "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s{1}"


def splitters(folder):
    deepseek3 = Tokenizer.from_file(str(folder / "deepseek-v3" / "tokenizer.json")).pre_tokenizer
    qwen2 = Tokenizer.from_file(str(folder / "qwen3" / "tokenizer.json")).pre_tokenizer
    digits = Digits(individual_digits=True)
    gpt2 = ByteLevel(add_prefix_space=False, use_regex=True)
    return [
        ("gpt-2", gpt2),
        ("llama-bpe", splits([LLAMA3])),
        ("qwen2", qwen2),
        ("olmo", gpt2),
        ("dbrx", splits([LLAMA3])),
        ("deepseek-llm", Sequence([splits([
            r"[\r\n]", r"\s?[" + cased_class() + "]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", CJK]), digits])),
        ("deepseek-coder", Sequence([splits([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK]), digits])),
        ("deepseek-v3", deepseek3),
        ("default", splits([r"[\p{P}\$\+<=>\^~\|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+",
                            "[0-9][0-9][0-9]"])),
        ("glm4", splits([LLAMA3])),
        ("stablelm2", splits([QWEN2])),
        ("qwen35", splits([CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                           r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES_END])),
        ("starcoder", Sequence([digits, gpt2])),
        ("falcon", splits([r"[\p{P}\$\+<=>\^~\|`]+", GPT2.removesuffix(r"|\s+"), "[0-9][0-9][0-9]"])),
        ("tekken", splits([o200k("", r"\p{N}")])),
        ("gpt-4o", splits([GPT4O])),
        ("youtu", splits(["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
                          o200k(CONTRACTIONS + "?", r"\p{N}")])),
        ("tiny_aya", splits([r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O])),
        ("kimi-k2", splits([kimi_k2()])),
        ("bailingmoe", splits([r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                               r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"])),
        ("seed-coder", splits([CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
                               + SPACES_END])),
        ("ufakzeka", splits([r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES_END])),
        ("exaone-moe", splits([CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                               r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"])),
        ("laguna", splits([r"[^\n]+|[\n]+", QWEN2])),
        ("minicpm5", splits([r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")])),
        ("jais-2", splits([LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + JAIS2_SPACES])),
        ("bloom", splits([BLOOM])),
        ("viking", splits([BLOOM, r"\p{N}"])),
        ("chameleon", splits(["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )",
                              r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2])),
        ("superbpe", splits([r"\p{N}+", r"(?=(\d{3})+(?!\d))"])),
        ("afmoe", splits([r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", AFMOE_SCRIPTS,
                          DEEPSEEK3_WORDS + r"[\r\n]*" + SPACES_END])),
        ("spark2_5", splits([r"\p{N}{1,3}", DEEPSEEK3_CJK,
                             DEEPSEEK3_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"])),
    ]


def character_tokenizer(strings, apart, byte_tokens, n_tokens):
    """BPE of characters as Gemma-4 and Sarvam have it: a space is U+2581, nothing cuts the text. apart:
    no token continues from a word to a space. byte_tokens: how many of the 256 the vocabulary has."""
    normalizer = normalizers.Replace(" ", "\u2581")
    trained = Tokenizer(models.BPE())
    if apart:
        trained.pre_tokenizer = Split("\u2581", "merged_with_next")
    trained.normalizer = normalizer
    # Markup is never merged: the reader takes "<|im_start|>" for a control token whatever its type.
    texts = [s.replace("\x00", "") for s in strings if not any(mark in s for mark in SPECIAL)]
    trained.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=n_tokens - 4 - byte_tokens, limit_alphabet=400, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].get)
    tokens = ["<unk>", "<bos>", "<|im_end|>", "<think>"] + [f"<0x{b:02X}>" for b in range(byte_tokens)] + words
    whole = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                 merges=[tuple(m) for m in model["merges"]],
                                 unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    whole.normalizer = normalizer
    whole.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    whole.add_special_tokens(["<unk>", "<bos>", "<|im_end|>"])
    whole.add_tokens([AddedToken("<think>", normalized=False)])
    return whole


def character_tokenizers(strings):
    return {"gemma4": character_tokenizer(strings, True, 256, 2200),
            "sarvam-moe": character_tokenizer(strings, False, 0, 1800)}


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def split_hash(splitter, text):
    sizes = [0]
    for c in text:
        sizes.append(sizes[-1] + len(c.encode()))
    value = 0x811C9DC5
    for _, (_, end) in splitter.pre_tokenize_str(text):
        for byte in struct.pack("<I", sizes[end]):
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return struct.pack("<H", value >> 16 ^ value & 0xFFFF)


def looks_special(text):
    return (text.startswith("<|") and text.endswith("|>")) or (text.startswith("<｜") and text.endswith("｜>"))


def open_tokenizer(path):
    """As converters to GGUF see it: a token that looks like markup is a control token."""
    content = json.loads(path.read_text())
    for token in content["added_tokens"]:
        token["special"] = token["special"] or looks_special(token["content"])
    return Tokenizer.from_str(json.dumps(content))


def encode_ids(tokenizer, text):
    tokenizer.encode_special_tokens = False
    parsed = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    out = varint(len(parsed)) + b"".join(map(varint, parsed))
    return out + (varint(0) if plain == parsed else
                  varint(len(plain) + 1) + b"".join(map(varint, plain)))


def main():
    folder = pathlib.Path(sys.argv[1])
    strings = make_strings()
    OUT.mkdir(exist_ok=True)
    encoded = [s.encode() for s in strings]
    (OUT / "strings.bin").write_bytes(
        varint(len(encoded)) + b"".join(varint(len(e)) + e for e in encoded))
    for name in ("qwen3", "deepseek-v3"):
        tokenizer = open_tokenizer(folder / name / "tokenizer.json")
        (OUT / f"{name}.ids").write_bytes(b"".join(encode_ids(tokenizer, s) for s in strings))
    for name, tokenizer in character_tokenizers(strings).items():
        (OUT / f"{name}.json").write_text(tokenizer.to_str(pretty=False) + "\n")
        (OUT / f"{name}.ids").write_bytes(b"".join(encode_ids(tokenizer, s) for s in strings))
    table = splitters(folder)
    files = {}
    for name, splitter in table:
        empty = Tokenizer(models.BPE())
        empty.pre_tokenizer = splitter
        files[name] = json.loads(empty.to_str())
    (OUT / "pretokenizers.json").write_text(json.dumps(files, indent=0, separators=(",", ":")) + "\n")
    (OUT / "splits.bin").write_bytes(
        b"".join(split_hash(splitter, s) for s in strings for _, splitter in table))


if __name__ == "__main__":
    main()
