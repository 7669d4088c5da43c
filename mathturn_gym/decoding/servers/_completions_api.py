"""What `/v1/completions` answers, read strictly: nothing is converted, and nothing is guessed from text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import PolicyError
from mathturn_gym.types import Completion

__all__ = ["model_name", "read_answer", "read_completion"]

_LARGEST_ID: Final = 2**31 - 1

_ROUNDING: Final = 1e-4
"""Log-probs up to this much above 0 are 0: servers round."""


def model_name(url: str, answer: Any) -> str:
    """The first model's name in an answer of `/v1/models`.

    Raises:
        PolicyError: there is none.
    """
    try:
        name = answer["data"][0]["id"]
    except (KeyError, IndexError, TypeError) as error:
        raise PolicyError(f"{url}/v1/models names no model ({_short(answer)}); give model=") from error
    if not isinstance(name, str):
        raise PolicyError(f"{url}/v1/models names no model ({_short(answer)}); give model=")
    return name


def read_answer(url: str, prompt: list[int], budget: int, answer: Any, version: int) -> Completion:
    """The completion in a server's answer.

    Args:
        url: Of the server, for messages.
        prompt: The ids that were sent.
        budget: The most ids that were asked for.
        answer: What came, from JSON.
        version: Version of the weights.

    Raises:
        PolicyError: it holds no completion of this prompt; see `read_completion`.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise PolicyError(f"{url}/v1/completions answered without choices: {_short(answer)}")
    usage = answer.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if read is not None and read != len(prompt):
        raise PolicyError(
            f"{url} read {_short(read)} of the prompt's {len(prompt)} ids: it must take a list of ids as it is"
            " (start it with a larger context, and without truncation of prompts)"
        )
    return read_completion(url, prompt, budget, choice, version)


def read_completion(url: str, prompt: list[int], budget: int, choice: Mapping[str, Any], version: int) -> Completion:
    """The completion in an answer's choice.

    Args:
        url: Of the server, for messages.
        prompt: The ids that were sent.
        budget: The most ids that were asked for.
        choice: The answer's choice.
        version: Version of the weights.

    Raises:
        PolicyError: no ids or log-probs, or such that are none; more than asked for; another prompt than was sent;
            an end that is neither a stop nor the budget.
    """
    table = choice.get("logprobs")
    ids, logprobs = choice.get("token_ids"), table.get("token_logprobs") if isinstance(table, dict) else None
    if not isinstance(ids, list) or not isinstance(logprobs, list):
        raise PolicyError(
            f"{url} returned no {'token_logprobs' if isinstance(ids, list) else 'token_ids'}: text cannot be turned"
            f" back into the ids that were sampled. Serve with vLLM >= 0.10 (return_token_ids)"
        )
    if choice.get("prompt_token_ids") not in (None, prompt):
        raise PolicyError(f"{url} changed the prompt's ids: it must take a list of ids as it is")
    if len(ids) != len(logprobs) or len(ids) > budget:
        raise PolicyError(f"{url} returned {len(ids)} ids and {len(logprobs)} log-probs for a budget of {budget}")
    for place, one in enumerate(ids):
        if type(one) is not int or not 0 <= one <= _LARGEST_ID:  # a bool is an int to isinstance
            raise PolicyError(f"{url}: token_ids[{place}] must be an id (an integer >= 0), got {_short(one)}")
    for place, one in enumerate(logprobs):
        if type(one) not in (int, float) or not math.isfinite(one) or one > _ROUNDING:
            raise PolicyError(f"{url}: token_logprobs[{place}] must be a finite number <= 0, got {_short(one)}")
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise PolicyError(f"{url} ended a completion with finish_reason {_short(reason)}, neither 'stop' nor 'length'")
    if reason == "stop" and not ids:
        raise PolicyError(f"{url} stopped without a stop id: completions must contain the id that ends them")
    floats = np.minimum(np.array(logprobs, np.float32), 0.0)
    return Completion(np.array(ids, np.int64), floats, truncated=reason == "length", version_start=version)


def _short(value: object) -> str:
    """The beginning of a value, for messages."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
