"""Types that Transformers' config classes want of the keys of a config.json.

    python make_config_types.py

writes tests/data/config_types.json: for every model type that dhelix writes the JSON types that its class
accepts of each key, and those of the keys of rotary positions. Keys that a class reads under another name have
the type of that name. Made with transformers 5.24; torch is not needed.
"""
import json
import re
import typing
from pathlib import Path

import transformers
from transformers.modeling_rope_utils import RopeParameters
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OUT = Path(__file__).resolve().parent.parent / "config_types.json"
FAMILIES = ["gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "olmo2", "olmo3", "smollm3", "gemma2",
            "gemma3_text", "deepseek_v3", "phimoe"]
KINDS = {"int": "integer", "float": "real", "bool": "boolean", "str": "string", "None": "null", "list": "array",
         "dict": "object", "RopeParameters": "object"}
# Read by the base class or by a class's __post_init__, and declared by none.
OLDER = {"_name_or_path": "string", "model_type": "string", "rope_theta": "integer real", "rope_scaling": "object null"}
OLDER_OF = {"gemma3_text": {"rope_local_base_freq": "integer real", "sliding_window_pattern": "integer"},
            # the model reads it where the configuration has it: getattr(config, "head_dim", ...)
            **{name: {"head_dim": "integer null"} for name in ("qwen2", "qwen3_moe", "phi3", "olmo2", "olmo3", "smollm3")}}


def kinds(annotation):
    """Names of JSON's types: "integer null"."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"\b(?:\w+\.)+", "", text)  # modules
    text = re.sub(r"(?:NotRequired|Required)\[(.*)\]$", r"\1", text)
    text = re.sub(r"\[[^][]*\]", "", re.sub(r"\[[^][]*\]", "", text))  # elements
    return sorted({KINDS[part] for part in text.replace(" ", "").split("|") if part in KINDS})


def fields(cls):
    found = {}
    for base in reversed(cls.__mro__):
        for key, annotation in getattr(base, "__annotations__", {}).items():
            if "ClassVar" not in str(annotation) and kinds(annotation):
                found[key] = annotation
    return found


def types_of(model_type):
    cls = CONFIG_MAPPING[model_type]
    declared = {key: " ".join(kinds(annotation)) for key, annotation in fields(cls).items()}
    same = [pair for key, name in cls.attribute_map.items() for pair in ((key, name), (name, key))]
    aliases = {key: declared[name] for key, name in same if name in declared}
    return dict(sorted((OLDER | OLDER_OF.get(model_type, {}) | aliases | declared).items()))


def main():
    table = {name: types_of(name) for name in FAMILIES}
    rope = typing.get_type_hints(RopeParameters)
    table["rope"] = {key: " ".join(kinds(annotation)) for key, annotation in sorted(rope.items())}
    # described there, and not declared; phimoe's own
    table["rope"] |= {key: "real" for key in ("mscale", "mscale_all_dim", "short_mscale", "long_mscale")}
    table["transformers"] = transformers.__version__
    OUT.write_text(json.dumps(table, indent=1) + "\n")


main()
