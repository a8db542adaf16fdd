#!/usr/bin/env python3
"""Compare protobuf contracts with tables such as proto/rkt/v1alpha/wire.tsv. No dependencies.

  wire.py dump  FDS              print a FileDescriptorSet as a table
  wire.py check TABLE.tsv FDS    exit 1 and print every row of the table that
                                 the descriptor set lacks or has differently

FDS is a binary FileDescriptorSet (what tonic-reflection serves, or `protoc -o`).
Columns: kind (message, enum, rpc), owner (full name), name, number, type, mode.
An rpc's type is `request -> response`; its mode is unary or the streaming side.
Extra rows in the descriptor set are fine: a contract may grow.
"""
import sys

TYPES = dict(enumerate(
    "- double float int64 uint64 int32 fixed64 fixed32 bool string group message bytes "
    "uint32 enum sfixed32 sfixed64 sint32 sint64".split()))


def varint(buf, at):
    value = shift = 0
    while True:
        byte = buf[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(buf):
    """Decode one message into {field number: [values]}."""
    at, out = 0, {}
    while at < len(buf):
        key, at = varint(buf, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(buf, at)
        elif wire == 2:
            size, at = varint(buf, at)
            value, at = buf[at:at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = buf[at:at + size], at + size
        else:
            sys.exit("not a descriptor set: wire type %d" % wire)
        out.setdefault(number, []).append(value)
    return out


def text(f, number):
    return f[number][0].decode() if number in f else ""


def integer(f, number, default=0):
    value = f[number][0] if number in f else default
    return value - (1 << 64) if value >= 1 << 63 else value


def walk_enum(prefix, buf, rows):
    f = fields(buf)
    owner = prefix + text(f, 1)
    for value in f.get(2, []):
        v = fields(value)
        rows.append(("enum", owner, text(v, 1), str(integer(v, 2)), "", ""))


def walk_message(prefix, buf, rows):
    f = fields(buf)
    owner = prefix + text(f, 1)
    nested = [fields(n) for n in f.get(3, [])]
    maps = {"." + owner + "." + text(n, 1): n for n in nested
            if 7 in n and integer(fields(n[7][0]), 7)}
    if 2 not in f:
        rows.append(("message", owner, "(empty)", "", "", ""))
    for field in f.get(2, []):
        g = fields(field)
        kind, named = TYPES[integer(g, 5)], text(g, 6)
        mode = "repeated" if integer(g, 4) == 3 else "singular"
        if named in maps:
            pair = {integer(e, 3): e for e in map(fields, maps[named][2])}
            types = [text(pair[i], 6).lstrip(".") or TYPES[integer(pair[i], 5)] for i in (1, 2)]
            kind, mode = "map<%s,%s>" % tuple(types), "map"
        elif named:
            kind = named.lstrip(".")
        rows.append(("message", owner, text(g, 1), str(integer(g, 3)), kind, mode))
    for raw, n in zip(f.get(3, []), nested):
        if "." + owner + "." + text(n, 1) not in maps:
            walk_message(owner + ".", raw, rows)
    for enum in f.get(4, []):
        walk_enum(owner + ".", enum, rows)


def table(path):
    rows = []
    for raw in fields(open(path, "rb").read()).get(1, []):
        f = fields(raw)
        if text(f, 1).startswith("google/protobuf/"):
            continue
        prefix = text(f, 2) + "." if text(f, 2) else ""
        for message in f.get(4, []):
            walk_message(prefix, message, rows)
        for enum in f.get(5, []):
            walk_enum(prefix, enum, rows)
        for service in f.get(6, []):
            s = fields(service)
            for method in s.get(2, []):
                m = fields(method)
                sides = [w for n, w in ((5, "client-stream"), (6, "server-stream")) if integer(m, n)]
                rows.append(("rpc", prefix + text(s, 1), text(m, 1), "",
                             "%s -> %s" % (text(m, 2).lstrip("."), text(m, 3).lstrip(".")),
                             "+".join(sides) or "unary"))
    return sorted(set(rows))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "dump":
        print("\t".join(("kind", "owner", "name", "number", "type", "mode")))
        for row in table(sys.argv[2]):
            print("\t".join(row))
    elif len(sys.argv) == 4 and sys.argv[1] == "check":
        have = set(table(sys.argv[3]))
        want = [tuple(line.rstrip("\n").split("\t")) for line in open(sys.argv[2])][1:]
        missing = [row for row in want if row not in have]
        for row in missing:
            print("\t".join(row))
        print("%d of %d rows hold" % (len(want) - len(missing), len(want)))
        sys.exit(1 if missing else 0)
    else:
        sys.exit(__doc__)


main()
