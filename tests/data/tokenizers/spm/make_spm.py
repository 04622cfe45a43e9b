"""Small SentencePiece models with character tables, and what SentencePiece makes of hostile texts.

    python make_spm.py           # in an environment with sentencepiece 0.2

writes beside this file NAME.model and expected.json: {"texts": [...], "tokenizers": {NAME: {"ids": by text,
"text": by text, the ids decoded, null where a text begins with U+2581, of which SentencePiece drops all}}}. Texts are those of ../hf (make_hf.py).
"""
import json
import os
from pathlib import Path

import sentencepiece as spm

HERE = Path(__file__).resolve().parent
TEXTS = json.load(open(HERE.parent / "hf" / "expected.json", encoding="utf-8"))["texts"]
TEXTS = [t for t in TEXTS if "\0" not in t]
SHAKESPEARE = open(HERE.parent.parent / "corpora" / "tinyshakespeare" / "input.txt", encoding="utf-8").read()[:60000]
RULES = {
    "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\ufb01": "fi", "\u00bd": "1/2", "\u2026": "...", "e\u0301": "\u00e9",
    "A\u030a": "\u00c5", "\uff14": "4", "\u200b": " ", "\u00b2": "2", "ab": "B", "abx": "C", "\x7f": "", "xx": "  y ",
}
MODELS = {
    "unigram": dict(model_type="unigram"),
    "unigram_bytes": dict(model_type="unigram", byte_fallback=True, user_defined_symbols=["<mask>", "abx"], vocab_size=560,
                          add_dummy_prefix=False),
    "unigram_spaces": dict(model_type="unigram", remove_extra_whitespaces=False, split_by_whitespace=False),
    "bpe": dict(model_type="bpe", user_defined_symbols=["<mask>"]),
}


def main():
    os.chdir(HERE)  # models keep the names of the files that they were made from
    rules = HERE / "rules.tsv"
    rules.write_text("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n"
                             for a, b in RULES.items()))
    lines = [line for line in (SHAKESPEARE.split("\n") + TEXTS * 3) if line.strip()]
    (HERE / "corpus.txt").write_text("\n".join(line.replace("\n", " ") for line in lines) + "\n", encoding="utf-8")
    expected = {}
    for name, options in MODELS.items():
        options = dict(vocab_size=300, character_coverage=0.98) | options
        spm.SentencePieceTrainer.train(input="corpus.txt", model_prefix=name, num_threads=1,
                                       normalization_rule_tsv=rules.name, minloglevel=2, **options)
        (HERE / f"{name}.vocab").unlink()
        sp = spm.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))
        ids = [sp.encode(t) for t in TEXTS]
        expected[name] = {"ids": ids, "text": [None if t[0] == "\u2581" else sp.decode(i) for t, i in zip(TEXTS, ids)]}
    (HERE / "corpus.txt").unlink()
    rules.unlink()
    with open(HERE / "expected.json", "w", encoding="utf-8") as f:
        json.dump({"texts": TEXTS, "tokenizers": expected}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
