"""Hostile files for every reader: python3 tests/faults/hostile.py DHELIX [options]

  --full           every odd file and 200 drawn ones for each reader, in place of 2 and 4
  --drawn N        so many drawn ones
  --reader NAME    this reader alone (may be repeated)
  --seed N         of what is drawn
  --keep FOLDER    files that failed are copied there
  --table          a line for each reader
  --seeds          only the files as they are, which each reader accepts

Each reader gets files that are odd by hand (empty, nested deeply, huge numbers, broken encodings, ...), a
FIFO, a device, a folder and a link to itself in the file's place, and drawn damages of a file that it reads.
A run passes when it ends by itself within the limit of time, below the limit of memory, with exit code 0 or
with one line of error.
"""
import argparse
import gzip
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

SECONDS = 10  # of the processor: the machine's load is no fault of a reader
WAIT = 60  # seconds altogether, for what waits without end
MEMORY = 1 << 30  # resident; what a run of a small model needs is below 100 MB
WEIGHTS = "tests/data/weights/"
TOKENIZERS = "tests/data/tokenizers/"

# ---- readers: name, file that is read, other files, its name in the folder, command ---------------


def job(**settings):
    lines = {
        "model": "{family: gpt2, n_layers: 1, n_heads: 2, width: 16, max_seq: 32}",
        "data": "{train: text.txt, tokenizer: bytes, val_fraction: 0.2}",
        "train": "{steps: 1, batch: 1, micro_batch: 1, seq_len: 16, threads: 1}",
        "out": "run",
    }
    lines.update(settings)
    return "".join(f"{key}: {value}\n" for key, value in lines.items()).encode()


TEXT = b"First Citizen: we are accounted poor citizens, the patricians good.\n" * 40
CHATS = open("tests/data/chat/chat.jsonl", "rb").read() if os.path.exists("tests/data/chat") else b""
LENGTHS = "".join(f"{1 + 37 * i % 2000}\n" for i in range(300)).encode()
IDX = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 8, 9) + struct.pack("<8i", *[4] * 8) +
       struct.pack("<8q", *range(0, 64, 8)) + struct.pack("<9q", *range(9)))
TOKENS = struct.pack("<256i", 20240520, 1, 100, *[0] * 253) + struct.pack("<100H", *range(100, 200))


def read(path):
    with open(path, "rb") as f:
        return f.read()


def model(folder, *names, place="model"):
    return {f"{place}/{name}": WEIGHTS + f"{folder}/{name}" for name in names}


def named(path):
    """A seed of a fuzz target whose first byte says what the file is called."""
    return read(path)[1:]


