"""How transformers is used here: a name loads or fails at once, nothing from outside is executed, and bars stay away.

Left to itself, transformers asks on standard input whether to run a folder's Python, and asks the hub six times for
each file of a name that does not exist.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

__all__ = ["is_hub_name", "no_progress_bars", "pretrained_kwargs"]

_SECONDS: Final = 10.0
"""How long the hub may take to say whether it has a model."""

_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(name: str) -> bool:
    """True where the hub could have a model of that name: NAME or ORGANIZATION/NAME."""
    return _HUB_NAME.fullmatch(name) is not None and ".." not in name and "--" not in name


def pretrained_kwargs(name: str | Path) -> dict[str, Any]:
    """Keywords with which a folder or hub name is loaded.

    Args:
        name: A folder, or a name on the Hugging Face hub.

    Raises:
        OSError: it is neither a folder nor on the hub, or the hub cannot be asked and nothing was downloaded before.
    """
    if Path(name).is_dir():
        return {"trust_remote_code": False, "local_files_only": True}
    if not is_hub_name(str(name)):
        raise OSError(f"{str(name)!r} is no folder, and not of the form ORGANIZATION/NAME of the Hugging Face hub")
    return {"trust_remote_code": False, "local_files_only": not _hub_has(str(name))}


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keeps transformers from drawing a bar for each of the many small files that training reads and writes."""
    from transformers.utils import logging as transformers_logging

    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=64)
def _hub_has(name: str) -> bool:
    """True where the hub has the model; False where it cannot be asked, but an earlier download can be used."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=_SECONDS)
    except RepositoryNotFoundError as error:
        raise OSError(f"the Hugging Face hub has no model {name!r} (or it is private: log in)") from error
    except Exception as error:  # no network, offline mode, a busy hub: each HTTP library has classes of its own for it
        reason = type(error).__name__
    else:
        return True
    downloaded = any(
        isinstance(try_to_load_from_cache(name, file), str) for file in ("config.json", "adapter_config.json")
    )
    if not downloaded:
        raise OSError(f"{name!r} is no folder here, and the Hugging Face hub cannot be asked for it ({reason})")
    return False
