"""Which tokenizer a run speaks, found without asking anybody."""

from __future__ import annotations

import json
from pathlib import Path

from mathturn_gym.errors import InvalidValueError

__all__ = ["find_tokenizer"]


def find_tokenizer(folder: Path) -> str | None:
    """The tokenizer that a run's folder names: one in it, its checkpoint's, or what its settings say.

    Only "builtin" and folders on this machine are taken; a page is made without asking a hub.
    """
    for place in (folder, folder / "checkpoint", folder / "tokenizer"):
        if (place / "tokenizer_config.json").is_file():
            return str(place)
    named: list[str] = []
    for name in ("settings.json", "policy.json", "config.json"):
        named += _named_in(folder / name)
    for name in named:
        if name in ("builtin", "random"):
            return "builtin"
        for place in (Path(name) / "checkpoint", Path(name)):
            if (place / "tokenizer_config.json").is_file():
                return str(place)
    return None


def _named_in(path: Path) -> list[str]:
    """What a settings file says under "tokenizer", and after it under "policy" and "model", wherever in it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{path} does not load ({error}); --tokenizer says which tokenizer to use") from error
    found: dict[str, list[str]] = {"tokenizer": [], "policy": [], "model": []}
    waiting = [data]
    while waiting:
        value = waiting.pop(0)
        for key, inner in value.items() if isinstance(value, dict) else ():
            if key in found and isinstance(inner, str):
                found[key].append(inner)
            waiting.append(inner)
    return [name for names in found.values() for name in names]
