# What commands print of names, settings and files that anybody may have written: every message is one
# line, and no control character and no byte that is no UTF-8 reaches the terminal.
#   python3 tests/cli/messages.py DHELIX [PART_OF_A_CASE]
import fcntl, json, os, shutil, struct, subprocess, sys, tempfile, unicodedata

dhelix, only = os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
HERE = os.getcwd()
# The same words stand behind each: that they are named shows that the text was printed.
EVIL = {
    "erase": b"\x1b[2J evil",
    "title": b"\x1b]0;t\x07 evil",
    "line": b"a\ndhelix: error: forged evil",
    "return": b"a\rdhelix: error: forged evil",
    "c1": "\u009b2J evil".encode(),
    "byte": b"\x9b2J evil",
    "broken": b"\xff\xc3( evil",
    "turned": "\u202e evil".encode(),
}
TEXT = {name: text for name, text in EVIL.items() if name not in ("byte", "broken")}  # UTF-8
n_checks, failures = 0, []


def check(what, holds, *shown):
    global n_checks
    n_checks += 1
    if not holds:
        failures.append(what)
        print("FAILED:", what, *shown)


def is_clean(output):
    try:
        text = output.decode()
    except UnicodeDecodeError:
        return False
    return not any(unicodedata.category(c) in ("Cc", "Zl", "Zp") and c not in "\n\t" or c in "\u202e\u2066"
                   for c in text)


def run(case, words, named=True, codes=(1, 2)):
    """named: the message quotes the text; codes: exit codes"""
    if only not in case:
        return
    words = [w if isinstance(w, bytes) else os.fsencode(w) for w in words]
    environment = dict(os.environ, DHELIX_LOG="info", OMP_NUM_THREADS="1", DHELIX_GEMM_PEAK="1e11")
    r = subprocess.run([os.fsencode(dhelix)] + words, cwd=tmp, stdin=subprocess.DEVNULL, env=environment,
                       capture_output=True, timeout=120)
    shown = (words, r.returncode, r.stderr, r.stdout[:300])
    check(case + ": exit code", r.returncode in codes, *shown)
    check(case + ": standard error", is_clean(r.stderr), *shown)
    check(case + ": standard output", is_clean(r.stdout), *shown)
    lines = r.stderr.decode(errors="replace").splitlines()
    check(case + ": every line of it is the program's", all(l.startswith(("dhelix: ", "dhelix[", "step ")) for l in lines),
          *shown)
    check(case + ": one error", sum(l.startswith("dhelix: error: ") for l in lines) == (r.returncode != 0), *shown)
    check(case + ": it is named", not named or b"evil" in r.stderr, *shown)


def put(path, content):
    if not isinstance(content, bytes):
        content = content.encode()
    with open(os.path.join(os.fsencode(tmp), os.fsencode(path)), "wb") as f:
        f.write(content)


def copy(source, target):
    target = os.path.join(tmp, target)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(os.path.join(HERE, source), target)
    for folder, _, files in os.walk(target):
        for f in files + ["."]:
            os.chmod(os.path.join(folder, f), 0o755)
    return target


def json_with(path, change):
    """A JSON file, changed; text in it as it is, not as \\u escapes."""
    with open(os.path.join(tmp, path)) as f:
        document = json.load(f)
    change(document)
    put(path, json.dumps(document, ensure_ascii=False))


JOB = """model: {name: tiny, family: gpt2, n_layers: 2, n_heads: 2, width: 32, max_seq: 32}
data: {train: %s/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}
train: {steps: 2, batch: 4, micro_batch: 2, seq_len: 32}
eval: {every: 0}
profile: none
""" % HERE
WEIGHTS = HERE + "/tests/data/weights/tiny-mistral"


