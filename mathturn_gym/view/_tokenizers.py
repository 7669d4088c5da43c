"""Which tokenizer a run speaks, found without asking anybody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mathturn_gym._json import parse_json
from mathturn_gym._named_models import NAMED_MODELS, models_folder
from mathturn_gym._transformers import is_hub_name
from mathturn_gym.errors import InvalidValueError

__all__ = ["find_tokenizer"]

_CONFIG: Final = "tokenizer_config.json"


def find_tokenizer(folder: Path) -> str | None:
    """The tokenizer that a run's folder names: one in it, its checkpoint's, or what its settings say.

    Only what is on this machine is taken ("builtin", folders, fetched models, the hub's cache): a page is made without
    asking anybody.
    """
    own = _first_with_tokenizer([folder, folder / "checkpoint", folder / "tokenizer"])
    if own is not None:
        return own
    named = [name for file in ("settings.json", "policy.json", "config.json") for name in _named_in(folder / file)]
    return next((found for found in map(_on_this_machine, named) if found is not None), None)


def _on_this_machine(name: str) -> str | None:
    if name in ("builtin", "random"):
        return "builtin"
    plain = name.removeprefix("hf:").removeprefix("vllm:")
    places = [Path(plain) / "checkpoint", Path(plain)]
    if plain in NAMED_MODELS:
        places.append(models_folder() / plain)
    elif is_hub_name(plain):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(plain, _CONFIG)
        places += [Path(cached).parent] if isinstance(cached, str) else []
    return _first_with_tokenizer(places)


def _first_with_tokenizer(places: Sequence[Path]) -> str | None:
    return next((str(place) for place in places if (place / _CONFIG).is_file()), None)


def _named_in(path: Path) -> list[str]:
    """What a settings file says under "tokenizer", and after it under "policy" and "model", wherever in it."""
    try:
        data = parse_json(path.read_bytes())
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
