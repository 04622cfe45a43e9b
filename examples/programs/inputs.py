#!/usr/bin/env python3
"""Writes mlp_tp.safetensors and adam_dp.safetensors: what mlp_tp.graph and adam_dp.graph are given.
Standard library only.

A safetensors file is 8 bytes of length, a JSON header, then the data."""
import json
import os
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

    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    write(os.path.join(folder, "mlp_tp.safetensors"), {
        "x": floats(4, 6),
        "w1": floats(16, 6),
        "w2": floats(6, 16),
        "b2": floats(6),
        "pos": ("I32", "i", [4], list(range(4))),
        "sample": ("I64", "q", [4], [0] * 4),
    })
    p, m, own = floats(8, 4), floats(8, 4), floats(16, 4)
    write(os.path.join(folder, "adam_dp.safetensors"), {
        "p": p,
        "m": m,
        "v": m[:3] + ([x * x for x in m[3]],),
        "own": own,  # 8 rows of each of two ranks
        "norm": ("F64", "d", [1, 2], [1.0, 1.0]),
    })


main()
