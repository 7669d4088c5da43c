"""JSON exchanges with servers: bounded in time and memory, asked again where that helps, without secrets in what they raise."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from mathturn_gym.base.files import parse_json
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, PolicyError, install_extra

T = TypeVar("T")

_RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE: Final = 15.0
"""Seconds. A server that takes two minutes to start must not be left alone for two more."""
_CHAT_BYTES: Final = 2**20
_SHOWN: Final = 500
"""Characters of a refusal that are shown."""


class TryAgainError(Exception):
    """An attempt failed for the server's sake.

    Args:
        message: What happened.
        after: Seconds after which the server wants to be asked again, where it said so.
        lost: The server may be gone: no connection, or no whole answer. What it held may be gone with it.
    """

    def __init__(self, message: str, after: float | None = None, *, lost: bool = False) -> None:
        super().__init__(message)
        self.after, self.lost = after, lost


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is.

    Args:
        url: Without user, password and trailing slash: this is what messages show.
        headers: Authorization, where the URL had user and password.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()


def split_url(field: str, url: object) -> SplitResult:
    """The parts of an http(s) URL.

    Args:
        field: What the URL was given for; named in errors.
        url: The URL.

    Raises:
        InvalidValueError: another scheme, no host, a port above 65535, or characters that no URL has.

    >>> split_url("server", "http://127.0.0.1:99999")
    Traceback (most recent call last):
    ...
    mathturn_gym.errors.InvalidValueError: server must be a URL such as 'http://127.0.0.1:8000', got 'http://127.0.0.1:99999' (Port out of range 0-65535)
    """
    why = ""
    if isinstance(url, str) and url.isprintable() and " " not in url:
        try:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return parts
        except ValueError as error:  # an address in brackets without an end; a port that is none
            why = f" ({error})"
    if isinstance(url, str) and "@" in url:  # it may hold a password
        raise InvalidValueError(f"{field} must be a URL such as 'http://127.0.0.1:8000', got something else")
    raise InvalidValueError(f"{field} must be a URL such as 'http://127.0.0.1:8000', got {url!r}{why}")


def servers_of(urls: Sequence[str]) -> tuple[list[Server], list[str]]:
    """The servers behind URLs, and the secrets that the URLs held.

    Raises:
        InvalidValueError: something that is no http(s) URL.
    """
    servers, secrets = [], []
    for url in urls:
        parts = split_url("urls", url.strip() if isinstance(url, str) else url)
        clean = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        if parts.username is None:
            servers.append(Server(clean))
            continue
        user, password = unquote(parts.username), unquote(parts.password or "")
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        servers.append(Server(clean, (("Authorization", f"Basic {basic}"),)))
        secrets += [basic, password, parts.password or ""]
    return servers, [secret for secret in secrets if secret]


class HttpClient:
    """Sends JSON and reads JSON.

    Args:
        needed_by: Who asks, for the message where the library is missing.
        timeout: Seconds for a whole exchange.
        connections: Most at once.
        api_key: Sent as a bearer token.
        secrets: What no message may show, besides the key.

    Raises:
        InvalidValueError: a key that no header can carry.
        MissingDependencyError: httpx2 is not installed.
    """

    def __init__(
        self, *, needed_by: str, timeout: float, connections: int, api_key: str | None, secrets: Sequence[str]
    ) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise MissingDependencyError(f"{needed_by} needs httpx2: {install_extra('openai')}") from error
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key and " " not in api_key):
            raise InvalidValueError("api_key must be printable ASCII without spaces (a line break at its end?)")
        self._timeout = timeout
        # The longest first: one secret may be part of another.
        self._secrets = sorted({*secrets, *([] if api_key is None else [api_key])}, key=len, reverse=True)
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            # Asked for uncompressed: a small answer can then not become a large one.
            headers={
                "Accept-Encoding": "identity",
                **({} if api_key is None else {"Authorization": f"Bearer {api_key}"}),
            },
            trust_env=False,
        )

    async def send(
        self, server: Server, path: str, body: Any, *, max_bytes: int, headers: Mapping[str, str] | None = None
    ) -> Any:
        """One exchange: GET where `body` is None, else POST.

        Args:
            server: Whom to ask.
            path: What.
            body: To be sent as JSON, or None.
            max_bytes: The largest answer that is read.
            headers: Sent besides those of the server.

        Returns:
            The answer from JSON; None where it is empty.

        Raises:
            TryAgainError: no connection, no whole answer in time, or a status that says so.
            PolicyError: any other status; an answer that is too large, compressed, or not JSON.
        """
        import httpx2

        url = server.url + path
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        sent = {**(headers or {}), **dict(server.headers)}
        sent |= {} if content is None else {"Content-Type": "application/json"}
        # Without "from": what the library raises holds the request, and with it the headers.
        try:
            async with asyncio.timeout(self._timeout):
                async with self._client.stream(method, url, content=content, headers=sent) as response:
                    status, answered = response.status_code, response.headers
                    data = await self._read(url, response, max_bytes if status < 300 else 4 * _SHOWN)
        except TimeoutError:
            raise TryAgainError(f"no whole answer within {self._timeout:g} s", lost=True) from None
        except httpx2.TransportError as error:
            raise TryAgainError(self.scrubbed(f"{type(error).__name__} {error}".strip()), lost=True) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise PolicyError(self.scrubbed(f"{url}: {type(error).__name__} {error}")) from None
        if status in _RETRIED:
            raise TryAgainError(f"HTTP {status} {self._shown(data)}", _retry_after(answered.get("Retry-After")))
        if status >= 300:
            moved = f"redirects to {answered['Location']!r}: give that URL" if "Location" in answered else "refuses"
            raise PolicyError(self.scrubbed(f"{url} {moved}: HTTP {status} {self._shown(data)}"))
        return self._parsed(url, data)

    async def chat(self, server: Server, fields: Mapping[str, Any]) -> tuple[str, bool]:
        """Asks a chat model: `POST /chat/completions`.

        Args:
            server: Whom to ask; its URL is what OpenAI's clients call `base_url`.
            fields: Of the request; those that are None are left out.

        Returns:
            The message's text ("" where it has none), and whether the server's budget cut it off.

        Raises:
            TryAgainError: as for `send`.
            PolicyError: as for `send`, or an answer without a message.
        """
        body = {name: value for name, value in fields.items() if value is not None}
        answer = await self.send(server, "/chat/completions", body, max_bytes=_CHAT_BYTES)
        try:
            choice = answer["choices"][0]
            content, cut = choice["message"]["content"], choice.get("finish_reason") == "length"
        except (KeyError, IndexError, TypeError, AttributeError):
            shown = self.scrubbed(str(answer)[:200])
            raise PolicyError(f"{server.url}/chat/completions answered without a message: {shown}") from None
        return (content if isinstance(content, str) else ""), cut

    def scrubbed(self, text: str) -> str:
        """A text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _read(self, url: str, response: Any, limit: int) -> bytes:
        """The answer's bytes; of a refusal the beginning."""
        refused = response.status_code >= 300
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity" and not refused:
            raise PolicyError(f"{url} answered with Content-Encoding {encoding!r}, which it was not asked for")
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > limit:
                if refused:
                    break
                raise PolicyError(f"{url} sent an answer larger than {limit} bytes: it was not read to its end")
        return bytes(data)

    def _parsed(self, url: str, data: bytes) -> Any:
        if not data:
            return None
        try:
            return parse_json(data)
        except ValueError:
            # The connection may have been cut where the server gave no length.
            raise TryAgainError(f"{url} did not answer in JSON: {self._shown(data)}") from None

    def _shown(self, data: bytes) -> str:
        return self.scrubbed(data.decode("utf-8", "replace"))[:_SHOWN]