def paths():
    """Names that are not there, and files and folders of such names."""
    for name, text in EVIL.items():
        no = b"no " + text
        for words in (["train", no], ["check", no], ["simulate", no], ["plan", no], ["tune", no], ["profile", no],
                      ["launch", no, "--ranks", "2"], ["report", no], ["verify", no], ["run-graph", no], ["calibrate", no, "--like", "a40"],
                      ["convert", no, "made"], ["sample", no], ["eval", no, "--data", "text"],
                      ["tokenize", no, "--tokenizer", "bytes", "--stdout"],
                      ["tokenize", "text", "--tokenizer", no, "--stdout"],
                      ["simulate", "job.yaml", "--cluster", no], ["convert", WEIGHTS, no + b"/made"],
                      ["eval", WEIGHTS, "--tokenizer", "bytes", "--data", no],
                      ["profile", "job.yaml", "--from-trace", no, "--out", "made.json"],
                      ["run-graph", HERE + "/examples/programs/mlp_tp.graph", "--ranks", "2", "--inputs", no]):
            run("missing %s: %s" % (name, words[0]), words)
        there = b"there " + text
        put(there, b"\0\1\2 no file of any kind\n")
        for words in (["train", there], ["check", there], ["simulate", there], ["report", there], ["verify", there],
                      ["run-graph", there], ["calibrate", there, "--like", "a40"], ["convert", there, "made"], ["sample", there],
                      ["tokenize", "text", "--tokenizer", there, "--stdout"], ["simulate", "job.yaml", "--cluster", there],
                      ["train", "job.yaml", "--set", b"schedule=" + there, "--set", "parallel.pp=2"],
                      ["train", "job.yaml", "--set", b"model.config=" + there],
                      ["train", "job.yaml", "--set", b"train.init_from=" + there],
                      ["train", "job.yaml", "--set", b"profile=" + there],
                      ["train", "job.yaml", "--set", b"out=" + there]):
            run("damaged %s: %s" % (name, words[0]), words, named=False)
        put(b"text " + text, "some words of a text\n" * 200)
        run("tokenize %s" % name, ["tokenize", b"text " + text, "--tokenizer", "bytes", "-o", b"ids " + text], False, (0,))
        run("train %s" % name, ["train", "job.yaml", "--fresh", "--set", b"out=run " + text], False, (0, 1))


def settings():
    for name, text in EVIL.items():
        for words in ([text], [b"--" + text], ["help", text], ["list", text], ["check", "job.yaml", b"--" + text],
                      ["check", "job.yaml", "--set", text + b"=1"], ["check", "job.yaml", "--set", text],
                      ["check", "job.yaml", "--set", b"train." + text + b"=1"],
                      ["check", "job.yaml", "--set", b"train.steps=" + text],
                      ["check", "job.yaml", "--set", b"train.dtype=" + text],
                      ["check", "job.yaml", "--set", b"model=" + text],
                      ["check", "job.yaml", "--set", b"strategy=" + text],
                      ["check", "job.yaml", "--set", b"model.family=" + text],
                      ["check", "job.yaml", "--print", text], ["check", "job.yaml", text],
                      ["simulate", "job.yaml", "--cluster", "a40", "--strategies", text],
                      ["simulate", "job.yaml", "--cluster", "a40", "--ranks", text],
                      ["simulate", "job.yaml", "--cluster", "a40", "--table", text + b"=1,2"],
                      ["tokenize", "text", "--tokenizer", text, "--stdout"],
                      ["tokenize", "--tokenizer", "bytes", "--decode", text],
                      ["convert", WEIGHTS, "made", "--dtype", text], ["report", "run", "--out", text + b"/a"],
                      ["validate", text], ["completion", text], ["sample", WEIGHTS, "--temperature", text]):
            run("setting %s: %s" % (name, words[0] if words[0] != text else ""), words, named=False)


def jobs():
    for name, text in EVIL.items():
        put("evil.yaml", b"model: {name: tiny, \"" + text.replace(b"\n", b"\\n").replace(b"\r", b"\\r") + b"\": 1}\n")
        run("key of a job %s" % name, ["check", "evil.yaml"], named=False)
    for name, text in TEXT.items():
        quoted = json.dumps(text.decode())
        for form in ("{%s: 1}", "train: {%s: 1}", "train: {steps: %s}", "model: %s", "model: {family: %s}",
                     "data: {train: %s}", "train: {init_from: %s}", "data: {weights: [%s]}", "%s"):
            put("evil.yaml", form % quoted + "\n")
            run("job %s: %s" % (name, form), ["check", "evil.yaml"])
            run("cluster %s: %s" % (name, form), ["simulate", "job.yaml", "--cluster", "evil.yaml"], named=False)


