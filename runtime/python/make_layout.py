# SPDX-License-Identifier: MIT
"""make_layout.py [--options] HEADERS... : writes moe_offload/_layout.py to standard output, the constants
and structs of the public headers for ctypes; with --options moe_offload/_options.py, the types of
keyword options for type checkers. tests/python compares the structs with what the C compiler says."""
import os
import re
import sys

SIMPLE = {"bool": "c_bool", "char": "c_char", "int": "c_int", "unsigned": "c_uint", "float": "c_float",
          "double": "c_double", "size_t": "c_size_t", "uint8_t": "c_uint8", "uint16_t": "c_uint16",
          "uint32_t": "c_uint32", "uint64_t": "c_uint64", "int32_t": "c_int32", "int64_t": "c_int64"}
constants, structs, enums, callbacks = {}, {}, {}, set()
words, sizes, typed = {}, set(), {}  # of members: an enum's prefix, whether bytes, a checker's type

# A member of one of these is an option of the package; those that it sets itself are not.
OPTIONS = {"moe_engine_options": "EngineOptions", "moe_sampling": "Sampling",
           "moe_trace_open_options": "TraceOptions", "moe_trace_generator": "TraceGenerator",
           "moe_simulation": "Simulation"}
NOT_OPTIONS = {"struct_size", "user", "read_user", "model_path", "path", "policy", "own_policy",
               "reserved", "reserved32"}
# How the name of a number of bytes ends.
BYTES = ("_memory", "_bytes", "expert_cache")


def value(text):
    text = text.strip()
    return constants[text] if text in constants else eval(text, {"__builtins__": {}}, constants)


def read_enum(kind, body):
    following = 0
    names = re.findall(r"\bMOE_\w+(?=\s*(?:=|,|$))", body)
    prefix = os.path.commonprefix(names)
    enums[kind] = prefix[:prefix.rfind("_") + 1]
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


def note(owner, name, kind, base):
    """What the package and type checkers need to know of a member."""
    if owner not in OPTIONS or name in NOT_OPTIONS:
        return
    if kind == "c_int" and base in enums:
        words[name] = enums[base]
    if name.endswith(BYTES) and re.fullmatch(r"c_(u?int\d+|size_t)", kind):
        sizes.add(name)
    plain = "Word[%r]" % enums[base] if name in words and base in enums else \
        "Size" if name in sizes else \
        {"c_bool": "bool", "c_char_p": "Text", "c_float": "float", "c_double": "float"}.get(
            kind, "Integer" if re.fullmatch(r"c_(u?int\d*|size_t)", kind) else None)
    typed.setdefault(owner, {})[name] = plain


def read_members(body, owner):
    members = []
    body = re.sub(r"[\w ]+\*?\s*\(\*(\w+)\)\([^)]*\)", r"void *\1", body)  # pointers to functions
    union = re.search(r"union\s*{([^}]*)}\s*(\w+);", body)
    if union:
        structs[owner + "_" + union[2]] = ("Union", read_members(union[1], owner))
        body = body.replace(union[0], f"{owner}_{union[2]} {union[2]};")
    body = re.sub(r"\*\s*const\b", "*", body)  # the pointer is constant, not what it points to
    for line in filter(None, (part.strip() for part in body.split(";"))):
        base, _, _ = line.partition(",")
        words_of = re.findall(r"\w+", re.sub(r"\[.*", "", base.replace("*", " * ")))[:-1]
        for item in re.split(r",", re.sub(r"^\s*((const|struct|unsigned)\s+)*\w+\b", "", line, count=1)):
            stars = item.count("*")
            name = re.search(r"\w+", item)[0]
            kind = type_of(words_of, stars)
            for size in re.findall(r"\[(.*?)\]", item):
                kind = f"{kind} * {value(size)}"
            members.append((name, kind))
            note(owner, name, kind, words_of[-1] if not stars else None)
    return members


for path in [argument for argument in sys.argv[1:] if argument != "--options"]:
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
            read_enum(found[2] or "int", found[3])
        else:
            structs[found[4]] = ("Structure", read_members(found[5], found[4]))



def write_layout():
    print("from ctypes import *  # noqa: F403\n")
    for name, number in sorted(constants.items()):
        print(f"{name} = {number}")
    print("\n# Members that are enums, and how their constants begin: \"f16\" is MOE_KV_CACHE_F16.")
    print("WORDS = {")
    for name, prefix in sorted(words.items()):
        print(f'    "{name}": "{prefix}",')
    print("}\n# Members that are numbers of bytes.\nSIZES = {")
    for name in sorted(sizes):
        print(f'    "{name}",')
    print("}")
    for name, (kind, members) in structs.items():
        print(f"\n\nclass {name}({kind}):")
        print("    _fields_ = [")
        for member, kind in members:
            print(f'        ("{member}", {kind}),')
        print("    ]")


def write_options():
    print("import os\nfrom typing import Literal, Optional, SupportsIndex, TypedDict, Union\n")
    print("Integer = SupportsIndex  # also numpy's\nSize = Union[SupportsIndex, str]  # bytes, or \"6G\"")
    print('Text = Optional[Union[str, bytes, "os.PathLike[str]"]]')
    for struct, name in OPTIONS.items():
        print(f"\n\nclass {name}(TypedDict, total=False):")
        print(f'    """Options that are members of {struct}, which its header describes."""')
        for member, kind in typed[struct].items():
            counted = re.sub(r"^n_|_bytes$", "", member)
            if kind is None or typed[struct].get(counted, kind) is None:
                continue  # a pointer, a callback or a struct, or how many of these there are
            prefix = re.fullmatch(r"Word\['(\w+)'\]", kind)
            if prefix:
                known = [n[len(prefix[1]):].lower() for n in constants if n.startswith(prefix[1])]
                kind = "Literal[%s]" % ", ".join(f'"{word}"' for word in known)
            print(f"    {member}: {kind}")


print("# SPDX-License-Identifier: MIT")
print('"""Written by make_layout.py from the headers in moe/. Do not edit."""')
write_options() if "--options" in sys.argv else write_layout()
