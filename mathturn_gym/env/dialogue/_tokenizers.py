"""Tokenizers by name, and the locks that their users share."""

from __future__ import annotations

import functools
import os
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias

from mathturn_gym.base.files import parse_json
from mathturn_gym.base.model_folders import NAMED_MODELS, folder_of, pretrained_kwargs
from mathturn_gym.errors import InvalidValueError

Tokenizer: TypeAlias = Any
"""A Hugging Face tokenizer (`transformers.PreTrainedTokenizerBase`), which has no useful static type."""


class _Locks:
    """Locks that all dialogues of a process share, so that a forked process can have new ones.

    Attributes:
        encoding: A fast tokenizer is shared by all who load it by name, and encodes plain text by setting a flag of its own
            for the call: without the lock, another thread's call would encode its markers as plain text too.
        caches: Held for a look-up.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked process: threads of the parent may have held the old ones."""
        self.encoding, self.caches = threading.Lock(), threading.Lock()


LOCKS: Final = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOCKS.renew)


def load_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    """The tokenizer behind a name: `"builtin"`, a named model, a folder, or a hub name; an object is returned as it is.

    Raises:
        InvalidValueError: nothing loads under that name.
        CheckpointError: it is the name of a model that was not fetched yet.
    """
    if not isinstance(tokenizer, (str, Path)):
        return tokenizer
    if str(tokenizer) == "builtin":
        return _load_by_name(str(files("mathturn_gym") / "assets" / "tiny"))
    if tokenizer in NAMED_MODELS:
        return _load_by_name(str(folder_of(str(tokenizer))))
    return _load_by_name(str(tokenizer))


@functools.lru_cache(maxsize=16)
def _load_by_name(name: str) -> Tokenizer:
    """Loads once per process: vector environments ask for the same tokenizer n times."""
    import transformers

    try:
        kwargs = pretrained_kwargs(name)  # also checks that the folder's files can be read
        # AutoTokenizer imports torch and every model's configuration: 1,800 modules and 250 MB, of which nothing is used.
        kind = getattr(transformers, class_without_torch(Path(name)) or "AutoTokenizer")
        tokenizer: Tokenizer = kind.from_pretrained(name, **kwargs)
        tokenizer("1")  # settings of the wrong type show when it is first used
    except Exception as error:  # tokenizers has no class of its own for a broken file
        raise InvalidValueError(
            f"tokenizer {name!r} does not load ({type(error).__name__}: {error}); allowed: 'builtin', a folder with"
            " tokenizer.json and tokenizer_config.json, a hub name, or a tokenizer object"
        ) from error
    return tokenizer


_GENERIC: Final = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
_OWN: Final = ("GPT2Tokenizer", "Qwen2Tokenizer")
_MODEL_TYPES: Final = (None, "llama", "gpt2", "qwen2", "qwen3")


def class_without_torch(folder: Path) -> str | None:
    """The class that AutoTokenizer would choose for a folder, where this can be told without importing it; else None.

    Only the common cases, in which AutoTokenizer follows what tokenizer_config.json declares. For some model types it does
    not: for "qwen2" it replaces every class by `Qwen2Tokenizer`. A test compares the table with AutoTokenizer.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        declared = parse_json((folder / "tokenizer_config.json").read_bytes())
        config = parse_json((folder / "config.json").read_bytes()) if (folder / "config.json").exists() else {}
        if "auto_map" in declared or "auto_map" in config or config.get("model_type") not in _MODEL_TYPES:
            return None
        name = declared["tokenizer_class"].removesuffix("Fast")
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None  # AutoTokenizer says what is wrong with the files
    if config.get("model_type") == "qwen2":
        return name if name == "Qwen2Tokenizer" else None
    if name in _GENERIC:
        return "TokenizersBackend"
    return name if name in _OWN else None


def name_of_tokenizer(tokenizer: Tokenizer) -> str:
    """A tokenizer's name in error messages."""
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
