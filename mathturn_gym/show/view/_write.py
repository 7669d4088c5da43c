"""`write_view`: from paths or episodes to the viewer's page, with the tokenizer that a run names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from mathturn_gym.base.files import parse_json, read_regular, write_atomically
from mathturn_gym.base.model_folders import NAMED_MODELS, is_hub_name, models_folder
from mathturn_gym.base.render import ENDINGS, STATUSES
from mathturn_gym.base.text import TokenTexts
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show import pages
from mathturn_gym.show.view._encoding import Block, blocks, pack_json
from mathturn_gym.show.view.records import ViewEpisode, from_episodes
from mathturn_gym.show.view.sources import Curves, EpisodeSet, read_curves, read_sets, run_names
from mathturn_gym.types import Episode

# In this order: each uses what those before it define.
_SCRIPTS: Final = ("data.js", "text.js", "tokens.js", "list.js", "figures.js", "app.js")


def render_page(about: Mapping[str, Any], blocks: Iterable[tuple[int, Block]]) -> str:
    """Returns the viewer's page from what `data.js` calls `about`, and pairs of a set's number and a block."""
    return pages.render_page(
        "view/page.html",
        styles=_styles(),
        scripts=_code(),
        rules=_rules(live=about.get("live") is not None),
        title="mathturn view",
        about=pack_json({**about, "statuses": _STATUSES, "endings": _ENDINGS}),
        blocks=((number, block.to_json()) for number, block in blocks),
    )


_STATUSES: Final = {
    style.letter: {"word": style.words, "mark": style.mark, "name": status.value} for status, style in STATUSES.items()
}
_ENDINGS: Final = {reason.value: words for reason, words in ENDINGS.items()}


def policy_of(*, live: bool = False) -> str:
    """Returns the page's content security policy; a `live` page may ask the server that it came from."""
    return pages.content_policy(_styles(), _code(), _rules(live=live))


def _rules(*, live: bool) -> dict[str, str]:
    return {
        "connect-src": "'self'" if live else "'none'",
        # No script of the page can make elements of a text, such as a model's.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


@cache
def _code() -> tuple[str, ...]:
    """The scripts, as one."""
    own = "\n".join(pages.asset(f"view/{name}") for name in _SCRIPTS)
    return (f'"use strict";\n(() => {{\n{own}\n}})();',)


def _styles() -> str:
    return pages.asset("view/view.css")


# ---- the tokenizer of a run, found without the network


_CONFIG: Final = "tokenizer_config.json"
_MOST_SETTINGS: Final = 1 << 26


def find_tokenizer(folder: Path) -> str | None:
    """Returns the tokenizer that a run's folder names: one in it, its checkpoint's, or what its settings say.

    Only what is on this machine is taken: "builtin", folders, fetched models, the hub's cache.
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
        data = parse_json(read_regular(path, _MOST_SETTINGS))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{path} does not load ({error}); --tokenizer says which tokenizer to use") from error
    found: dict[str, list[str]] = {"tokenizer": [], "policy": [], "model": []}
    waiting = [data]
    while waiting:
        # Breadth first: what stands higher speaks of the run, not of one of its parts.
        value = waiting.pop(0)
        for key, inner in value.items() if isinstance(value, dict) else ():
            if key in found and isinstance(inner, str):
                found[key].append(inner)
            waiting.append(inner)
    return [name for names in found.values() for name in names]


# ---- `write_view`: from paths or episodes to a page


Runs: TypeAlias = (
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Sequence[Episode] | Sequence[ViewEpisode]]
)
"""A path, several, or episodes by name."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a page shows."""

    sets: Sequence[EpisodeSet]  # sets of episodes, at least one
    curves: Sequence[Curves]  # curves of the runs
    texts: TokenTexts  # says what the ids mean

    def about(self) -> dict[str, Any]:
        """Returns everything but the episodes, as JSON types."""
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