class ServerGroup:
    """Servers of one model: which of them to ask, and what to do when it does not answer. It lives in one event loop.

    key ─► server (by rendezvous hashing, of those that are not resting) ─► ask
    ▲ failed: it rests; wait, or ask the next one ─┘

    Args:
        servers: At least one.
        timeout: Seconds that a server may ask to be left alone.
        retries: Further attempts of a request that failed for a server's sake.
        backoff: Seconds before the first retry; doubled with each, up to 15.
    """

    def __init__(self, servers: Sequence[Server], *, timeout: float, retries: int, backoff: float) -> None:
        self._servers = servers
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._resting: dict[str, float] = {}  # until when a server that failed is left alone, by the loop's clock

    async def ask(self, key: str, ask: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Asks the key's server; where that fails, it rests for a pause that doubles, and the next one is asked.

        Raises:
            PolicyError: none answered after all retries, or the only one that might wants to be left alone for too long.
        """
        clock, pause, failure = asyncio.get_running_loop().time, self._backoff, ""
        for _ in range(self._retries + 1):
            server, wait = self._choose(key, clock())
            await asyncio.sleep(wait)
            try:
                found = await ask(server)
            except TryAgainError as error:
                failure = f"{server.url}: {error}"
                until = clock() + max(pause, error.after or 0.0)
                self._resting[server.url] = max(self._resting.get(server.url, 0.0), until)
                pause = min(2 * pause, max(_LONGEST_PAUSE, self._backoff))
            else:
                self._resting.pop(server.url, None)
                return found
        raise PolicyError(
            f"no answer after {self._retries + 1} attempts; the last: {failure}. Is the server running, and are"
            f" timeout and retries large enough?"
        )

    def _choose(self, key: str, now: float) -> tuple[Server, float]:
        """Whom to ask, and after how many seconds.

        Rendezvous hashing: a key moves only while its own server rests.
        """
        up = [server for server in self._servers if self._resting.get(server.url, 0.0) <= now]
        if up:
            return max(up, key=lambda server: zlib.crc32(f"{key} {server.url}".encode())), 0.0
        first = min(self._servers, key=lambda server: self._resting[server.url])
        wait = self._resting[first.url] - now
        if wait > self._timeout:
            raise PolicyError(f"{first.url} wants to be asked again in {wait:.0f} s, which is more than timeout")
        return first, wait


def _retry_after(header: str | None) -> float | None:
    """Seconds that a Retry-After header names, as a number or a date; None where it means nothing."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0.0 else None
