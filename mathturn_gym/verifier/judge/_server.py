"""A judge that is a chat model behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from mathturn_gym.base.http import HttpClient, ServerGroup, servers_of
from mathturn_gym.errors import InvalidValueError, PolicyError, check_float, check_int
from mathturn_gym.verifier.judge._question import JudgeQuestion

_ANSWER_BYTES: Final = 2**20


class _Connection:
    """Client, retries and places for requests, in one event loop."""

    def __init__(self, client: HttpClient, group: ServerGroup, concurrency: int) -> None:
        self.client, self.group, self.places = client, group, asyncio.Semaphore(concurrency)


class ServerJudge:
    """Asks a chat model: `POST /v1/chat/completions`, at temperature 0.

    An async function of a `JudgeQuestion`, for `JudgedVerifier`. It may be used from any thread and event loop, and by a forked
    process, which gets connections of its own.

    Args:
        url: The server, with or without `/v1`, e.g. "http://127.0.0.1:8000". User and password in it are sent, never shown.
        model: The model's name there.
        api_key_env: The environment variable that holds the API key, which is read when the first question is asked, sent as a
            bearer token, and never kept or shown; None sends none.
        timeout: Seconds that one attempt may take; also the longest that the server may ask to be left alone.
        retries: Further attempts of a question that failed for the server's sake.
        backoff: Seconds before the first retry; doubled with each.
        max_tokens: Budget of an answer, thinking included.
        concurrency: Most questions under way at once.
        options: Further fields of the request, or other values for its fields; None leaves a field out (some servers take no
            `temperature`).

    Raises:
        InvalidValueError: a value outside its range.

    Attributes:
        name: The model at the server, as verdicts and remembered answers name it.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout: float = 60.0,
        retries: int = 1,
        backoff: float = 0.5,
        max_tokens: int = 2048,
        concurrency: int = 16,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise InvalidValueError(f"model must be the model's name on the server, got {model!r}")
        if api_key_env is not None and (not isinstance(api_key_env, str) or not api_key_env.isidentifier()):
            # A key that is given directly must not appear in the message.
            raise InvalidValueError("api_key_env must be the name of an environment variable, and not the key itself")
        self._url = url
        self.url = servers_of([url])[0][0].url
        self.model, self.api_key_env = model, api_key_env
        self.timeout = check_float("timeout", timeout, low=1e-3)
        self.retries = check_int("retries", retries, low=0)
        self.backoff = check_float("backoff", backoff, low=0.0)
        self.max_tokens = check_int("max_tokens", max_tokens, low=1)
        self.concurrency = check_int("concurrency", concurrency, low=1)
        self.options = dict(options or {})
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The model at the server."""
        return f"{self.model} at {self.url}"

    def __repr__(self) -> str:
        """Model and server, without anything secret."""
        return f"ServerJudge({self.url!r}, {self.model!r})"

    async def __call__(self, question: JudgeQuestion) -> str:
        """What the model says to a question; `JudgedVerifier` reads it.

        Raises:
            InvalidValueError: the environment variable of the key is not set.
            MissingDependencyError: httpx2 is not installed.
            PolicyError: the server refuses, answers with something else, or does not answer after all retries.
        """
        here = self._here()
        async with here.places:
            try:
                return await here.group.ask("", lambda server: self._post(here.client, server, question))
            except PolicyError as error:  # an answer that is quoted may quote the request
                raise PolicyError(here.client.scrubbed(str(error))) from None

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; the next question opens new ones."""
        found = self._connections.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.client.close()

    async def _post(self, client: HttpClient, server: Any, question: JudgeQuestion) -> str:
        fields = {
            "model": self.model,
            "messages": question.messages(),
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
            **self.options,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        answer = await client.send(server, "/chat/completions", body, max_bytes=_ANSWER_BYTES)
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise PolicyError(
                f"{server.url}/chat/completions answered without a message: {str(answer)[:200]}"
            ) from None
        return content if isinstance(content, str) else ""

    def _here(self) -> _Connection:
        """What belongs to the running event loop; a forked process has another one."""
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None:
            servers, secrets = servers_of([self._url.rstrip("/").removesuffix("/v1").rstrip("/") + "/v1"])
            client = HttpClient(
                needed_by="ServerJudge",
                timeout=self.timeout,
                connections=self.concurrency,
                api_key=self._key(),
                secrets=secrets,
            )
            group = ServerGroup(servers, timeout=self.timeout, retries=self.retries, backoff=self.backoff)
            found = self._connections[loop] = _Connection(client, group, self.concurrency)
        return found

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise InvalidValueError(f"the environment variable {self.api_key_env}, which api_key_env names, is not set")
        return key

    def __getstate__(self) -> dict[str, Any]:
        """A copy (in another process, for example) starts with the same settings, and connections of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_connections"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connections = WeakKeyDictionary()
