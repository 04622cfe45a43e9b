"""The small jobs: models, settings, the file that all begin with."""
SIZE = "n_layers: 2, width: 64, n_heads: 4, max_seq: 64"
ROTARY = f"{SIZE}, n_kv_heads: 2, head_dim: 16, tied_head: false"
GPT2 = f"{{family: gpt2, {SIZE}}}"
LLAMA = f"{{family: llama, {ROTARY}, ffn_width: 88}}"
MIXTRAL = f"{{family: mixtral, {ROTARY}, ffn_width: 48, n_experts: 4, top_k: 2}}"
DEEPSEEK = (f"{{family: deepseek_v3, {SIZE}, head_dim: 24, rope_dim: 8, v_dim: 16, q_lora: 24, kv_lora: 32, ffn_width: 40, n_experts: 8,"
            " top_k: 3, n_groups: 4, top_groups: 2}")
GEMMA = f"{{family: gemma2, {ROTARY}, ffn_width: 88, window: 16, window_every: 2}}"
# name, model, settings
FAMILIES = [
    ("GPT-2, f32", GPT2, "train.dtype=f32"),
    ("Llama, bf16", LLAMA, "train.dtype=bf16"),
    ("GPT-2, bf16, dropout", GPT2, "train.dtype=bf16 model.dropout=0.1"),
    ("Llama, f32, recomputed", LLAMA, "train.recompute=full"),
    ("Qwen 3, bf16, fp8", f"{{family: qwen3, {ROTARY}, ffn_width: 96}}", "train.dtype=bf16 train.fp8=hybrid"),
    ("Gemma 2, bf16, window", GEMMA, "train.dtype=bf16"),
    ("Gemma 3, f32", f"{{family: gemma3_text, {ROTARY}, ffn_width: 88}}", "train.dtype=f32"),
    ("OLMo 2, bf16", f"{{family: olmo2, {ROTARY}, ffn_width: 88}}", "train.dtype=bf16"),
    ("Llama, bf16, heads of 128", f"{{family: llama, n_layers: 2, width: 256, n_heads: 4, n_kv_heads: 2, head_dim: 128, max_seq: 192, ffn_width: 88,"
     " tied_head: false}", "train.dtype=bf16 train.seq_len=192"),
    ("Mixtral, bf16", MIXTRAL, "train.dtype=bf16"),
    ("Mixtral, dropless, f32", MIXTRAL, "moe.mode=dropless"),
    ("DeepSeek V3, f32", DEEPSEEK, "train.dtype=f32"),
    ("DeepSeek V3, bf16", DEEPSEEK, "train.dtype=bf16"),
    ("linear attention, f32", f"{{family: llama, {ROTARY}, ffn_width: 88, attention: linear}}", "train.dtype=f32"),
]
MESHES = [
    ("tp 2", LLAMA, "parallel.tp=2 strategy=dhelix"),
    ("dp 2, ZeRO-3", LLAMA, "parallel.dp=2 parallel.zero=3"),
    ("cp 2", LLAMA, "parallel.cp=2 train.dtype=bf16"),
    ("pp 2", LLAMA, "parallel.pp=2"),
    ("ep 2", MIXTRAL, "parallel.dp=2 parallel.ep=2 moe.mode=dropless"),
]
# What differs in kernels: norms, positions, activations, experts, latent and linear attention, fp8, ZeRO.
SANITIZED = [
    ("GPT-2", GPT2, "model.dropout=0.1"),
    ("Llama", LLAMA, "train.dtype=bf16 train.recompute=full"),
    ("Qwen 3, fp8", f"{{family: qwen3, {ROTARY}, ffn_width: 96}}", "train.dtype=bf16 train.fp8=hybrid"),
    ("Gemma 2", GEMMA, "train.dtype=bf16"),
    ("Mixtral", MIXTRAL, "moe.mode=dropless"),
    ("DeepSeek V3", DEEPSEEK, "train.dtype=bf16"),
    ("linear attention", f"{{family: llama, {ROTARY}, ffn_width: 88, attention: linear}}", "train.dtype=bf16"),
    ("tp 2", LLAMA, "parallel.tp=2 parallel.gpu_comm=device"),
]


def write_job(b, file):
    """Text of the bundle, by characters; a rehearsal has two short steps."""
    text = b.root / "examples/data/tinyshakespeare.txt"
    steps, batch, length = (2, 2, 16) if b.small else (20, 4, 64)
    file.write_text(f"data: {{train: {text}, tokenizer: chars, val_fraction: 0.01}}\n"
                    f"train: {{steps: {steps}, batch: {batch}, micro_batch: 1, seq_len: {length}, threads: 1}}\n"
                    "optimizer: {lr: 3.0e-3, warmup_steps: 5}\neval: {every: 0}\ncheckpoint: {last: false}\n", encoding="utf-8")


def job_words(b, model, settings, device, out):
    """Arguments of `dhelix train`; what GPUs alone know is left out for the cpu."""
    if b.small:
        model = model.replace("width: 64", "width: 32").replace("head_dim: 16", "head_dim: 8")
    words = settings.split()
    if device == "cpu":
        words = [w for w in words if not w.startswith(("parallel.gpu_comm", "train.capture"))]
    flags = []
    for word in [f"model={model}", *words, f"device={device}", f"out={out}"]:
        flags += ["--set", word]
    return flags
