"""Folders as today's Transformers saves them, which models and tokenizers of other people come in.

    python make_saved.py

writes tests/data/saved: config.json and generation_config.json of every family with the defaults of
its class, by save_pretrained; tokenizers of five classes that learned from tinyshakespeare, by
save_pretrained, and the ids of a text (expected.json). Made with transformers 5.24; torch is not needed.
"""
import json
import shutil
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = Path(__file__).resolve().parent.parent
OUT = DATA / "saved"
VOCAB = 260
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
FAMILIES = {
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCAB, n_positions=64),
    "llama": SIZES | dict(dtype="bfloat16", rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)),
    "mistral": SIZES,
    "mixtral": SIZES | dict(num_local_experts=4),
    "qwen2": SIZES,
    "qwen3": SIZES,
    "qwen3_moe": SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "phi3": SIZES | dict(pad_token_id=0),
    "phimoe": SIZES | dict(num_local_experts=4),
    "olmo2": SIZES,
    "olmo3": SIZES,
    "smollm3": SIZES,
    "gemma2": SIZES,
    "gemma3_text": SIZES,
    "deepseek_v3": SIZES | dict(num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                                q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10,
                                first_k_dense_replace=0),
}
CLASSES = ["GPT2Tokenizer", "LlamaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer"]
TEXT = "First Citizen: We are accounted poor\n\n  citizens! ok"


def learn(texts):
    """A byte-level BPE of nobody's class."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<|begin_of_text|>",
                                                eos_token="<|end_of_text|>")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for name, sizes in FAMILIES.items():
        config = transformers.AutoConfig.for_model(name, **sizes)
        config.save_pretrained(OUT / name)
        transformers.GenerationConfig.from_model_config(config).save_pretrained(OUT / name)
    texts = [(DATA / "corpora" / "tinyshakespeare" / "input.txt").read_text()[:100000]]
    found = {name: getattr(transformers, name)().train_new_from_iterator(texts, VOCAB) for name in CLASSES}
    found["PreTrainedTokenizerFast"] = learn(texts)
    expected = {"text": TEXT}
    for name, tok in found.items():
        tok.save_pretrained(OUT / "tokenizers" / name)
        expected[name] = tok(TEXT, add_special_tokens=False)["input_ids"]
    (OUT / "tokenizers" / "expected.json").write_text(json.dumps(expected) + "\n")
    for path in OUT.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


main()
