#!/usr/bin/env python3
"""Writes mlp_tp.safetensors: what mlp_tp.graph is given. Standard library only.

A safetensors file is 8 bytes of length, a JSON header, then the data."""
import json
import random
import struct
import sys


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, code, shape, values) in tensors.items():
        packed = struct.pack("<%d%s" % (len(values), code), *values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


def main():
    random.seed(1)

    def floats(*shape):
        n = 1
        for size in shape:
            n *= size
        return ("F32", "f", list(shape), [random.uniform(-1, 1) for _ in range(n)])

    write(sys.argv[1] if len(sys.argv) > 1 else "mlp_tp.safetensors", {
        "x": floats(4, 6),
        "w1": floats(16, 6),
        "w2": floats(6, 16),
        "b2": floats(6),
        "pos": ("I32", "i", [4], list(range(4))),
        "sample": ("I64", "q", [4], [0] * 4),
    })


main()