def readers():
    plain = {"text.txt": TEXT, "job.yaml": job()}
    tokenize = ["tokenize", "text.txt", "--tokenizer"]
    train = ["train", "job.yaml", "--quiet", "--fresh"]
    convert = ["convert", "model", "out", "--replace"]
    qwen = model("tiny-qwen2", "config.json", "model.safetensors")
    lora = {**model("lora-qwen2", "adapter_config.json", "adapter_model.safetensors"),
            **model("tiny-qwen2", "config.json", "model.safetensors", place="base")}
    based = convert + ["--base", "base"]
    like = ["--like", "h100"]
    measured = "fuzz/corpus/measurements/"
    graph = "examples/programs/mlp_tp.graph"
    shards = {"model/model.safetensors": None,
              "model/a.safetensors": WEIGHTS + "tiny-qwen2/model.safetensors"}
    # name: (seed file or bytes, where it lies, other files, command, what makes the seed)
    return {
        "job": (job(), "job.yaml", plain, ["check", "job.yaml"]),
        "cluster": ("fuzz/corpus/cluster/h200.yaml", "cluster.yaml", plain,
                    ["plan", "job.yaml", "--cluster", "cluster.yaml"]),
        "config": (WEIGHTS + "tiny-qwen2/config.json", "model/config.json", qwen, convert),
        "safetensors": (WEIGHTS + "tiny-qwen2/model.safetensors", "model/model.safetensors", qwen, convert),
        "index": (index(WEIGHTS + "tiny-qwen2/model.safetensors", "a.safetensors"),
                  "model/model.safetensors.index.json", {**qwen, **shards}, convert),
        "weights_bin": (WEIGHTS + "stories260K/stories260K.bin", "model/model.bin",
                        {**plain, "model/config.json": WEIGHTS + "stories260K/config.json"},
                        ["convert", "model/model.bin", "out", "--replace"]),
        "adapter_config": (WEIGHTS + "lora-qwen2/adapter_config.json", "model/adapter_config.json", lora, based),
        "adapter": (WEIGHTS + "lora-qwen2/adapter_model.safetensors", "model/adapter_model.safetensors", lora, based),
        "tokenizer_json": ("fuzz/corpus/tokenizer/hf_bert.json", "t.json", plain, tokenize + ["t.json"]),
        "tokenizer_config": (b'{"bos_token": "[CLS]", "eos_token": {"content": "[SEP]"}}', "t/tokenizer_config.json",
                             {**plain, "t/tokenizer.json": "fuzz/corpus/tokenizer/hf_bert.json"}, tokenize + ["t"]),
        "tokenizer_spm": ("fuzz/corpus/tokenizer/spm.model", "t.model", plain, tokenize + ["t.model"]),
        "tokenizer_bin": ("fuzz/corpus/tokenizer/llama2c.bin", "t.bin", plain, tokenize + ["t.bin"]),
        "vocab_txt": ("fuzz/corpus/tokenizer/wordpiece_vocab.txt", "vocab.txt", plain, tokenize + ["vocab.txt"]),
        "chat": (CHATS, "c.jsonl", {"tok/tokenizer.json": "tests/data/chat/tokenizer.json"},
                 ["tokenize", "c.jsonl", "--tokenizer", "tok/tokenizer.json", "--chat-template", "chatml"]),
        "template": (b"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}",
                     "tok/chat_template.jinja",
                     {"c.jsonl": CHATS, "tok/tokenizer.json": "tests/data/chat/tokenizer.json"},
                     ["tokenize", "c.jsonl", "--tokenizer", "tok", "--chat-template", "auto"]),
        "jsonl": (b'{"text": "some text"}\n{"text": "more \\u00e9"}\n' * 20, "t.jsonl", {},
                  ["tokenize", "t.jsonl", "--tokenizer", "bytes"]),
        "text": (TEXT, "text.txt", {}, ["tokenize", "text.txt", "--tokenizer", "bytes"]),
        "gzip": (named("fuzz/corpus/texts/text.txt.gz"), "t.txt.gz", {}, ["tokenize", "t.txt.gz", "--tokenizer", "bytes"]),
        "zstd": (named("fuzz/corpus/texts/talks.jsonl.zst"), "t.txt.zst", {},
                 ["tokenize", "t.txt.zst", "--tokenizer", "bytes"]),
        "tokens": (TOKENS, "t.bin", {"job.yaml": job(data="{train: t.bin, val_fraction: 0}")},
                   train),
        "megatron_idx": (IDX, "t.idx", {"t.bin": struct.pack("<64H", *range(64)), "job.yaml": job(
            data="{train: t.bin, val_fraction: 0}")}, train),
        "trace": (named(measured + "trace.json"), "trace.json", {}, ["calibrate", "trace.json"] + like),
        "trace_gz": (gzip.compress(named(measured + "trace.json")), "trace.json.gz", {},
                     ["calibrate", "trace.json.gz"] + like),
        "nccl": (named(measured + "all_reduce.txt"), "all_reduce.txt", {}, ["calibrate", "all_reduce.txt"] + like),
        "gemm": (named(measured + "gemm.csv"), "gemm.csv", {}, ["calibrate", "gemm.csv"] + like),
        "pairs": ("tests/data/published/dhelix_h100_pairwise_oef_matrix.csv", "pairs.csv", plain,
                  ["profile", "job.yaml", "--import", "pairs.csv", "--out", "p.json"]),
        "profile": (named(measured + "profile.json"), "p.json", {}, ["calibrate", "p.json"] + like),
        "order": ("fuzz/corpus/schedule/1f1b.csv", "order.csv", {**plain, "job.yaml": job(
            parallel="{pp: 2, schedule: order.csv}",
            model="{family: gpt2, n_layers: 2, n_heads: 2, width: 16, max_seq: 32}",
            train="{steps: 1, batch: 3, micro_batch: 1, seq_len: 16, threads: 1}")}, ["check", "job.yaml"]),
        "lengths": (LENGTHS, "lengths.txt", {**plain, "job.yaml": job(
            train="{steps: 1, batch: 8, micro_batch: 1, seq_len: 32, threads: 1}")},
                    ["tune", "job.yaml", "--lengths", "lengths.txt", "--cluster", "h100", "--devices", "2"]),
        "graph": (graph, "p.graph", {"in.safetensors": "examples/programs/mlp_tp.safetensors"},
                  ["run-graph", "p.graph", "--ranks", "2", "--inputs", "in.safetensors"]),
        "graph_inputs": ("examples/programs/mlp_tp.safetensors", "in.safetensors", {"p.graph": graph},
                         ["run-graph", "p.graph", "--ranks", "2", "--inputs", "in.safetensors"]),
        "metrics": (b'{"step":1,"loss":5.5,"lr":0.001,"time_s":0.1}\n' * 30, "run/metrics.jsonl",
                    {"run/job.yaml": job(), "run/summary.json": b"{}"}, ["report", "run"]),
        "summary": (b'{"steps": 30, "loss": 1.5, "ranks": [{"rank": 0}]}', "run/summary.json",
                    {"run/job.yaml": job(), "run/metrics.jsonl": b'{"step":1,"loss":5.5}\n'}, ["report", "run"]),
        "run_trace": (b'{"traceEvents": [{"name": "x", "ph": "X", "ts": 1, "dur": 2, "pid": 0, "tid": 0}]}',
                      "run/trace-rank0.json", {"run/job.yaml": job(), "run/metrics.jsonl": b'{"step":1,"loss":5}\n'},
                      ["report", "run", "--traces", "all.json"]),
        "saved": (None, "run/saved.json", plain, ["train", "job.yaml", "--quiet"], train),
        "experts": (None, "run/experts.json", {**plain, "job.yaml": job(
            model="{family: mixtral, n_layers: 1, n_heads: 2, width: 16, ffn_width: 16, n_experts: 2, top_k: 1, "
                  "max_seq: 32}")},
                    ["simulate", "job.yaml", "--cluster", "h100", "--set", "moe.recorded=run"], train),
        "manifest": (None, "run/checkpoints/step-000001/manifest.json", plain, ["verify", "run"], train),
        "state": (None, "run/checkpoints/step-000001/state.json", plain, ["train", "job.yaml", "--quiet"], train),
        "token_ids": (TOKENS, "ids.bin", {}, ["tokenize", "ids.bin", "--tokenizer", "bytes", "--decode"]),
    }


