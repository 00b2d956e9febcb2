#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the grammar of a JSON schema holds, by keyword. Arguments: schema_lines of the build, then the
folder of JSON-Schema-Test-Suite (its tests/draft2020-12), or --random N [SEED] (needs jsonschema):
random schemas with random values, which that package judges. A schema is held, dropped (some
keywords are named and left out) or refused. Where it is held no invalid value may be accepted: exit
status 1. Values have their members in the schema's order, as the grammar has them."""
import json
import os
import random
import subprocess
import sys


FORMATS = ("date.json", "time.json", "date-time.json", "uuid.json", "email.json", "ipv4.json", "uri.json")


class Lines:
    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, texts):
        self.process.stdin.write(json.dumps({"schema": schema, "texts": texts}) + "\n")
        self.process.stdin.flush()
        status, words, judged = self.process.stdout.readline().rstrip("\n").split("\t")
        return status, words, judged


def ordered(value, schema):
    """The value with its members in the schema's order."""
    if isinstance(value, list):
        items = schema.get("items", {}) if isinstance(schema, dict) else {}
        return [ordered(v, items if isinstance(items, dict) else {}) for v in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    required = schema.get("required", []) if isinstance(schema, dict) else []
    keys = [k for k in list(properties) + list(required) if k in value]
    keys = list(dict.fromkeys(keys + list(value)))
    return {k: ordered(value[k], properties.get(k, {}) if isinstance(properties, dict) else {}) for k in keys}


def suite(lines, folder):
    wrong = 0
    print(f"{'':24}{'held':>6}{'dropped':>8}{'refused':>8}{'invalid in':>12}{'valid in':>14}")
    files = [f for f in sorted(os.listdir(folder)) if f.endswith(".json")]
    for name in files + [os.path.join("optional/format", f) for f in FORMATS]:
        counts = {"held": 0, "dropped": 0, "refused": 0}
        accepted = valid = invalid = missed = 0
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            groups = json.load(file)
        for group in groups:
            texts = [json.dumps(ordered(t["data"], group["schema"]), ensure_ascii=False)
                     for t in group["tests"]]
            status, words, judged = lines.ask(group["schema"], texts)
            counts[status] += 1
            if status != "held":
                continue
            for test, text, one in zip(group["tests"], texts, judged):
                if test["valid"]:
                    valid += 1
                    accepted += one == "y"
                else:
                    invalid += 1
                    if one == "y":
                        missed += 1
                        print(f"WRONG {name}: {json.dumps(group['schema'])[:300]} takes {text[:100]}")
        wrong += missed
        print(f"{os.path.basename(name)[:-5]:24}{counts['held']:6}{counts['dropped']:8}{counts['refused']:8}"
              f"{missed:5} of {invalid:4}{accepted:7} of {valid:4}")
    return wrong


# ---- Random schemas ----

def random_schema(r, depth=0):
    kind = r.choice(["integer", "number", "string", "boolean", "null", "enum", "const"] +
                    (["object", "array", "object", "anyOf", "allOf"] if depth < 3 else []))
    if kind == "integer":
        low = r.randint(-50, 50)
        out = {"type": "integer"}
        if r.random() < 0.7:
            out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.7:
            out[r.choice(["maximum", "exclusiveMaximum"])] = low + r.randint(2, 900)
        if r.random() < 0.3:
            out["multipleOf"] = r.randint(1, 12)
        return out
    if kind == "number":
        low = r.choice([-1.5, 0, 0.25, 3, -20, 9.99])
        out = {"type": "number"}
        if r.random() < 0.7:
            out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.7:
            out[r.choice(["maximum", "exclusiveMaximum"])] = low + r.choice([0.5, 1, 7.75, 100])
        return out
    if kind == "string":
        return r.choice([{"type": "string"}, {"type": "string", "minLength": r.randint(0, 3), "maxLength": r.randint(3, 6)},
                         {"type": "string", "pattern": r.choice(["^[a-c]+$", "b", "^(x|yy)?$", "\\d{2}", "^\\w+ \\w+$", "^[^a\"]*$"])},
                         {"type": "string", "format": r.choice(["date", "ipv4", "uuid"])}])
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": r.sample([1, 2, "a", "b c", None, True, {"k": [1, 2]}, [], 2.5], r.randint(1, 4))}
    if kind == "const":
        return {"const": r.choice([1, "x", None, {"a": 1, "b": ["c", {}]}])}
    if kind == "anyOf":
        return {"anyOf": [random_schema(r, depth + 1) for _ in range(r.randint(1, 3))]}
    if kind == "allOf":
        a = random_object(r, depth)
        b = {"type": "object", "properties": {r.choice("abz"): random_schema(r, depth + 1)}}
        return {"allOf": [a, b]}
    if kind == "array":
        out = {"type": "array", "items": random_schema(r, depth + 1)}
        if r.random() < 0.4:
            out["minItems"] = r.randint(0, 2)
        if r.random() < 0.4:
            out["maxItems"] = r.randint(2, 4)
        if r.random() < 0.2:
            out = {"type": "array", "prefixItems": [random_schema(r, depth + 1) for _ in range(2)],
                   "items": random_schema(r, depth + 1), "maxItems": 4}
        if r.random() < 0.15:
            out["contains"] = {"type": r.choice(["integer", "string"])}
        if r.random() < 0.15:
            out = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}
        return out
    return random_object(r, depth)


