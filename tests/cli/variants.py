# A model or adapter folder with one fault: python3 variants.py SOURCE TARGET FAULT [NAME...]
# SOURCE's safetensors file is written again with the fault; its other files are copied.
import json, os, re, shutil, struct, sys


def read(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    return {name: [t["dtype"], t["shape"], data[slice(*t["data_offsets"])]] for name, t in head.items()}


def write(path, tensors):
    head, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    head = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)


def zeros(dtype, shape):
    n = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "I64": 8, "F8_E4M3": 1}[dtype]
    for size in shape:
        n *= size
    return [dtype, shape, bytes(n)]


def put(tensor, bits):  # one value in the middle: of float32 its bits
    size = {"F32": 4, "BF16": 2, "F16": 2}[tensor[0]]
    value = struct.pack("<I", bits)[4 - size:] if tensor[0] != "F16" else struct.pack("<H", 0x7E00)
    at = len(tensor[2]) // size // 2 * size
    tensor[2] = tensor[2][:at] + value + tensor[2][at + size:]


source, target, fault, *names = sys.argv[1:]
os.makedirs(target)
files = [f for f in os.listdir(source) if f.endswith(".safetensors")]
for f in os.listdir(source):
    if f not in files:
        shutil.copyfile(os.path.join(source, f), os.path.join(target, f))
tensors = read(os.path.join(source, files[0]))
hits = []
if fault not in ("add", "config", "rename"):
    hits = [name for name in tensors if any(re.search(n, name) for n in names)]
    assert hits, names
if fault == "drop":
    for name in hits:
        del tensors[name]
elif fault in ("nan", "inf", "huge"):
    put(tensors[hits[0]], {"nan": 0x7FC00000, "inf": 0xFF800000, "huge": 0x7F7FFFFF}[fault])
elif fault == "rows":  # one more
    dtype, shape, _ = tensors[hits[0]]
    tensors[hits[0]] = zeros(dtype, [shape[0] + 1, *shape[1:]])
elif fault == "flat":
    dtype, shape, content = tensors[hits[0]]
    tensors[hits[0]] = [dtype, [len(zeros("I8", shape)[2])], content]
elif fault == "type":
    tensors[hits[0]] = zeros("I8", tensors[hits[0]][1])
elif fault == "float8":
    tensors[hits[0]] = zeros("F8_E4M3", tensors[hits[0]][1])
elif fault == "add":
    for name in names:
        tensors[name] = zeros("F32", [4, 4])
elif fault == "rename":  # OLD NEW
    tensors = {re.sub(names[0], names[1], name): t for name, t in tensors.items()}
elif fault == "config":  # FILE KEY=JSON...
    path = os.path.join(target, names[0])
    with open(path) as f:
        config = json.load(f)
    config.update((k, json.loads(v)) for k, v in (n.split("=", 1) for n in names[1:]))
    with open(path, "w") as f:
        json.dump(config, f)
write(os.path.join(target, files[0]), tensors)
