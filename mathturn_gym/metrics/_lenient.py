"""Format and mathematics told apart: what an answer is worth that nobody marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode, Status, Verdict
from mathturn_gym.verifier import Verifier

__all__ = ["read_leniently"]


def read_leniently(episodes: Sequence[Episode], verifier: Verifier | None = None) -> list[Episode]:
    """The episodes, with answers also where none was marked: the last formula or number of such a turn counts.

    Turns that have an answer keep their verdict. So accuracy can only rise, and what it rises by is what the policy
    knows and does not say in the form that was asked for. The episodes are those that were played: where the
    environment took a turn for one without an answer, it went on.

    Args:
        episodes: With texts and gold answers (`gold_in_info=True`).
        verifier: Reads what has no answer; None is `Verifier(extract="lenient")`.

    Raises:
        InvalidValueError: an episode without texts or without a gold answer.

    >>> read_leniently([])
    []
    """
    found = [list(episode.verdicts) for episode in episodes]
    open_turns = [
        (i, k)
        for i, verdicts in enumerate(found)
        for k, verdict in enumerate(verdicts)
        if verdict.status is Status.NO_ANSWER
    ]
    for i in {i for i, _ in open_turns}:
        if not (episodes[i].responses and episodes[i].gold):
            raise InvalidValueError(
                f"episode {episodes[i].index} has no texts or no gold answer to read again: collect with gold_in_info=True"
            )
    reader = Verifier(extract="lenient") if verifier is None else verifier
    responses = [episodes[i].responses[k] for i, k in open_turns]
    again: list[Verdict] = reader.verify_batch(responses, [episodes[i].gold for i, _ in open_turns])
    for (i, k), verdict in zip(open_turns, again, strict=True):
        found[i][k] = verdict
    return [
        dataclasses.replace(episode, verdicts=tuple(verdicts))
        for episode, verdicts in zip(episodes, found, strict=True)
    ]