# ---- files that are odd by hand --------------------------------------------------------------------


def by_hand(seed, name):
    """Pairs of a name and a file's bytes."""
    yield "empty", b""
    yield "one zero", b"\0"
    yield "zeros", bytes(4096)
    yield "all ones", b"\xff" * 4096
    yield "bom", b"\xef\xbb\xbf" + seed
    yield "crlf", seed.replace(b"\n", b"\r\n")
    yield "utf-16", seed.decode("latin-1").encode("utf-16")
    yield "nul inside", seed[:len(seed) // 2] + b"\0" + seed[len(seed) // 2:]
    yield "half", seed[:len(seed) // 2]
    yield "twice", seed + seed
    yield "trailing", seed + b"\xff" * 100
    yield "nested lists", b"[" * 200000
    yield "nested maps", b'{"a":' * 100000
    yield "nested and closed", b'{"x":' + b"[" * 50000 + b"]" * 50000 + b"}"
    yield "nested yaml", b"\n".join(b" " * i + b"a:" for i in range(2000))
    yield "anchors", b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(12))
    yield "long line", b"a" * 4000000
    yield "long string", b'{"text": "' + b"a" * 4000000 + b'"}\n'
    yield "many lines", b"{}\n" * 300000
    yield "commas", b"," * 1000000
    yield "lone surrogate", b'{"text": "\\ud800", "messages": [{"role": "user", "content": "\\udc00"}]}\n'
    yield "not utf-8", b'{"text": "\xff\xfe\xc0\x80\xed\xa0\x80", "messages": "\xf5"}\n'
    yield "repeated keys", b'{"text": "a", "text": "b", "vocab": {"a": 1, "a": 1}, "messages": [], "messages": [[]]}\n'
    yield "escapes", b'{"text": "\x1b[31m\x1b]0;x\x07", "architectures": ["\x1b[2J"]}\n'
    for number in (b"NaN", b"1e308", b"-1e308", b"1e999999", b"-1", b"9223372036854775807", b"9223372036854775808",
                   b"18446744073709551616", b"1e-308", b"-0", b"0x10", b"4294967296", b"1" * 5000):
        yield f"numbers {number[:24].decode()}", replace_numbers(seed, number)
    for size in (0, 1, 2 ** 31, 2 ** 32, 2 ** 63 - 1, 2 ** 63, 2 ** 64 - 1):
        yield f"header {size}", struct.pack("<Q", size) + seed[8:]
    if name in ("gzip", "trace_gz"):
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(2000)) + packer.flush()
        yield "bomb", bomb
        yield "bombs", bomb * 4
    if name == "index":
        for path in ("../a.safetensors", "/etc/passwd", "a.safetensors/../../x", "", ".", "a" * 5000, "/dev/zero"):
            yield f"outside {path[:30]}", b'{"weight_map": {"model.norm.weight": "%s"}}' % path.encode()


