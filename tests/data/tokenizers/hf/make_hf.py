"""Tokenizer files of many kinds, and what Hugging Face's tokenizers make of hostile texts.

    python make_hf.py [NAME...]  # in an environment with tokenizers 0.23.3

writes beside this file, for every tokenizer of TOKENIZERS, NAME.json (a tokenizer.json), and
expected.json: {"texts": [...], "tokenizers": {NAME: {"ids": by text, with texts of special tokens as
these; "plain": by text, with them as any other; "text": by text, the ids decoded}}}. An entry of "plain" is null
where it is the same, one of "text" where an added token is decoded as its normalised text. The vocabularies are learned from the beginning of tinyshakespeare and the texts
themselves; Hugging Face's trainers break ties at random, so another run writes other vocabularies.
"""
import base64
import json
import struct
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
DATA = HERE.parent.parent
KAT = [json.loads(line)["text"] for line in open(HERE.parent / "kat" / "tokenization_kat.jsonl", encoding="utf-8")]
HARD = [
    "Vie\u0302\u0323t Nam \u1ec7 e\u0323\u0302 \u1e69 s\u0307\u0323 A\u030a \u212b \uac00\u11a8 \u1100\u1161\u11a8",
    "a" + "\u0301\u0323" * 20 + "b",
    "\u0344 \u0958 \u2adc \ufb1d \u0390 \u03b0 \ufd3e \ufdfa \u3300",
    "[CLS] hello [MASK] world [SEP] [UNK] [PAD]",
    "say<mask>it  <mask>  twice, x<mask> y; unmask<word>s <word> words, <word>.",
    "\u00dcN\u0130\u00c7\u00d6DE \u1e9e \u03a3\u0391\u03a3 \u01c5 \u0130",
    "10\u00b2 + 3\u00bd \u2167 12345 67,890.12 \u0663\u0664",
    "a\u200bb\u200cc\u200dd\u2060e\u00adf\ufeffg \u0085h\u2028i\x0bj\x0ck\x1fl\x7fm",
    "I'm DON'T we'Ve it's",
    "\u4f60\u597d world \u6771\u4eac\u30bf\u30ef\u30fc Tokyo\u3002",
    "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49 \u0e40\u0e1b\u0e47\u0e19 \u0928\u092e\u0938\u094d\u0924\u0947",
    "_under_score__ --dash-- ==eq== <<>> ~^`|+$",
    "\u2581already\u2581marked \u2581",
    "one\n\n\ntwo\r\n three  \n",
    "xxabxxxabx aab",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \U0001f44d\U0001f3fd",
    "unknown \u16a0 \U00012000\U00012001 chars",
    "supercalifragilisticexpialidocious" * 5,
    "</s> <s>x</s>",
]
TEXTS = [t for t in KAT + HARD if t]


def corpus():
    text = open(DATA / "corpora" / "tinyshakespeare" / "input.txt", encoding="utf-8").read()[:60000]
    return [line for line in text.split("\n") if line] + TEXTS * 3


# ---- a small precompiled_charsmap: a double-array trie and texts that end with a zero byte -----

RULES = {
    "\u00a0": " ", "\t": " ", "\n": " ", "\u3000": " ", "\ufb01": "fi", "\u00bd": "1/2", "\u2122": "TM", "\u2026": "...",
    "e\u0301": "\u00e9", "\u212b": "\u00c5", "A\u030a": "\u00c5", "\uff14": "4", "\uff15": "5", "\u2167": "VIII",
    "\u200b": " ", "\ufeff": "", "\u00b2": "2", "\u00b9": "1", "\x7f": "", "\u1ec7": "ệ", "a\u0301": "\u00e1",
    "ab": "B", "abx": "C", "\u2581": " ",
}


def charsmap(rules):
    texts, offsets = b"", {}
    for text in sorted(set(rules.values())):
        offsets[text] = len(texts)
        texts += text.encode() + b"\0"
    tree = {}
    for key, text in rules.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = offsets[text]
    units, used = {}, {0}

    def place(at, node, label):
        codes = [0 if c is None else c for c in node]
        base = next(b for b in range(1, 1 << 20) if all((b ^ c) not in used for c in codes))
        used.update(base ^ c for c in codes)
        units[at] = (at ^ base) << 10 | (None in node) << 8 | label
        for c, below in sorted(node.items(), key=lambda item: -1 if item[0] is None else item[0]):
            if c is None:
                units[base] = below | 1 << 31
            else:
                place(base ^ c, below, c)

    place(0, tree, 0)
    n = (max(units) | 255) + 1
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(n))
    return struct.pack("<I", len(trie)) + trie + texts


def precompiled():
    return normalizers.Precompiled(charsmap(RULES))


# ---- the tokenizers --------------------------------------------------------------------------

