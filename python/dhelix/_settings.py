"""Settings of a job between Python and the text of job files."""

import json
import os
import re
from typing import Any, Dict, List, Mapping

# Settings whose value may itself be a mapping; every other mapping is a section.
_MAPPINGS = {"strategy"}


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return json.dumps([os.fspath(v) if isinstance(v, os.PathLike) else v for v in value])
    if isinstance(value, Mapping):
        return json.dumps(value)
    raise TypeError(f"{key}: a number, text, list or mapping is wanted, not {type(value).__name__}")


def overrides_of(settings: Mapping[str, Any], section: str = "") -> List[str]:
    """``{"train": {"steps": 20}, "out": "run"}`` as ``["train.steps=20", "out=run"]``."""
    texts: List[str] = []
    for name, value in settings.items():
        key = section + name
        if isinstance(value, Mapping) and key not in _MAPPINGS:
            texts += overrides_of(value, key + ".")
        else:
            texts.append(f"{key}={_text(key, value)}")
    return texts


def _value(text: str) -> Any:
    try:  # numbers, true and false, quoted text, lists
        return json.loads(re.sub(r"\\x(..)", r"\\u00\1", text))
    except ValueError:
        return text


def read_settings(text: str) -> Dict[str, Any]:
    """A printed job, a setting a line below its sections, as ``{"train.steps": 20, ...}``."""
    settings: Dict[str, Any] = {}
    sections: List[str] = []
    for line in text.splitlines():
        name, _, value = line.strip().partition(":")
        depth = (len(line) - len(line.lstrip())) // 2
        sections[depth:] = [name]
        if value:
            settings[".".join(sections)] = _value(value.strip())
    return settings
