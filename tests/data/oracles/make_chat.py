"""Conversations as Transformers' tokenizers render and encode them.

    python make_chat.py

writes tests/data/chat: tokenizer.json (a small byte-level BPE with the marks of all templates
added), chat.jsonl (conversations), and expected.json: by template its Jinja text, the ids of
every conversation, and of the first one the ids where an answer would begin. Made with transformers 5.23.
The Jinja texts are those of the models' tokenizers on Hugging Face, without default system messages and
tools.
"""
import json
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).resolve().parent.parent
OUT = DATA / "chat"
MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|system|>", "<|user|>", "<|assistant|>",
         "<|end|>"]
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
              "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
              "{% endif %}",
    "llama3": "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
              "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
              "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
              "{% endif %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
             "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
             "{% for message in rest %}{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
             "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + "
             "(first if loop.first else '') }}{{ message['content'] | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
               "message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + "
               "message['content'] + eos_token }}{% else %}{{ raise_exception('no system') }}{% endif %}"
               "{% endfor %}",
    "phi3": "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
}
CHATS = [
    [("user", "What is the king's name?"), ("assistant", "He is Richard, the third.")],
    [("system", "Speak as they did."), ("user", "  Good day\nto you. "), ("assistant", "\nAnd to thee, sir!"),
     ("user", "Is it late?"), ("assistant", "The clock struck nine.")],
    [("user", "Say nothing"), ("assistant", "")],
    [("user", "Naïve — 東京?"), ("assistant", "  two spaces, and é at the end  ")],
]


def row(i, chat):
    """As files have them: three kinds of rows."""
    if i % 3 == 1:
        names = {"user": "human", "assistant": "gpt"}
        return {"conversations": [{"from": names.get(r, r), "value": t} for r, t in chat]}
    if i % 3 == 2:
        return {"prompt": chat[0][1], "completion": chat[1][1]}
    return {"messages": [{"role": r, "content": t} for r, t in chat]}


tok = ByteLevelBPETokenizer()
tok.train(str(DATA / "corpora" / "tinyshakespeare" / "input.txt"), vocab_size=500, show_progress=False)
tok.add_special_tokens(MARKS)
OUT.mkdir(exist_ok=True)
tok.save(str(OUT / "tokenizer.json"), pretty=False)
(OUT / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}) + "\n")
fast = PreTrainedTokenizerFast(tokenizer_file=str(OUT / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
with open(OUT / "chat.jsonl", "w") as f:
    for i, chat in enumerate(CHATS):
        f.write(json.dumps(row(i, chat)) + "\n")
expected = {}
for name, jinja in TEMPLATES.items():
    fast.chat_template = jinja
    chats = [[{"role": r, "content": t} for r, t in c if name != "mistral" or r != "system"] for c in CHATS]
    ids = [fast.encode(fast.apply_chat_template(c, tokenize=False), add_special_tokens=False) for c in chats]
    start = fast.encode(fast.apply_chat_template(chats[0][:1], tokenize=False, add_generation_prompt=True),
                        add_special_tokens=False)
    expected[name] = {"jinja": jinja, "ids": ids, "start": start}
(OUT / "expected.json").write_text(json.dumps(expected) + "\n")
