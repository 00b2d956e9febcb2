# SPDX-License-Identifier: MIT
"""make_layout.py HEADERS... : writes moe_offload/_layout.py to standard output, the constants and
structs of the public headers for ctypes. tests/python compares it with what the C compiler says."""
import re
import sys

SIMPLE = {"bool": "c_bool", "char": "c_char", "int": "c_int", "unsigned": "c_uint", "float": "c_float",
          "double": "c_double", "size_t": "c_size_t", "uint8_t": "c_uint8", "uint16_t": "c_uint16",
          "uint32_t": "c_uint32", "uint64_t": "c_uint64", "int32_t": "c_int32", "int64_t": "c_int64"}
constants, structs, enums, callbacks = {}, {}, set(), set()


def value(text):
    text = text.strip()
    return constants[text] if text in constants else eval(text, {"__builtins__": {}}, constants)


def read_enum(body):
    following = 0
    for item in filter(None, (part.strip() for part in body.split(","))):
        name, _, given = item.partition("=")
        constants[name.strip()] = following = value(given) if given else following
        following += 1


def type_of(words, stars):
    if stars == 1 and words == ["const", "char"]:
        return "c_char_p"
    if stars:
        inner = [w for w in words if w not in ("const", "struct")][0]
        return f"POINTER({SIMPLE[inner]})" if inner in SIMPLE and inner != "char" else \
            f"POINTER({inner})" if inner in structs else "c_void_p"
    name = words[-1]
    return SIMPLE.get(name) or ("c_int" if name in enums else
                                "c_void_p" if name in callbacks else name)


def read_members(body, owner):
    members = []
    union = re.search(r"union\s*{([^}]*)}\s*(\w+);", body)
    if union:
        structs[owner + "_" + union[2]] = ("Union", read_members(union[1], owner))
        body = body.replace(union[0], f"{owner}_{union[2]} {union[2]};")
    body = re.sub(r"\*\s*const\b", "*", body)  # the pointer is constant, not what it points to
    for line in filter(None, (part.strip() for part in body.split(";"))):
        base, _, _ = line.partition(",")
        words = re.findall(r"\w+", re.sub(r"\[.*", "", base.replace("*", " * ")))[:-1]
        for item in re.split(r",", re.sub(r"^\s*((const|struct|unsigned)\s+)*\w+\b", "", line, count=1)):
            stars = item.count("*")
            name = re.search(r"\w+", item)[0]
            kind = type_of(words, stars)
            for size in re.findall(r"\[(.*?)\]", item):
                kind = f"{kind} * {value(size)}"
            members.append((name, kind))
    return members


for path in sys.argv[1:]:
    text = open(path, encoding="utf-8").read()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    for name, number in re.findall(r"^#define (MOE_\w+)\s+\(?(-?\d+)\)?\s*$", text, flags=re.M):
        constants[name] = int(number)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    for found in re.finditer(r"typedef \w+ \(\*(\w+)\)|(?:typedef )?enum (\w*)\s*{([^}]*)}|"
                             r"(?:typedef )?struct (\w+) {((?:[^{}]|{[^{}]*})*)}", text):
        if found[1]:
            callbacks.add(found[1])
        elif found[3] is not None:
            enums.add(found[2])
            read_enum(found[3])
        else:
            structs[found[4]] = ("Structure", read_members(found[5], found[4]))

print("# SPDX-License-Identifier: MIT")
print('"""Written by make_layout.py from the headers in moe/. Do not edit."""')
print("from ctypes import *  # noqa: F403\n")
for name, number in sorted(constants.items()):
    print(f"{name} = {number}")
for name, (kind, members) in structs.items():
    print(f"\n\nclass {name}({kind}):")
    print("    _fields_ = [")
    for member, kind in members:
        print(f'        ("{member}", {kind}),')
    print("    ]")