def index(path, shard):
    """Of a file of weights under another name."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    names = [name for name in header if name != "__metadata__"]
    return json.dumps({"metadata": {}, "weight_map": {name: shard for name in names}}).encode()


def replace_numbers(seed, number):
    out, at = bytearray(), 0
    while at < len(seed) and len(out) < 4000000:
        end = at
        while end < len(seed) and 48 <= seed[end] < 58:
            end += 1
        out += number if end > at else seed[at:at + 1]
        at = max(end, at + 1)
    return bytes(out)


# ---- drawn damages -----------------------------------------------------------------------------------

PIECES = [b"NaN", b"1e308", b"-1", b"9223372036854775808", b"4294967295", b"\0", b"\xff\xff\xff\xff", b"[[[[[[[[",
          b'{"a":', b'"', b"'", b"\n", b"\r\n", b"null", b"true", b"{}", b"[]", b'""', b"\\u0000", b"\\ud800", b",,",
          b"../", b"%s%n", b"\xed\xa0\x80", b"&a *a", b"{{", b"{%", b"%}"]


def damaged(draw, seed):
    out = bytearray(seed)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        kind, at = draw.randrange(7), draw.randrange(len(out) + 1)
        until = min(len(out), at + draw.choice((1, 2, 4, 8, 64, 1000)))
        if kind == 0:
            out = out[:at]
        elif kind == 1 and at < len(out):
            out[at] = draw.randrange(256)
        elif kind == 2 and at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        elif kind == 3:
            out[at:until] = b""
        elif kind == 4:
            out[at:at] = draw.choice(PIECES)
        elif kind == 5:
            out[at:at] = out[at:until] * draw.choice((1, 2, 50))
        else:
            out[at:until] = draw.choice(PIECES)
    return bytes(out)


# ---- running ------------------------------------------------------------------------------------------


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if data is None:
        return
    with open(path, "wb") as f:
        f.write(read(data) if isinstance(data, str) else data)


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS * SLOWER, SECONDS * SLOWER + 1))


def run(program, command, folder):
    """What is wrong with a run, "" if nothing is; its resident bytes, its seconds, its exit code."""
    env = dict(os.environ, DHELIX_LOG="error", DHELIX_GEMM_PEAK="1e11", OMP_NUM_THREADS="1", XDG_CACHE_HOME=folder,
               ASAN_OPTIONS="detect_leaks=1:exitcode=99:allocator_may_return_null=1:hard_rss_limit_mb=4096",
               UBSAN_OPTIONS="halt_on_error=1:exitcode=99")
    began = time.monotonic()
    with open(folder + "/.stderr", "wb") as err:
        child = subprocess.Popen([program] + command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=err, env=env, preexec_fn=limit)
        late = threading.Timer(WAIT * SLOWER, child.send_signal, (signal.SIGKILL,))
        late.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        late.cancel()
    seconds, resident = time.monotonic() - began, usage.ru_maxrss * 1024
    message = read(folder + "/.stderr").decode("utf-8", "backslashreplace")
    busy = usage.ru_utime + usage.ru_stime
    errors = sum(line.startswith("dhelix: error: ") for line in message.splitlines())
    wrong = judge(child.returncode, message, errors, seconds, resident, busy)
    return wrong, resident, busy, child.returncode


def judge(code, message, errors, seconds, resident, busy):
    if seconds >= WAIT * SLOWER or code == -signal.SIGXCPU:
        return f"took {seconds:.1f} s, {busy:.1f} s of the processor"
    if code < 0:
        return f"ended by signal {-code}"
    if code not in (0, 1, 2):
        return f"exit code {code}: {message[:1500]}"
    if code and errors != 1:
        return f"{errors} lines of error: {message[:300]}"
    if resident > MEMORY * SLOWER:
        return f"{resident >> 20} MiB resident"
    return ""


def special_files(path):
    """Puts what is no regular file in a file's place, one after the other."""
    for name in ("fifo", "/dev/zero", "/dev/stdin", "/dev/full", "folder", "loop", "sparse", "absent"):
        if name == "fifo":
            os.mkfifo(path)
        elif name == "folder":
            os.mkdir(path)
        elif name == "loop":
            os.symlink(os.path.basename(path), path)
        elif name == "sparse":
            with open(path, "wb") as f:
                f.truncate(1 << 41)
        elif name != "absent":
            os.symlink(name, path)
        yield name
        if name == "folder":
            os.rmdir(path)
        elif name != "absent":
            os.unlink(path)


