"""What `/v1/completions` answers, read strictly, and which server to ask: the parts of `OpenAIPolicy` without a network."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from mathturn_gym.errors import PolicyError
from mathturn_gym.types import Completion, Ids

__all__ = ["Sessions", "first_choice", "read_completion"]


class Sessions:
    """Which session a context continues, told by its ids: those of an earlier context and its completion.

    Args:
        room: Contexts to remember; the oldest are forgotten first.
    """

    def __init__(self, room: int = 65536) -> None:
        self._room = room
        self._by_place: OrderedDict[tuple[int, int], str] = OrderedDict()  # (length, hash of so many ids) -> session
        self._lengths: Counter[int] = Counter()
        self._names = itertools.count()

    def of(self, context: Ids) -> str:
        """The session of the longest context that `context` continues, or a new one."""
        for length in sorted((n for n in self._lengths if n <= len(context)), reverse=True):
            place = length, hash(context[:length].tobytes())
            if place in self._by_place:
                self._by_place.move_to_end(place)
                return self._by_place[place]
        return str(next(self._names))

    def remember(self, ids: Ids, session: str) -> None:
        """Notes that what continues `ids` belongs to a session."""
        place = len(ids), hash(ids.tobytes())
        if place not in self._by_place:
            self._lengths[len(ids)] += 1
        self._by_place[place] = session
        while len(self._by_place) > self._room:
            (length, _), _ = self._by_place.popitem(last=False)
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]


def first_choice(url: str, answer: Any) -> dict[str, Any]:
    """The choice in an answer.

    Raises:
        PolicyError: there is none.
    """
    try:
        choice = answer["choices"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise PolicyError(f"{url}/v1/completions answered without choices: {str(answer)[:200]}") from error
    return dict(choice)


def read_completion(url: str, prompt: list[int], budget: int, choice: Mapping[str, Any], version: int) -> Completion:
    """The completion in a server's answer; nothing in it is guessed from text.

    Args:
        url: Of the server, for messages.
        prompt: The ids that were sent.
        budget: The most ids that were asked for.
        choice: The answer's choice.
        version: Version of the weights.

    Raises:
        PolicyError: no ids or log-probs, other than asked for, or an end that is neither a stop nor the budget.
    """
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(ids, list) or not isinstance(logprobs, list):
        raise PolicyError(
            f"{url} returned no {'token_ids' if not isinstance(ids, list) else 'token_logprobs'}: text cannot be turned"
            f" back into the ids that were sampled. Serve with vLLM >= 0.10 (return_token_ids)"
        )
    if choice.get("prompt_token_ids") not in (None, prompt):
        raise PolicyError(f"{url} changed the prompt's ids: it must take a list of ids as it is")
    if len(ids) != len(logprobs) or len(ids) > budget or None in logprobs:
        raise PolicyError(f"{url} returned {len(ids)} ids and {len(logprobs)} log-probs for a budget of {budget}")
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise PolicyError(f"{url} ended a completion with finish_reason {reason!r}, neither 'stop' nor 'length'")
    floats = np.minimum(np.array(logprobs, np.float32), 0.0)
    return Completion(np.array(ids, np.int64), floats, truncated=reason == "length", version_start=version)
