"""Tokenizers by name, and the locks that whoever uses them shares."""

from __future__ import annotations

import functools
import os
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias

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
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(name, **pretrained_kwargs(name))
        tokenizer("1")  # settings of the wrong type show when it is first used
    except Exception as error:  # tokenizers has no class of its own for a broken file
        raise InvalidValueError(
            f"tokenizer {name!r} does not load ({type(error).__name__}: {error}); allowed: 'builtin', a folder with"
            " tokenizer.json and tokenizer_config.json, a hub name, or a tokenizer object"
        ) from error
    return tokenizer


def name_of_tokenizer(tokenizer: Tokenizer) -> str:
    """What error messages call a tokenizer."""
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