def random_object(r, depth):
    names = r.sample(["a", "b", "c", "ab"], r.randint(0, 4))
    out = {"type": "object", "properties": {n: random_schema(r, depth + 1) for n in names}}
    out["required"] = [n for n in names if r.random() < 0.4]
    if r.random() < 0.5:
        out["additionalProperties"] = r.choice([False, True, {"type": "integer"}, {"type": "string"}])
    if r.random() < 0.15:
        out["minProperties"] = r.randint(0, 1)
    if r.random() < 0.15:
        out["maxProperties"] = r.randint(1, 3)
    if names and r.random() < 0.15:
        out["dependentRequired"] = {names[0]: [r.choice(["b", "c"])]}
    if names and r.random() < 0.15:
        out["if"] = {"properties": {names[0]: {"const": 1}}, "required": [names[0]]}
        out["then"] = {"required": ["c"]}
    if r.random() < 0.1:
        out["patternProperties"] = {"^x": {"type": "integer"}}
    if r.random() < 0.1:
        out["propertyNames"] = {"maxLength": 1}
    return out


def random_value(r, schema, depth=0):
    """A value that is likely to be valid, or nearly."""
    if not isinstance(schema, dict) or r.random() < 0.06 or depth > 6:
        return r.choice([0, 1, -3, 7, 2.5, "a", "x", "", None, True, [], {}, {"a": 1}])
    if "enum" in schema:
        return r.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return random_value(r, r.choice(schema["anyOf"]), depth + 1)
    if "allOf" in schema:
        merged = {}
        for part in schema["allOf"]:
            value = random_value(r, part, depth + 1)
            if isinstance(value, dict):
                merged.update(value)
        return merged
    kind = schema.get("type")
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -30))
        high = max(low, schema.get("maximum", schema.get("exclusiveMaximum", low + 100)))
        if kind == "integer":
            value = r.randint(int(low) - 2, int(high) + 2)
            step = schema.get("multipleOf", 1)
            return value // step * step if r.random() < 0.8 else value
        return r.choice([low, high, round(r.uniform(low - 0.3, high + 0.3), r.randint(0, 4))])
    if kind == "string":
        return r.choice(["", "a", "abc", "b", "x", "yy", "12", "a1b22", "ab cd", "\"", "é", "abcdefg", "2024-02-29",
                         "2023-02-29", "10.0.255.1", "256.1.1.1", "01:02:03Z", "01:02:63Z",
                         "123e4567-e89b-12d3-a456-426614174000"])
    if kind == "boolean":
        return r.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        front = schema.get("prefixItems", [])
        n = r.randint(0, 5)
        return [random_value(r, front[i] if i < len(front) else schema.get("items"), depth + 1) for i in range(n)]
    out = {n: random_value(r, s, depth + 1) for n, s in schema.get("properties", {}).items() if r.random() < 0.75}
    for name in ("x1", "zz"):
        if schema.get("additionalProperties") not in (None, False) and r.random() < 0.2:
            out[name] = r.choice([3, "t"])
    return out


def at_random(lines, n, seed):
    try:
        import jsonschema
    except ImportError:
        print("skipped: no package jsonschema")
        sys.exit(77)
    r = random.Random(seed)
    counts = {"held": 0, "dropped": 0, "refused": 0}
    wrong = valid = accepted = invalid = closed = 0
    missed = {}
    for _ in range(n):
        schema = random_schema(r)
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        values = [ordered(random_value(r, schema), schema) for _ in range(20)]
        texts = [json.dumps(v, ensure_ascii=False, separators=r.choice([(", ", ": "), (",", ":")])) for v in values]
        status, words, judged = lines.ask(schema, texts)
        counts[status] += 1
        if status == "refused":
            if any(map(validator.is_valid, values)):
                missed[words] = missed.get(words, 0) + 1
                if os.environ.get("SHOW"):
                    print(f"REFUSED {json.dumps(schema)}")
            continue
        for value, text, one in zip(values, texts, judged):
            if validator.is_valid(value):
                valid += 1
                accepted += one == "y"
                if one != "y" and os.environ.get("SHOW"):
                    print(f"LEFT OUT {json.dumps(schema)} {text}")
            elif status == "held":
                invalid += 1
                if one == "y":
                    wrong += 1
                    print(f"WRONG {json.dumps(schema)} takes {text}")
    print(f"schemas: {counts}; valid accepted {accepted} of {valid}; invalid accepted {wrong} of {invalid} (held)")
    for words, times in missed.items():
        print(f"refused {times}: {words}")
    return wrong


def main():
    lines = Lines(sys.argv[1])
    if sys.argv[2] == "--random":
        wrong = at_random(lines, int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    else:
        wrong = suite(lines, sys.argv[2])
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
