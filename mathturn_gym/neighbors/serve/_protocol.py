"""What client and server share (versions, records), and the client's connection; every failure is a `ServerError`."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mathturn_gym.base.files import parse_json
from mathturn_gym.base.http import split_url
from mathturn_gym.env.dialogue import TurnDialogue
from mathturn_gym.episodes.trajectories.records import verdict_from_record, verdict_to_record
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, ServerError, install_extra

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PROTOCOL_VERSION: Final = 1
"""Raised with every change that an older client or server would misunderstand."""

IDLE_CLOSE_CODE: Final = 4408
"""With which the server closes a session that has sent nothing for too long (HTTP's 408, in the private range)."""

KEY_SUBPROTOCOL: Final = "mathturn-key."
"""Begins the WebSocket subprotocol that carries an API key in hexadecimal: a browser can send no headers."""


_VERDICTS: Final = ("verdict", "reward_verdict", "feedback_verdict")


def info_to_record(info: Mapping[str, Any]) -> dict[str, Any]:
    """A `StepInfo` as JSON types."""
    verdicts = {name: info[name] for name in _VERDICTS if info.get(name) is not None}
    return {**info, **{name: verdict_to_record(verdict) for name, verdict in verdicts.items()}}


def info_from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The `StepInfo` that `info_to_record` was given.

    >>> from mathturn_gym.types import Status, Verdict
    >>> info = {"turn": 1, "verdict": Verdict(Status.RIGHT, span=(0, 3)), "gold": ("4",)}
    >>> info_from_record(json.loads(json.dumps(info_to_record(info)))) == info
    True
    """
    info = dict(record)
    for name in _VERDICTS:
        if info.get(name) is not None:
            info[name] = verdict_from_record(info[name], int(info["turn"]) - 1)
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
    """Returns the `send_tokens` mode, or raises `InvalidValueError`."""
    if value not in ("all", "new", "none"):
        raise InvalidValueError(f"send_tokens must be 'all', 'new' or 'none', got {value!r}")
    return str(value)


# ---- the client's connection


_REFUSED: Final = {
    401: "it needs an API key: give api_key=, or set MATHTURN_API_KEY",
    429: "too many requests from this address: wait, or raise the limits of the server or of the proxy before it",
    503: "it is busy, or shutting down",
}

_MOST_TOLD: Final = 1 << 20
"""Bytes of what a server tells about itself that are read."""


def server_info(url: str, api_key: str | None, timeout: float) -> Mapping[str, Any]:
    """Asks a server for its `/info`: settings and protocol version.

    Args:
        url: `http://…` or `https://…`.
        api_key: Its key, or None.
        timeout: Seconds to wait.

    Raises:
        InvalidValueError: the URL is none.
        ServerError: there is no server, it refuses, or it is one that this client cannot talk to.
    """
    split_url("server", url)
    request = urllib.request.Request(f"{url.rstrip('/')}/info", headers=_headers(api_key))  # noqa: S310 - checked above
    handlers = [urllib.request.ProxyHandler({})] if _is_local(url) else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as reply:
            told = parse_json(reply.read(_MOST_TOLD))
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url} refuses (HTTP {error.code}): {_REFUSED.get(error.code, error.reason)}") from error
    except (OSError, ValueError) as error:
        raise ServerError(f"{url} does not answer as a `mathturn serve` server would: {error}") from error
    return check_protocol(url, told)


class ServerConnection:
    """A session: one request at a time, each with one reply.

    Args:
        url: The server.
        api_key: Its key, or None.
        timeout: Seconds to wait for a connection, and for each reply.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        self._url, self._api_key, self._timeout = url, api_key, timeout
        self._connection: ClientConnection | None = None
        self._stack = ExitStack()  # keeps the connection open, until it is closed

    @property
    def is_open(self) -> bool:
        """True where the session that was begun is still there."""
        return self._connection is not None and self._connection.state.name == "OPEN"

    def begin(self) -> None:
        """Begins a session where there is none, or where the last one was ended.

        Raises:
            ServerError: the server is not there, or refuses.
        """
        if self.is_open:
            return
        self.close()
        try:
            from websockets.exceptions import InvalidHandshake, InvalidStatus
            from websockets.sync.client import connect
        except ImportError as error:
            raise MissingDependencyError(f"server= needs websockets: {install_extra('client')} (or [serve])") from error
        options = {"proxy": None} if _is_local(self._url) else {}
        try:
            self._connection = self._stack.enter_context(
                connect(
                    f"ws{self._url.rstrip('/').removeprefix('http')}/ws",
                    additional_headers=_headers(self._api_key),
                    compression=None,
                    max_size=None,  # the server is trusted: a context may be long
                    open_timeout=self._timeout,
                    close_timeout=1.0,
                    **options,
                )
            )
        except InvalidStatus as error:
            code = error.response.status_code
            raise ServerError(f"{self._url} refuses a session (HTTP {code}): {_REFUSED.get(code, '')}") from error
        except (OSError, InvalidHandshake) as error:
            raise ServerError(f"{self._url} cannot be reached: {error}") from error

    def send(self, kind: str, data: Mapping[str, Any]) -> None:
        """Sends a request.

        Raises:
            ServerError: the session was ended, or refused.
        """
        from websockets.exceptions import ConnectionClosed

        if self._connection is None:
            raise ServerError(f"there is no session with {self._url}: reset() begins one")
        try:
            self._connection.send(json.dumps({"type": kind, "data": data}))
        except ConnectionClosed:
            # A server that has no session free says so, and closes: what it said is still to be read.
            self.receive()
            raise

    def receive(self) -> Mapping[str, Any]:
        """The data of the reply to the request that was sent.

        Raises:
            ServerError: no reply, or one that is not understood.
            MathTurnError: the server found a mistake in the request; the class is the one that the environment raises.
        """
        from websockets.exceptions import ConnectionClosed

        assert self._connection is not None
        try:
            raw = self._connection.recv(timeout=self._timeout)
        except TimeoutError as error:
            self.close()  # its reply may still come, and must not be taken for a later one's
            raise ServerError(
                f"{self._url} did not reply within {self._timeout:g} s: give a larger server_timeout="
            ) from error
        except ConnectionClosed as error:
            raise self._ended(error) from error
        kind, data = self._read(raw)
        if kind == "error":
            code, message = data.get("code"), str(data.get("message"))
            if code == "EXECUTION_ERROR":
                raise error_named(message)
            raise ServerError(f"{self._url} refuses ({code}): {message}")
        return data

    def _read(self, raw: str | bytes) -> tuple[str, dict[str, Any]]:
        """A reply's type and data."""
        try:
            reply = parse_json(raw)
            kind, data = reply["type"], reply["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{self._url} replied with something else than a reply: {error!r}") from error
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise ServerError(f"{self._url} replied with something else than a reply: its data are no object")
        return kind, data

    def close(self) -> None:
        """Ends the session; the server has a place free at once."""
        self._connection = None
        self._stack.close()

    def _ended(self, error: Any) -> ServerError:
        self.close()
        frame = error.rcvd
        if frame is not None and frame.code == IDLE_CLOSE_CODE:
            why = f"it ended the session ({frame.reason}); start it with a longer session_timeout"
        elif frame is not None and frame.code == 1009:
            why = "the message was too large for it; raise its max_message_bytes"
        else:
            why = "the connection is lost" if frame is None else f"it ended the session ({frame.code} {frame.reason})"
        return ServerError(f"{self._url}: {why}. The episode is lost; reset() begins another")


def _headers(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def _is_local(url: str) -> bool:
    """True for this machine, which no proxy can reach for us."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
