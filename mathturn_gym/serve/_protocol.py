"""What server and client agree on besides OpenEnv's protocol: a version, what is told about the server, infos as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from mathturn_gym.dialogue import TurnDialogue
from mathturn_gym.errors import InvalidValueError, ServerError
from mathturn_gym.trajectories.records import verdict_from_record, verdict_to_record

__all__ = [
    "IDLE_CLOSE_CODE",
    "KEY_SUBPROTOCOL",
    "PROTOCOL_VERSION",
    "check_protocol",
    "error_named",
    "fingerprint",
    "info_from_record",
    "info_to_record",
]

PROTOCOL_VERSION: Final = 1
"""Raised with every change that an older client or server would misunderstand."""

IDLE_CLOSE_CODE: Final = 4408
"""With which the server closes a session that has sent nothing for too long (HTTP's 408, in the private range)."""

KEY_SUBPROTOCOL: Final = "mathturn-key."
"""Begins the WebSocket subprotocol that carries an API key in hexadecimal: a browser can send no headers."""


def info_to_record(info: Mapping[str, Any]) -> dict[str, Any]:
    """A `StepInfo` as JSON types."""
    verdict = info["verdict"]
    return {**info, "verdict": None if verdict is None else verdict_to_record(verdict)}


def info_from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The `StepInfo` that `info_to_record` was given.

    >>> from mathturn_gym.types import Status, Verdict
    >>> info = {"turn": 1, "verdict": Verdict(Status.RIGHT, span=(0, 3)), "gold": ("4",)}
    >>> info_from_record(json.loads(json.dumps(info_to_record(info)))) == info
    True
    """
    info = dict(record)
    verdict = info["verdict"]
    info["verdict"] = None if verdict is None else verdict_from_record(verdict, int(info["turn"]) - 1)
    if "gold" in info:
        info["gold"] = tuple(info["gold"])
    return info


def fingerprint(dialogue: TurnDialogue) -> str:
    """A hash of vocabulary and chat template: where it is equal, equal texts have equal ids.

    Returns:
        32 hexadecimal digits.
    """
    tokenizer = dialogue.tokenizer
    content = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, dialogue.end_of_turn]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def check_protocol(url: str, told: object) -> Mapping[str, Any]:
    """What a server told about itself, or an error where this client cannot talk to it.

    Args:
        url: For the message.
        told: JSON of `GET /info`.

    Raises:
        ServerError: it is no server of this package, or one of another protocol version.
    """
    if not isinstance(told, Mapping) or "mathturn_protocol" not in told:
        raise ServerError(f"{url} is not a `mathturn serve` server: its /info does not name a protocol version")
    version = told["mathturn_protocol"]
    if version != PROTOCOL_VERSION:
        raise ServerError(
            f"{url} speaks protocol version {version!r} (mathturn_gym {told.get('version')}), this client speaks version"
            f" {PROTOCOL_VERSION}: install the same mathturn_gym on both sides"
        )
    return told


def error_named(message: str) -> Exception:
    """The exception behind a server's `"NameOfError: text"`; `ServerError` for a name that is not of this package.

    >>> error_named("InvalidValueError: seed must be an integer")
    InvalidValueError('seed must be an integer')
    """
    from mathturn_gym import errors

    name, found, text = message.partition(": ")
    kind = getattr(errors, name, None) if found and name in errors.__all__ else None
    return ServerError(message) if kind is None else kind(text)


def check_send_tokens(value: object) -> str:
    """Returns which ids an observation shall carry, or raises `InvalidValueError`."""
    if value not in ("all", "new", "none"):
        raise InvalidValueError(f"send_tokens must be 'all', 'new' or 'none', got {value!r}")
    return str(value)
