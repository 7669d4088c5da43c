"""`write_view`: from paths or episodes to a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mathturn_gym._files import write_atomically
from mathturn_gym._token_texts import TokenTexts
from mathturn_gym.dialogue import load_tokenizer
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode
from mathturn_gym.view._encoding import Block, blocks
from mathturn_gym.view._page import render_page
from mathturn_gym.view._records import ViewEpisode, from_episodes
from mathturn_gym.view._sources import Curves, EpisodeSet, read_curves, read_sets, run_names
from mathturn_gym.view._tokenizers import find_tokenizer

__all__ = ["Runs", "View", "read_view", "write_view"]

Runs: TypeAlias = (
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Sequence[Episode] | Sequence[ViewEpisode]]
)
"""A path, several, or episodes by name."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a page shows.

    Args:
        sets: Sets of episodes, at least one.
        curves: Curves of the runs.
        texts: Says what the ids mean.
    """

    sets: Sequence[EpisodeSet]
    curves: Sequence[Curves]
    texts: TokenTexts

    def about(self) -> dict[str, Any]:
        """All but the episodes, as JSON types."""
        return {
            "title": " and ".join(dict.fromkeys(one.name for one in self.sets)),
            "sets": [
                {"name": one.name, "path": one.path, "format": one.format, "left_out": list(one.left_out)}
                for one in self.sets
            ],
            "curves": curves_json(self.curves),
        }

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """The episodes, packed, each block with its set's number."""
        for number, one in enumerate(self.sets):
            for block in blocks(one.episodes, self.texts):
                yield number, block


def curves_json(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    """Curves as JSON types."""
    return [{"name": one.name, "columns": dict(one.columns)} for one in curves]


def read_view(runs: Runs, *, tokenizer: Any = None) -> View:
    """Reads what a page will show.

    Args:
        runs: Run folders or files of episodes (ours, TRL's, verl's, verifiers', Inspect's), or episodes by name.
        tokenizer: "builtin", a folder or hub name, or a Hugging Face tokenizer; None takes the one that the first run
            names, if it is on this machine. Without one, tokens are shown by their ids.

    Raises:
        InvalidValueError: a path that is not there, or holds no episodes.
        MissingDependencyError: a format whose library is not installed.
    """
    if isinstance(runs, Mapping):
        sets = [EpisodeSet(name, name, "mathturn_gym", _shown(episodes)) for name, episodes in runs.items()]
        found, curves = tokenizer, []
    else:
        paths = [Path(runs)] if isinstance(runs, (str, os.PathLike)) else [Path(path) for path in runs]
        names = run_names(paths)
        sets = [one for path, name in zip(paths, names, strict=True) for one in read_sets(path, name)]
        curves = [one for path, name in zip(paths, names, strict=True) for one in read_curves(path, name)]
        folders = [path if path.is_dir() else path.parent for path in paths]
        found = tokenizer
        if found is None:
            found = next((name for name in map(find_tokenizer, folders) if name is not None), None)
    if not sets:
        raise InvalidValueError("runs must name at least one run folder or file of episodes, got none")
    return View(sets, curves, TokenTexts(None if found is None else load_tokenizer(found)))


def write_view(out: str | os.PathLike[str], runs: Runs, *, tokenizer: Any = None) -> Path:
    """Writes the page.

    Args:
        out: The HTML file, replaced if it is there.
        runs: See `read_view`.
        tokenizer: See `read_view`.

    Returns:
        The file's path.

    Raises:
        InvalidValueError: see `read_view`; or a folder that is not there.
        MissingDependencyError: see `read_view`.

    >>> write_view("run.html", {"before": before, "after": after}, tokenizer="builtin")  # doctest: +SKIP
    PosixPath('run.html')
    """
    target = Path(out)
    if not target.resolve().parent.is_dir():
        raise InvalidValueError(f"out must be in a folder that is there, got {str(target)!r}")
    view = read_view(runs, tokenizer=tokenizer)
    write_atomically(target, render_page(view.about(), view.blocks()))
    return target


def _shown(episodes: Sequence[Any]) -> Sequence[ViewEpisode]:
    """Episodes as the viewer shows them, whichever of the two kinds they are."""
    own = [episode for episode in episodes if isinstance(episode, Episode)]
    if not own:
        return list(episodes)
    if len(own) != len(episodes):
        raise InvalidValueError("a set must hold Episodes or ViewEpisodes, got both")
    return from_episodes(own)
