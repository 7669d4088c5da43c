"""How problems that stand in a list are divided into splits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems.base import SPLITS

ALIASES: Final = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""What data sets call their splits."""

_LOG = logging.getLogger("mathturn_gym.problems")
_said: set[str] = set()


def own_split(mark: object) -> str | None:
    """The split that a problem says it is of, or None.

    >>> own_split("Dev"), own_split(3)
    ('validation', None)
    """
    return ALIASES.get(mark.strip().lower()) if isinstance(mark, str) else None


def divide(hashed: Sequence[str], own: Sequence[str | None]) -> tuple[list[str], str]:
    """The split of each problem.

    Args:
        hashed: N splits by the hash of the prompt.
        own: N splits that the problems say they are of, or None; believed where every one of them says so.

    Returns:
        N splits, and how they came about.

    >>> divide(["train", "test", "test"], ["train", "train", "validation"])[0]
    ['train', 'test', 'validation']
    """
    if None in own:
        return list(hashed), "by a hash of the prompt (8 : 1 : 1), having no splits of their own"
    there = set(own)
    # What train lacks is cut out of train alone: a published test split stays what it was published as.
    found = [
        by_hash if said == "train" and by_hash not in there else str(said)
        for by_hash, said in zip(hashed, own, strict=True)
    ]
    if "train" not in there or there == set(SPLITS):
        return found, "by their own splits"
    return found, "by their own splits; what is missing comes out of train by a hash of the prompt"


def say(where: str, splits: Iterable[str], how: str) -> None:
    """Logs how many problems went where: once in a process, however often a run opens the same source."""
    counts = Counter(splits)
    text = f"{where}: {sum(counts.values()):,} problems are divided {how}: {_shown(counts)}"
    # A run opens its source for training, validation and test: said once is enough.
    if text not in _said:
        _said.add(text)
        _LOG.warning("%s", text)


def no_problem_in(where: str, split: str, splits: Iterable[str]) -> InvalidValueError:
    """The error for a part without problems."""
    return InvalidValueError(
        f"source {where!r} has no problem in the split {split!r} ({_shown(Counter(splits))}): give every split problems of"
        " its own, as {'train': …, 'test': …}, or play all of them in every split (':all', split='all')"
    )


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[split]:,} {split}" for split in SPLITS)
