"""Hugging Face data sets: by the name of a hub, as a folder that `save_to_disk` wrote, or loaded already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, ProblemFileError, install_extra
from mathturn_gym.problems.base import ProblemSource
from mathturn_gym.problems.lists import ALIASES, SplitSource
from mathturn_gym.problems.rows import RowProblems, numbered

_SAVED: Final = ("dataset_info.json", "dataset_dict.json", "state.json")
_NAME: Final = re.compile(r"(?P<path>[^:]+)(?::(?P<first>[^:\[\]]*))?(?::(?P<second>[^:\[\]]+))?(?P<slice>\[[^\]]*\])?")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What is said of files and data sets beside their names: the columns, and whether broken rows are left out."""

    fields: Mapping[str, str] | None = None
    skip_bad_rows: bool = False

    @property
    def given(self) -> bool:
        """Whether anything is said."""
        return self.fields is not None or self.skip_bad_rows


def is_data_set(given: object) -> bool:
    """Whether an object is one of the library `datasets`, without loading that library."""
    # By the module of its class: importing `datasets` to ask takes a second, also where there is no data set.
    return any(kind.__module__.split(".")[0] == "datasets" for kind in type(given).__mro__)


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in _SAVED)


def from_hub(name: str, options: FileOptions) -> ProblemSource:
    """What `hf:NAME`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG` and `hf:NAME:CONFIG:SPLIT` name (without the `hf:`).

    Between the last two forms with one colon the word decides: train, validation, test (and dev, val, all) are splits.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidValueError(
            f"a data set is 'hf:NAME', 'hf:NAME:SPLIT', 'hf:NAME:CONFIG' or 'hf:NAME:CONFIG:SPLIT', got 'hf:{name}'"
        )
    path, config, split = match["path"], match["first"] or None, match["second"]
    # gsm8k:main is a config, gsm8k:test a split: only the word can tell.
    if split is None and config is not None and (match["slice"] or config in (*ALIASES, "all")):
        config, split = None, config
    if Path(path).is_dir() and is_saved(Path(path)):
        source = from_saved(Path(path), options)
        return source if split is None else _chosen(source, split)
    library = _library()
    wanted = None if split in (None, "all") else f"{split}{match['slice'] or ''}"
    try:
        loaded = library.load_dataset(path, config, split=wanted)
    except Exception as error:  # the library raises whatever its back ends raise
        raise ProblemFileError(
            f"data set {path!r} (config {config}, split {split}) cannot be loaded: {error}; without a network, name a"
            " file with its rows instead (--data FILE)"
        ) from error
    source = from_loaded(loaded, Path(path).name, options, None if wanted is None else split)
    return source.part("all") if split == "all" else source


def from_saved(folder: Path, options: FileOptions) -> ProblemSource:
    """A folder that `save_to_disk` wrote."""
    library = _library()
    try:
        loaded = library.load_from_disk(str(folder))
    except Exception as error:  # as above
        raise ProblemFileError(f"data set {str(folder)!r} cannot be loaded: {error}") from error
    return from_loaded(loaded, folder.resolve().name, options)


def from_loaded(loaded: Any, name: str, options: FileOptions, split: str | None = None) -> ProblemSource:
    """A `datasets.Dataset` (the split that it is, where one was chosen), or a `DatasetDict` with its splits.

    Raises:
        InvalidValueError: a data set that is streamed has no length, and no order to come back to.
        ProblemFileError: a row is broken, or there is none that can be used.
    """
    if isinstance(loaded, Mapping):
        parts = {str(key): from_loaded(part, name, options, str(key)) for key, part in loaded.items() if len(part)}
        return SplitSource(parts, name)
    if not hasattr(loaded, "__len__"):
        raise InvalidValueError(
            f"problems: a {type(loaded).__name__} has no length; load the data set without streaming=True"
        )
    where = f"data set {name}" if split is None else f"data set {name} ({split})"
    known = None if split is None else ALIASES.get(split, split)
    return RowProblems(numbered(loaded), where, name, options.fields, options.skip_bad_rows, known)


def _chosen(source: ProblemSource, split: str) -> ProblemSource:
    if isinstance(source, SplitSource) and split not in (*ALIASES, "all", *source.splits):
        raise ProblemFileError(f"data set {source.name!r} has no split {split!r}; it has {', '.join(source.splits)}")
    return source.part(ALIASES.get(split, split))


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(f"Hugging Face data sets need datasets: {install_extra('data')}") from error
    return datasets
