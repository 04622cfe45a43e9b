#!/usr/bin/env python3
"""Learning a byte-level BPE: `dhelix tokenize --train-bpe` beside Hugging Face's tokenizers.

Both read the same files, learn a vocabulary of the same size on as many threads and write
tokenizer.json; they take turns. dhelix is timed as a whole command, tokenizers without starting
Python and importing it. Prints seconds of each (median, least, most) and their ratio, and fails
where the vocabularies differ. Needs the Python package `tokenizers`.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

THEIRS = """
import sys, time
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
size, out, *files = sys.argv[1:]
start = time.perf_counter()
t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.decoder = decoders.ByteLevel()
# Whole texts, as dhelix has them: t.train(files) cuts these into lines first, and learns others.
texts = (open(f, encoding="utf-8", newline="").read() for f in files)
t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=int(size), show_progress=False,
                                                 special_tokens=["<|endoftext|>"],
                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
t.save(out)
print(time.perf_counter() - start)
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="*", type=Path, help="text; without any this project's own: docs, sources, tests")
    p.add_argument("--dhelix", default=ROOT / "build/release/src/cli/dhelix")
    p.add_argument("--python", default=sys.executable, help="that has tokenizers")
    p.add_argument("--size", type=int, nargs="+", default=[8000, 32000])
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5, help="after one that is not counted")
    return p.parse_args()


def own_text():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md", "*.c", "*.h", "*.txt", "*.sh", "*.py"],
                            capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split()]


def train_ours(a, size, files, out):
    start = time.perf_counter()
    subprocess.run([a.dhelix, "tokenize", "--train-bpe", str(size), *files, "-o", out], check=True,
                   capture_output=True, env=os.environ | {"OMP_NUM_THREADS": str(a.threads)})
    return time.perf_counter() - start


def train_theirs(a, size, files, out):
    done = subprocess.run([a.python, "-c", THEIRS, str(size), out, *files], check=True, capture_output=True, text=True,
                          env=os.environ | {"RAYON_NUM_THREADS": str(a.threads), "TOKENIZERS_PARALLELISM": "true"})
    return float(done.stdout)


def vocabulary(path):
    return set(json.loads(path.read_text())["model"]["vocab"])


def main():
    a = arguments()
    files = [str(f) for f in (a.files or own_text())]
    n_bytes = sum(os.path.getsize(f) for f in files)
    print(f"{len(files)} files, {n_bytes / 1e6:.1f} MB, {a.threads} threads, {a.rounds} rounds")
    print(f"{'size':>6}  {'dhelix s':>20}  {'tokenizers s':>20}  theirs / ours")
    with tempfile.TemporaryDirectory() as tmp:
        for size in a.size:
            ours, theirs = [], []
            for i in range(a.rounds + 1):
                ours.append(train_ours(a, size, files, f"{tmp}/ours{size}.{i}"))
                theirs.append(train_theirs(a, size, files, f"{tmp}/theirs.json"))
            if vocabulary(Path(f"{tmp}/ours{size}.0/tokenizer.json")) != vocabulary(Path(f"{tmp}/theirs.json")):
                sys.exit(f"vocabularies of {size} differ")
            ours, theirs = ours[1:], theirs[1:]
            text = [f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in (ours, theirs)]
            print(f"{size:>6}  {text[0]:>20}  {text[1]:>20}  "
                  f"{statistics.median(t / o for o, t in zip(ours, theirs)):.2f}")


if __name__ == "__main__":
    main()
