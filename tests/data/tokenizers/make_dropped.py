"""BPE without an unknown token and without tokens of all bytes: characters are left out.

    python make_dropped.py

writes dropped.json: small tokenizers of four kinds (byte-level, marks of spaces, those with some tokens of
bytes, affixes), texts with characters that they lack, and the ids that Hugging Face's tokenizers 0.23.3 make.
"""
import json
import random
from pathlib import Path

from tokenizers import Tokenizer

KINDS = ["bytes", "marks", "fallback", "affixes"]
MARK = "▁"
MARKS = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK},
                                             {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FORMS = {"bytes": {"pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL}, "marks": {"normalizer": MARKS},
         "fallback": {"normalizer": MARKS}, "affixes": {"pre_tokenizer": {"type": "Whitespace"}}}


def join(kind, a, b, mark):
    if kind == "affixes":
        return a + b[2:] if b.startswith("##") and not a.endswith("</w>") else None
    return None if mark in b else a + b


def make(rng, kind):
    mark = "Ġ" if kind == "bytes" else MARK
    if kind == "affixes":
        base = [p + x + s for x in "abcde" for p in ("", "##") for s in ("", "</w>")]
    else:
        base = [*"abcde", mark]
    tokens = base + [f"<0x{b:02X}>" for b in range(128) if kind == "fallback"]
    merges = []
    for _ in range(25):
        a, b = rng.choice(base), rng.choice(base)
        joined = join(kind, a, b, mark)
        if joined and joined not in tokens:
            tokens.append(joined)
            base.append(joined)
            merges.append([a, b])
    affixes = kind == "affixes"
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "ignore_merges": False,
             "continuing_subword_prefix": "##" if affixes else None, "end_of_word_suffix": "</w>" if affixes else None,
             "byte_fallback": kind == "fallback", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None} | FORMS[kind] | {"model": model}


def main():
    rng = random.Random(7)
    cases = []
    for kind in KINDS * 2:
        root = make(rng, kind)
        tok = Tokenizer.from_str(json.dumps(root))
        texts = ["é", "aéb中", *("".join(rng.choice("abcdexé z中ab") for _ in range(30)).strip() for _ in range(4))]
        cases.append({"kind": kind, "tokenizer": root,
                      "texts": [[t, tok.encode(t, add_special_tokens=False).ids] for t in texts]})
    text = json.dumps(cases, ensure_ascii=False)
    Path(__file__).with_name("dropped.json").write_text(text.replace('{"kind"', '\n{"kind"') + "\n")


main()