SPECIAL = ["<s>", "</s>", "<unk>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


def isolated(pattern, **more):
    return pre_tokenizers.Split(Regex(pattern), "isolated", **more)


def bpe(normalizer=None, pre=None, decoder=None, size=400, alphabet=False, special=("<unk>", "<s>", "</s>"), added=(),
        fallback=False, **model):
    tok = Tokenizer(models.BPE(unk_token=None if alphabet else "<unk>", byte_fallback=fallback, **model))
    if normalizer:
        tok.normalizer = normalizer
    if pre:
        tok.pre_tokenizer = pre
    if decoder:
        tok.decoder = decoder
    special = list(special)
    if fallback:
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    options = {k: v for k, v in model.items() if k in ("continuing_subword_prefix", "end_of_word_suffix")}
    trainer = trainers.BpeTrainer(vocab_size=size + len(special), special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
                                  limit_alphabet=10000 if alphabet else 60, **options)
    tok.train_from_iterator(corpus(), trainer)
    if fallback:  # the tokens of bytes are no special ones
        data = json.loads(tok.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
        tok = Tokenizer.from_str(json.dumps(data))
    tok.add_tokens(list(added))
    return tok


def byte_level(normalizer=None, *pre, added=(), prefix=False, regex=False, special=("<|endoftext|>",), **more):
    steps = sequence(*pre, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex))
    return bpe(normalizer, steps, decoders.ByteLevel(), alphabet=True, special=special, added=added, **more)


def gemma():
    decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return bpe(normalizers.Replace(" ", "\u2581"), pre_tokenizers.Split(" ", "merged_with_previous"), decoder,
               fallback=True, fuse_unk=True, special=("<pad>", "<eos>", "<bos>", "<unk>"))


def gemma_words():
    """Merges do not go over the ends of words, as Gemma's do not, though texts are not split."""
    tok = bpe(N.Replace(" ", "\u2581"), META(prepend_scheme="never"), gemma().decoder, fallback=True, fuse_unk=True)
    tok.pre_tokenizer = P.Split(" ", "merged_with_previous")
    return tok


def unigram(normalizer=None, pre=None, decoder=None, added=(), fallback=False):
    tok = Tokenizer(models.Unigram())
    if normalizer:
        tok.normalizer = normalizer
    if pre:
        tok.pre_tokenizer = pre
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False,
                                      max_piece_length=8)
    tok.train_from_iterator(corpus(), trainer)
    if fallback:
        data = json.loads(tok.to_str())
        data["model"]["vocab"] += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
        data["model"]["byte_fallback"] = True
        tok = Tokenizer.from_str(json.dumps(data))
    if decoder:
        tok.decoder = decoder
    tok.add_tokens(list(added))
    return tok


def wordpiece(normalizer, pre, size=400, decoder=None, **model):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", **model))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=size, special_tokens=BERT,
                                                                limit_alphabet=80, show_progress=False))
    if decoder:
        tok.decoder = decoder
    return tok


