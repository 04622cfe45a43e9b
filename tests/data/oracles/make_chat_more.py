"""Conversations under further templates: as make_chat.py, without Transformers.

    python make_chat_more.py     # with tokenizers 0.23.3 and jinja2

writes tests/data/chat/more: tokenizer.json (that of ../chat with more marks), tokenizer_config.json and expected.json,
of the conversations of ../chat/chat.jsonl. Jinja texts are rendered as Transformers does it (blocks trimmed).
"""
import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

DATA = Path(__file__).resolve().parent.parent
OUT = DATA / "chat" / "more"
MARKS = ["<|im_sep|>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<|start_of_role|>",
         "<|end_of_role|>", "<|end_of_text|>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
         "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"]
TEMPLATES = {
    "phi4": "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + "
            "'<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"
            "{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}"
            "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    "mistral-v7": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST]' + message['content'] + "
                  "'[/INST]' }}{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
                  "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}",
    "olmo2": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + "
             "'\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == "
             "'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}{% else %}"
             "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}"
             "{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}",
    "deepseek": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}{% elif "
                "message['role'] == 'user' %}{{ '<\uff5cUser\uff5c>' + message['content'] }}{% else %}{{ '<\uff5cAssistant\uff5c>' + "
                "message['content'] + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c>' }}"
                "{% endif %}",
    "granite": "{% for message in messages %}{{ '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + "
               "'<|end_of_text|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
    "command-r": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
                 "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + message['content'] + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == "
                 "'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% else %}"
                 "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
                 "{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
}


def messages(row):
    if "conversations" in row:
        names = {"human": "user", "gpt": "assistant"}
        return [{"role": names.get(m["from"], m["from"]), "content": m["value"]} for m in row["conversations"]]
    if "prompt" in row:
        return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
    return row["messages"]


tok = Tokenizer.from_file(str(DATA / "chat" / "tokenizer.json"))
tok.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
OUT.mkdir(exist_ok=True)
tok.save(str(OUT / "tokenizer.json"), pretty=False)
(OUT / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}) + "\n")
chats = [messages(json.loads(line)) for line in open(DATA / "chat" / "chat.jsonl")]
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
expected = {}
for name, jinja in TEMPLATES.items():
    def encode(chat, answer):
        text = environment.from_string(jinja).render(messages=chat, bos_token="<s>", eos_token="</s>", add_generation_prompt=answer)
        return tok.encode(text, add_special_tokens=False).ids

    expected[name] = {"jinja": jinja, "ids": [encode(chat, False) for chat in chats], "start": encode(chats[0][:1], True)}
(OUT / "expected.json").write_text(json.dumps(expected) + "\n")