def models():
    for name, text in TEXT.items():
        text = text.decode()
        for key in ("model_type", "hidden_act", text):
            copy("tests/data/weights/tiny-mistral", "model")
            json_with("model/config.json", lambda c: c.update({key: text}))
            for words in (["eval", "model", "--tokenizer", "bytes", "--data", "text"], ["convert", "model", "made"],
                          ["check", "job.yaml", "--set", "model.config=model/config.json"]):
                run("config %s, %s: %s" % (name, key == text or key, words[0]), words, False, (0, 1))
                shutil.rmtree(tmp + "/made", ignore_errors=True)
        copy("tests/data/weights/tiny-mistral", "model")
        with open(tmp + "/model/model.safetensors", "r+b") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            head, data = json.loads(f.read(n)), f.read()
            head = {text if k == "model.norm.weight" else k: v for k, v in head.items()}
            head = json.dumps(head, ensure_ascii=False).encode()
            f.seek(0)
            f.write(struct.pack("<Q", len(head)) + head + data)
        run("tensor %s" % name, ["convert", "model", "made"], named=False)
        copy("tests/data/weights/lora-qwen2", "adapter")
        json_with("adapter/adapter_config.json", lambda c: c.update({"peft_type": text}))
        run("adapter %s" % name, ["convert", "adapter", "made", "--base", HERE + "/tests/data/weights/tiny-qwen2"])
        for where in (["model", "type"], ["pre_tokenizer", "type"], ["normalizer", "type"], ["decoder", "type"]):
            os.makedirs(tmp + "/tokenizer", exist_ok=True)
            put("tokenizer/tokenizer.json", json.dumps(
                {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, where[0]: {where[1]: text}},
                ensure_ascii=False))
            run("tokenizer %s: %s" % (name, where[0]), ["tokenize", "text", "--tokenizer", "tokenizer", "--stdout"])
        put("chat.jsonl", json.dumps({"messages": [{"role": text, "content": "x"}]}, ensure_ascii=False) + "\n")
        run("chat %s" % name, ["tokenize", "--tokenizer", HERE + "/tests/data/chat", "--chat-template", "chatml",
                               "chat.jsonl", "--stdout"], named=False)


def lists():
    for name, text in EVIL.items():
        put("evil.csv", b"rank,slot," + text + b"\n0,0," + text + b"\n")
        run("schedule %s" % name, ["check", "job.yaml", "--set", "schedule=evil.csv", "--set", "parallel.pp=2"], False)
        put("evil.csv", b"m,n,k,dtype,tflops\n1,2,3," + text.replace(b"\n", b" ") + b",100\n")
        run("GEMMs %s" % name, ["calibrate", "evil.csv", "--like", "a40"], False)
        put("evil.graph", b"graph " + text + b"\n" + text + b"\n")
        run("graph %s" % name, ["run-graph", "evil.graph", "--ranks", "2"], False)
        put("lengths", text)
        run("lengths %s" % name, ["tune", "job.yaml", "--cluster", "a40", "--devices", "2", "--lengths", "lengths"], False)
        put("ids", text)
        with open(tmp + "/ids", "rb") as ids:
            r = subprocess.run([dhelix, "tokenize", "--tokenizer", "bytes", "--decode"], stdin=ids, capture_output=True)
        check("ids " + name, r.returncode == 1 and is_clean(r.stderr) and r.stderr.count(b"\n") == 1, r)


def runs():
    run("a run", ["train", "job.yaml", "--set", "out=run"], False, (0,))
    for name, text in TEXT.items():
        text = text.decode()
        shutil.rmtree(tmp + "/evil", ignore_errors=True)
        shutil.copytree(tmp + "/run", tmp + "/evil")
        json_with("evil/summary.json", lambda c: c.update({text: text, "status": text}))
        with open(tmp + "/evil/metrics.jsonl", "a") as f:
            f.write(json.dumps({"step": text, text: 1}, ensure_ascii=False) + "\n")
        run("metrics %s" % name, ["report", "evil"], False, (0, 1))
        json_with("evil/checkpoints/step-000002/state.json", lambda c: c.update({text: text}))
        json_with("evil/checkpoints/step-000002/manifest.json",
                  lambda c: c["manifest"]["files"].append({"name": text, "bytes": 1, "xxh3_128": "0" * 32}))
        for words in (["verify", "evil"], ["train", "job.yaml", "--set", "out=evil", "--set", "train.steps=3"],
                      ["eval", "evil", "--data", "text"], ["convert", "evil", "made"]):
            run("checkpoint %s: %s" % (name, words[0]), words, False, (0, 1))
            shutil.rmtree(tmp + "/made", ignore_errors=True)
        put("evil/lock", "host %s boot b pid 1 started 1 ids i\n" % text.replace(" ", ""))
        with open(tmp + "/evil/lock") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            run("lock %s" % name, ["train", "job.yaml", "--set", "out=evil"], name != "line" and name != "return", (1,))
        put("evil/profile.json", json.dumps({"format": text, "device": text}, ensure_ascii=False))
        run("profile %s" % name, ["plan", "job.yaml", "--set", "profile=evil/profile.json"], False, (0, 1))


with tempfile.TemporaryDirectory(prefix="dhelix-messages-") as tmp:
    put("job.yaml", JOB)
    put("text", "some words of a text\n" * 200)
    for part in (paths, settings, jobs, models, lists, runs):
        part()
        print(part.__name__, n_checks, "checks", flush=True)
print("%d checks, %d failed" % (n_checks, len(failures)))
sys.exit(bool(failures))