def bert():
    tok = wordpiece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoder=decoders.WordPiece())
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(t, tok.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    return tok


def wordlevel(normalizer, pre):
    tok = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.train_from_iterator(corpus(), trainers.WordLevelTrainer(vocab_size=300, special_tokens=SPECIAL,
                                                                show_progress=False))
    return tok


def behaviors(behavior, invert=False):
    return byte_level(None, pre_tokenizers.Split(Regex("x+|[0-9]"), behavior, invert=invert),
                      pre_tokenizers.Punctuation("contiguous" if behavior == "removed" else behavior), size=300)


N = normalizers
P = pre_tokenizers
META = P.Metaspace
TOKENIZERS = {
    "qwen": lambda: byte_level(N.NFC(), isolated(QWEN), added=[AddedToken("<mask>", lstrip=True, normalized=False),
                                                               AddedToken("<word>", single_word=True)]),
    "neox": lambda: byte_level(N.NFC(), regex=True, prefix=False, special=("<|endoftext|>", "<|padding|>")),
    "falcon": lambda: byte_level(None, P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(False),
                                 isolated(r"[0-9][0-9][0-9]")),
    "deepseek": lambda: byte_level(N.Sequence([]), isolated(r"[\r\n]"), isolated(r"\s?\p{L}+"),
                                   isolated(r"\s?\p{P}+"), isolated(r"\s+$"), isolated("[一-龥ࠀ-一가-퟿]+"),
                                   P.Digits(True)),
    "starcoder": lambda: byte_level(None, P.Digits(True), regex=True, prefix=True),
    "nfkd": lambda: byte_level(N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase(), N.Strip()]), P.WhitespaceSplit(),
                               added=[AddedToken("<MASK>", normalized=True, rstrip=True)]),
    "nfd": lambda: byte_level(N.Sequence([N.NFD(), N.Replace(Regex(r"\s{2,}|\p{Nd}+"), "#"), N.Prepend(">")]),
                              isolated(r"(?=\p{Lu})|\b"), prefix=True),
    "nfkc": lambda: byte_level(N.Sequence([N.NFKC(), N.Nmt(), N.Replace("a", "")]), P.CharDelimiterSplit("e"),
                               P.FixedLength(3)),
    "removed": lambda: behaviors("removed"),
    "inverted": lambda: behaviors("removed", invert=True),
    "previous": lambda: behaviors("merged_with_previous"),
    "next": lambda: behaviors("merged_with_next"),
    "contiguous": lambda: behaviors("contiguous"),
    "next_inverted": lambda: behaviors("merged_with_next", invert=True),
    "ruby": lambda: byte_level(None, isolated(r"^\w+|\h{2,3}+|(?:[[:punct:]]x?){2}+|\S$"), size=280),
    "clip": lambda: bpe(N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]),
                        sequence(P.Split(Regex(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|"
                                               r"[^\s\p{L}\p{N}]+"), "removed", invert=True),
                                 P.ByteLevel(add_prefix_space=False)),
                        decoders.ByteLevel(), alphabet=True, special=("<|startoftext|>", "<|endoftext|>"),
                        end_of_word_suffix="</w>", continuing_subword_prefix=""),
    "gpt1": lambda: bpe(N.BertNormalizer(strip_accents=False), P.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>"),
                        end_of_word_suffix="</w>"),
    "affixes": lambda: bpe(None, P.Whitespace(), None, continuing_subword_prefix="##", fuse_unk=True),
    "gemma": gemma,
    "gemma_words": gemma_words,
    "llama": lambda: bpe(None, META(prepend_scheme="first"), decoders.Sequence([decoders.Replace("\u2581", " "),
                         decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]), fallback=True, fuse_unk=True),
    "t5": lambda: unigram(precompiled(), sequence(P.WhitespaceSplit(), META(prepend_scheme="always")), decoders.Metaspace()),
    "xlmr": lambda: unigram(N.Sequence([precompiled(), N.Replace(Regex(" {2,}"), " ")]), META(prepend_scheme="first"),
                            decoders.Metaspace(prepend_scheme="first"), added=[AddedToken("<mask>", lstrip=True)]),
    "albert": lambda: unigram(N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase()]),
                              META(prepend_scheme="never"), decoders.Metaspace(prepend_scheme="never"), fallback=True),
    "whole": lambda: unigram(N.Sequence([N.Nmt(), N.NFKC()])),
    "bert": bert,
    "bert_cased": lambda: wordpiece(N.BertNormalizer(lowercase=False, strip_accents=True, handle_chinese_chars=False),
                                    P.BertPreTokenizer(), decoder=decoders.WordPiece(cleanup=False),
                                    max_input_chars_per_word=20),
    "wordpiece_plain": lambda: wordpiece(None, P.Whitespace()),
    "words": lambda: wordlevel(N.Lowercase(), sequence(P.WhitespaceSplit(), P.Punctuation("merged_with_previous"))),
}


def encode(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def without_specials(data):
    """Texts of special tokens are no tokens: a unigram model would find them in its vocabulary."""
    data = json.loads(json.dumps(data))
    special = {t["content"] for t in data["added_tokens"] if t["special"]}
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["special"]]
    if data["model"]["type"] == "Unigram":
        vocab = data["model"]["vocab"]
        data["model"]["vocab"] = [[f"\0{i}", s] if t in special else [t, s] for i, (t, s) in enumerate(vocab)]
    return data


def main(names):
    """All of them anew, or those named beside what is there."""
    out = HERE / "expected.json"
    expected = json.load(open(out, encoding="utf-8"))["tokenizers"] if names else {}
    for name in names or TOKENIZERS:
        make = TOKENIZERS[name]
        tok = make()
        # As it is read from the file.
        data = json.loads(tok.to_str())
        (HERE / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        tok = Tokenizer.from_str(json.dumps(data))
        ids = [encode(tok, text) for text in TEXTS]
        if data["model"]["type"] == "Unigram":
            ordinary = Tokenizer.from_str(json.dumps(without_specials(data)))
        else:
            ordinary = Tokenizer.from_str(json.dumps(data))
            ordinary.encode_special_tokens = True
        plain = [encode(ordinary, text) for text in TEXTS]
        renamed = {t["id"] for t in data["added_tokens"] if tok.decode([t["id"]], skip_special_tokens=False) != t["content"]}
        expected[name] = {
            "ids": ids,
            "plain": [p if p != i else None for p, i in zip(plain, ids)],
            "text": [None if renamed & set(i) else tok.decode(i, skip_special_tokens=True) for i in ids],
        }
    out.write_text(json.dumps({"texts": TEXTS, "tokenizers": expected}, ensure_ascii=False, separators=(",", ":")) + "\n",
                   encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
