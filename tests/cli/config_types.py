# Keys that are written for other programs have the types that these want.
#   python3 tests/cli/config_types.py DHELIX
# config.json of every family, also with whole numbers where Transformers wants reals, against the types of
# its config classes (tests/data/config_types.json); adapter_config.json against PEFT's. Where Transformers
# is installed it loads each of them as well (DHELIX_TRANSFORMERS: a Python that has it).
import json, os, shutil, subprocess, sys, tempfile

DHELIX = sys.argv[1]
WEIGHTS = "tests/data/weights"
TYPES = json.load(open("tests/data/config_types.json"))
REALS = {"initializer_range": 1, "rope_theta": 10000, "router_aux_loss_coef": 0, "routed_scaling_factor": 1,
         "router_jitter_noise": 0, "input_jitter_noise": 0, "final_logit_softcapping": 30, "attn_logit_softcapping": 50, "rope_local_base_freq": 10000}
YARN = {"rope_type": "yarn", "factor": 2, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 2}
IDS = {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": None}
PEFT = {"peft_type": "string", "task_type": "string", "base_model_name_or_path": "string null", "r": "integer",
        "lora_alpha": "integer", "lora_dropout": "real", "target_modules": "array string", "bias": "string",
        "fan_in_fan_out": "boolean", "inference_mode": "boolean", "use_rslora": "boolean", "use_dora": "boolean"}
LOAD = """
import sys
from transformers import AutoConfig
for path in sys.argv[1:]:
    try:
        print(AutoConfig.from_pretrained(path).model_type)
    except Exception as error:
        print("NOT READ:", path, error)
"""
n_checks = n_failed = 0


def check(true, what):
    global n_checks, n_failed
    n_checks += 1
    if not true:
        n_failed += 1
        print("FAILED:", what)


def kind(value):
    return {bool: "boolean", int: "integer", float: "real", str: "string", list: "array", dict: "object",
            type(None): "null"}[type(value)]


def check_types(what, found, wanted):
    for key, value in found.items():
        check(key in wanted, f"{what}: \"{key}\" is no key of that class")
        check(kind(value) in wanted.get(key, "").split(), f"{what}: \"{key}\" is {json.dumps(value)}, want {wanted.get(key)}")


def variants(name, config):
    """The same model with values that could be written as another type."""
    reals = {k: v for k, v in REALS.items() if config.get(k) is not None}
    yield name, config
    yield name + ".whole", config | reals | IDS
    if config["model_type"] in ("gpt2", "phi3", "phimoe"):  # has no positions to stretch; stretches them by lists
        return
    yarn = YARN | {"original_max_position_embeddings": config["max_position_embeddings"] // 2}
    for rope in (yarn, LLAMA3, LINEAR):
        if config["model_type"] != "gemma3_text":
            yield f"{name}.{rope['rope_type']}", config | {"rope_parameters": rope | {"rope_theta": 10000}}
        elif rope is not yarn:
            yield f"{name}.{rope['rope_type']}", config | {"rope_parameters": {
                "sliding_attention": LINEAR | {"rope_theta": 10000}, "full_attention": rope | {"rope_theta": 1000000}}}
    if "query_pre_attn_scalar" in config:
        yield name + ".scalar", config | {"query_pre_attn_scalar": 20.0}


def convert(tmp, name, config, source):
    given, out = os.path.join(tmp, "in-" + name), os.path.join(tmp, name)
    shutil.copytree(source, given)
    with open(os.path.join(given, "config.json"), "w") as f:
        json.dump(config, f)
    run = subprocess.run([DHELIX, "convert", given, out, "--quiet"], capture_output=True, text=True)
    check(run.returncode == 0, f"{name}: {run.stderr}")
    return out if run.returncode == 0 else None


def check_config(name, folder):
    written = json.load(open(os.path.join(folder, "config.json")))
    check_types(name, written, TYPES[written["model_type"]])
    both = written.get("rope_parameters", {})
    for rope in (written.get("rope_scaling"), both.get("sliding_attention"), both.get("full_attention")):
        check_types(name + ", rotary positions", rope or {}, TYPES["rope"])
    return written["model_type"]


def python_with_transformers():
    for python in (os.environ.get("DHELIX_TRANSFORMERS"), sys.executable):
        if python and subprocess.run([python, "-c", "import transformers"], capture_output=True).returncode == 0:
            return python
    return None


def load_all(folders):
    python = python_with_transformers()
    if not python:
        print("Transformers is not installed: its classes are known by", "tests/data/config_types.json")
        return
    run = subprocess.run([python, "-c", LOAD, *folders], capture_output=True, text=True,
                         env=os.environ | {"HF_HUB_OFFLINE": "1"})
    check(run.returncode == 0, run.stderr)
    check(len(run.stdout.splitlines()) == len(folders) and "NOT READ" not in run.stdout,
          "Transformers loads every config.json: " + "\n".join(x for x in run.stdout.splitlines() if "NOT" in x))
    for line in run.stderr.splitlines():  # "must be a float", "unrecognized keys"
        # PhimoeConfig demands keys that the base class does not know, and wants this one too
        own = "short_mscale" in line or "has set a `rope_parameters['original_max_position_embeddings']`" in line
        check(own or "rope" not in line.lower(), line)


def check_models(tmp):
    written, families = [], set()
    for folder in sorted(os.listdir(WEIGHTS)):
        path = os.path.join(WEIGHTS, folder, "config.json")
        if not os.path.exists(path):
            continue
        config = json.load(open(path))
        if config.get("model_type") == "linear_llama":  # of our own
            continue
        for name, changed in variants(folder, config):
            out = convert(tmp, name, changed, os.path.join(WEIGHTS, folder))
            if out:
                families.add(check_config(name, out))
                written.append(out)
    check(families == set(TYPES) - {"rope", "transformers"}, f"every family is written: {sorted(families)}")
    load_all(written)


def check_adapter(tmp):
    job = os.path.join(tmp, "lora.yaml")
    base = os.path.abspath(os.path.join(WEIGHTS, "tiny-qwen2"))
    text = os.path.abspath("examples/data/tinyshakespeare.txt")
    with open(job, "w") as f:
        f.write(f"""model: {base}
data: {{train: {text}, tokenizer: bytes}}
train: {{steps: 1, batch: 2, micro_batch: 2, seq_len: 32, init_from: {base}, threads: 1}}
lora: {{rank: 4, alpha: 8.0, targets: all-linear}}
checkpoint: {{every: 1}}
eval: {{every: 0}}
out: {tmp}/run
""")
    run = subprocess.run([DHELIX, "train", job, "--quiet"], capture_output=True, text=True)
    check(run.returncode == 0, run.stderr)
    for folder, _, files in os.walk(os.path.join(tmp, "run")):
        if "adapter_config.json" in files:
            check_types("adapter", json.load(open(os.path.join(folder, "adapter_config.json"))), PEFT)
            break
    else:
        check(False, "adapter_config.json is written")


def check_refusals(tmp):
    source = os.path.join(WEIGHTS, "tiny-gemma2")
    config = json.load(open(os.path.join(source, "config.json")))
    for i, (key, value, part) in enumerate([
            ("query_pre_attn_scalar", 20.5, "whole number"), ("query_pre_attn_scalar", "20", "must be"),
            ("bos_token_id", "1", "bos_token_id"), ("bos_token_id", [1], "bos_token_id"), ("eos_token_id", 2.5, "eos_token_id"),
            ("eos_token_id", [2, "3"], "eos_token_id"), ("pad_token_id", True, "pad_token_id")]):
        given, out = os.path.join(tmp, f"bad{i}"), os.path.join(tmp, f"bad{i}.out")
        shutil.copytree(source, given)
        with open(os.path.join(given, "config.json"), "w") as f:
            json.dump(config | {key: value}, f)
        run = subprocess.run([DHELIX, "convert", given, out], capture_output=True, text=True)
        check(run.returncode == 1 and part in run.stderr, f"{key} {value!r}: {run.stderr}")
        check(not os.path.exists(out), f"{key} {value!r}: nothing is written")


with tempfile.TemporaryDirectory() as tmp:
    check_models(tmp)
    check_adapter(tmp)
    check_refusals(tmp)
print(f"{n_checks} checks, {n_failed} failed")
sys.exit(n_failed > 0)