class Tally:
    def __init__(self, keep):
        self.keep, self.n, self.failed, self.most, self.longest = keep, 0, 0, 0, 0.0

    def count(self, reader, case, path, result):
        wrong, resident, seconds, self.code = result
        self.n += 1
        self.most, self.longest = max(self.most, resident), max(self.longest, seconds)
        if not wrong:
            return
        self.failed += 1
        print(f"FAILED: {reader}, {case}: {wrong}", flush=True)
        if self.keep and os.path.isfile(path) and not os.path.islink(path):
            os.makedirs(self.keep, exist_ok=True)
            shutil.copy(path, f"{self.keep}/{reader}-{self.n}-{os.path.basename(path)}")


def try_reader(program, name, reader, options):
    seed, place, others, command, *before = reader
    tally, draw = Tally(options.keep), random.Random(f"{options.seed} {name}")
    with tempfile.TemporaryDirectory(prefix="dhelix-hostile-") as folder:
        for other, data in others.items():
            write(f"{folder}/{other}", data)
        path = f"{folder}/{place}"
        for made in before:
            run(program, made, folder)
        seed = read(path) if seed is None else read(seed) if isinstance(seed, str) else seed
        write(path, seed)
        attempt = lambda case: tally.count(name, case, path, run(program, command, folder))  # noqa: E731
        attempt("as it is")
        if not tally.failed and tally.code:
            tally.failed += 1
            print(f"FAILED: {name}, as it is: {read(folder + '/.stderr').decode(errors='replace')}", flush=True)
        if options.seeds:
            return tally
        hand = list(by_hand(seed, name))
        if not options.full:  # a few of them, others for each reader
            hand = draw.sample(hand, 2)
        cases = hand + [(f"damage {i}", damaged(draw, seed)) for i in range(options.drawn)]
        cut = range(0, len(seed), max(1, len(seed) // max(1, options.drawn // 2))) if options.full else ()
        for case, data in cases + [(f"cut at {n}", seed[:n]) for n in cut]:
            write(path, data)
            attempt(case)
        os.unlink(path)
        for case in special_files(path):
            if options.full or case in ("fifo", "/dev/zero"):
                attempt(case)
    return tally


def main():
    global SLOWER
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--reader", action="append")
    parser.add_argument("--seed", default=os.environ.get("DHELIX_TEST_SEED", "7405934735833"))
    parser.add_argument("--keep")
    parser.add_argument("--seeds", action="store_true")
    parser.add_argument("--drawn", type=int)
    options = parser.parse_args()
    program = os.path.abspath(options.program)
    if options.drawn is None:
        options.drawn = 200 if options.full else 4
    SLOWER = 4 if b"__asan_init" in read(program) else 1
    print(f"hostile: DHELIX_TEST_SEED={options.seed}")
    n, failed = 0, 0
    for name, reader in readers().items():
        if options.reader and name not in options.reader:
            continue
        tally = try_reader(program, name, reader, options)
        n, failed = n + tally.n, failed + tally.failed
        if options.table or tally.failed:
            print(f"{name:16} {tally.n:5} files, {tally.failed:3} failed, at most {tally.most >> 20:4} MiB, "
                  f"{tally.longest:5.2f} s of the processor", flush=True)
    print(f"{n} hostile files, {failed} failed")
    sys.exit(failed > 0)


SLOWER = 1
if __name__ == "__main__":
    main()
