"""Checks of speed: kernels, training steps beside PyTorch's, hidden communication."""
import csv
import json
import statistics
import struct
from pathlib import Path

from bench import HERE, Failed, Skipped, json_lines

# Model, its settings, sequences a step, their length; the same in numbers for torch_step.py.
MODELS = [
    ("GPT-2 124M", "gpt2", 16, 1024, {"kind": "gpt2", "layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "ffn": 3072, "vocab": 50257}),
    ("Llama 1B", "{family: llama, n_layers: 16, width: 2048, n_heads: 32, n_kv_heads: 8, head_dim: 64, ffn_width: 8192, vocab: 32768,"
     " max_seq: 4096, tied_head: true}", 4, 2048,
     {"kind": "llama", "layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 32768}),
]
SMALL_MODEL = ("GPT-2 of 2 layers", "{family: gpt2, n_layers: 2, width: 32, n_heads: 2, vocab: 256, max_seq: 32}", 2, 16,
               {"kind": "gpt2", "layers": 2, "width": 32, "heads": 2, "kv_heads": 2, "ffn": 128, "vocab": 256})
WARMUP, TIMED = 4, 12


# ---- kernels ---------------------------------------------------------------------------------------------------


def rate_checks(make):
    def run(b):
        b.need_gpu()
        words = [b.program("bench_gpu"), *(["--small", "--seconds", "0"] if b.small else [])]
        rows = [json.loads(line) for line in b.run(words, 240).out.splitlines() if line.startswith("{")]
        b.figures["rates"] = rows
        peaks = {r["case"]: r for r in rows if r["model"] == "machine"}
        b.machine()["peaks"] = {name: f"{r['rate']:.4g} {r['unit']}" for name, r in peaks.items()}
        slow = sorted((r for r in rows if "of_peak" in r), key=lambda r: r["of_peak"])[:3]
        return (", ".join(f"{name} {rate}" for name, rate in b.machine()["peaks"].items())
                + "; farthest from it: " + ", ".join(f"{r['case']} of {r['model']} {r['of_peak']:.0%}" for r in slow))
    return lambda b: [make("products, attention, norms and others, in bf16", run, 20)]


# ---- steps -----------------------------------------------------------------------------------------------------


def write_tokens(path, vocab, n_tokens):
    """An llm.c token file of evenly drawn ids below vocab."""
    state, ids = 1337, []
    for _ in range(n_tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocab)
    path.write_bytes(struct.pack("<256i", *([20240520, 1, n_tokens] + [0] * 253)) + struct.pack(f"<{n_tokens}H", *ids))


def train(b, model, more, steps):
    """A run of ours: times of its steps behind the first ones, the rate of its model's products, its summary."""
    name, text, batch, length, sizes = model
    tokens, job, out = b.work / "tokens.bin", b.work / "job.yaml", b.work / "run"
    if not tokens.exists():
        write_tokens(tokens, sizes["vocab"], batch * length * 4 + 1)
    job.write_text(f"model: {text}\ndata: {{train: {tokens}, val_fraction: 0}}\n"
                   f"train: {{steps: {steps}, batch: {batch}, micro_batch: {batch}, seq_len: {length}, dtype: bf16, seed: 1337}}\n"
                   "optimizer: {lr: 1e-4, schedule: constant}\neval: {every: 0}\ncheckpoint: {last: false}\n", encoding="utf-8")
    flags = []
    for word in [*more, "device=cuda", f"out={out}"]:
        flags += ["--set", word]
    hang = {"DHELIX_CUDA_HANG_S": "60", **({"DHELIX_GEMM_PEAK": "1e12", "OMP_NUM_THREADS": "1"} if b.small else {})}
    b.run([b.program("dhelix"), "train", job, "--quiet", "--fresh", *flags], 180, hang)
    rows = [r for r in json_lines(out / "metrics.jsonl") if "step_ms" in r][-max(1, steps - WARMUP):]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return {"step_ms": [r["step_ms"] for r in rows], "flops": statistics.median(r["model_flops_per_s"] * r["step_ms"] / 1e3 for r in rows),
            "peak": summary.get("gemm_peak_flops_per_s", 0), "operators": summary.get("operator_share", {}), "loss": rows[-1].get("loss")}


def torch_step(b, model, steps):
    """The same model in PyTorch, or None where there is none."""
    torch = b.machine().get("torch", {})
    if not torch.get("gpu"):
        return None
    _, _, batch, length, sizes = model
    spec = dict(sizes, batch=batch, length=length, warmup=WARMUP, steps=steps - WARMUP)
    done = b.run([torch["python"], HERE / "torch_step.py", json.dumps(spec)], 240)
    return json.loads(next(line for line in done.out.splitlines() if line.startswith("{")))["step_ms"]


def step_checks(make):
    def run(model):
        def check(b):
            b.need_gpu()
            name, _, batch, length, _ = model
            turns, steps = (1, 3) if b.small else (2, WARMUP + TIMED)
            ours, theirs, said = [], [], ""
            for _ in range(turns):
                last = train(b, model, [], steps)
                ours += last["step_ms"]
                try:
                    theirs += torch_step(b, model, steps) or []
                except Failed as failed:
                    said = f"; PyTorch's step failed: {failed}"
            ms, tokens = statistics.median(ours), batch * length
            mfu = last["flops"] / (ms * 1e-3) / last["peak"] if last["peak"] else 0
            b.figures.update(step_ms=ms, least_ms=min(ours), tokens_per_s=tokens / ms * 1e3, mfu=mfu, peak_flops_per_s=last["peak"],
                             operators=last["operators"])
            text = f"{ms:.2f} ms a step of {batch} x {length} tokens, {tokens / ms * 1e3:,.0f} tokens/s, {mfu:.1%} of the measured peak"
            if theirs:
                torch_ms = statistics.median(theirs)
                b.figures.update(torch_ms=torch_ms, torch_least_ms=min(theirs), torch_tokens_per_s=tokens / torch_ms * 1e3,
                                 over_torch=torch_ms / ms)
                text += f"; PyTorch {torch_ms:.2f} ms in turns: ours is {torch_ms / ms:.2f} times as fast"
            return text + (said or ("" if theirs else "; PyTorch is not there to compare with"))
        return check

    def captured(model):
        def check(b):
            b.need_gpu()
            plain = statistics.median(train(b, model, ["train.capture=off"], WARMUP + TIMED)["step_ms"])
            ms = statistics.median(train(b, model, ["train.capture=on"], WARMUP + TIMED)["step_ms"])
            b.figures.update(step_ms=ms, not_captured_ms=plain)
            return f"{ms:.2f} ms a step captured, {plain:.2f} ms not"
        return check

    def checks(b):
        models = [SMALL_MODEL] if b.small else MODELS
        made = [make(model[0], run(model), 5 if b.small else 60) for model in models]
        return made + ([] if b.small else [make("GPT-2 124M, captured", captured(MODELS[0]), 40)])
    return checks


# ---- hiding ----------------------------------------------------------------------------------------------------


def hiding_checks(make):
    def profile(paced):
        def check(b):
            b.need_gpu()
            width, length = (32, 16) if b.small else (1024, 512)
            text = b.root / "examples/data/tinyshakespeare.txt"
            job, out = b.work / "job.yaml", b.work / "profile.json"
            job.write_text(f"model: {{family: gpt2, n_layers: 2, width: {width}, n_heads: {width // 16 if b.small else 16}, max_seq: {length}}}\n"
                           f"data: {{train: {text}, tokenizer: bytes, val_fraction: 0}}\n"
                           f"train: {{steps: 2, batch: 4, micro_batch: 2, seq_len: {length}, threads: 1, dtype: bf16}}\neval: {{every: 0}}\n",
                           encoding="utf-8")
            words = ["--set", "device=cuda", "--set", "parallel.tp=2", "--set", "parallel.gpu_comm=device"]
            if paced:
                words += ["--set", "links.local.gbps=100", "--set", "links.local.latency_us=5"]
            b.run([b.program("dhelix"), "profile", job, "--quiet", "--out", out, "--samples", "3" if b.small else "11", "--seconds", "60", *words], 150,
                  {"OMP_NUM_THREADS": "1", "DHELIX_GEMM_PEAK": "1e12"})
            found = json.loads(out.read_text(encoding="utf-8"))["profile"]
            name = "pairs-paced.csv" if paced else "pairs-copies.csv"
            n = write_pairs(found, b.out / name)
            b.figures.update(pairs=n, csv=name)
            return f"{n} pairs in {name}"
        return check

    def strategies(b):
        b.need_gpu()
        csv_file = b.out / "hiding.csv"
        words = [b.program("python3") if (b.root / "bin/python3").exists() else "python3", HERE / "overlap.py",
                 "--dhelix", b.program("dhelix"), "--meshes", "tp2", "--shares", "45",
                 "--strategies", "sequential dhelix dhelix-rings", "--dtype", "bf16", "--tolerance", "2e-3", "--csv", csv_file, "--set", "device=cuda", "--set",
                 "parallel.gpu_comm=device", "--widths", "64" if b.small else "1024", "--steps", "2" if b.small else "6", "--rounds", "1" if b.small else "2"]
        b.run(words, 400, {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "TMPDIR": str(b.work)})
        with csv_file.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise Failed("no strategy was measured")
        keys = ("strategy", "step_ms", "speedup", "hidden", "predicted_ms", "prediction_error", "predicted_hidden")
        b.figures["strategies"] = [{k: r[k] for k in keys} for r in rows]
        return "; ".join(f"{r['strategy']} {float(r['step_ms']):.1f} ms ({float(r['speedup']):.2f} times, {float(r['hidden']):.0%} hidden, predicted "
                         f"{float(r['predicted_ms'] or 0):.1f} ms)" for r in rows)

    def no_strategies(b):
        raise Skipped("a rehearsal leaves it out: it takes minutes without a GPU")

    def checks(b):
        made = [make("pairs by copies", profile(False), 20)]
        if not b.small:
            made.append(make("pairs on paced links", profile(True), 20))
        return made + [make("strategies at 45 % of communication, tp 2", no_strategies if b.small else strategies, 60)]
    return checks


def write_pairs(profile, path):
    """The measured matrix: what each pair's two operators took together and alone."""
    operators, rows = profile["operators"], []
    for pair in profile.get("pairs", []):
        a, b = operators[pair["a"]], operators[pair["b"]]
        both, alone = max(pair["a_end"], pair["b_end"]), (a["solo"], b["solo"])
        # 1: the shorter one costs nothing beside the longer one; 0: they might run one after the other.
        hidden = (sum(alone) - both) / max(1, min(alone))
        rows.append({"a": a["label"], "b": b["label"], "a_alone_ns": alone[0], "b_alone_ns": alone[1], "a_end_ns": pair["a_end"],
                     "b_end_ns": pair["b_end"], "effectiveness": f"{hidden:.3f}", "samples": pair["samples"]})
    if not rows:
        raise Failed("the profile has no pair")
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)
