"""A model behind vLLM's (or a compatible) `/v1/completions`: ids in, ids and log-probs out, no text in between.

context ─► replica that holds its prefix ─► POST /v1/completions {"prompt": [ids], …} ─► token_ids, token_logprobs
                   │ busy, unreachable: wait, try the next one
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeVar

import numpy as np

from mathturn_gym.decoding.servers._completions_api import Sessions, first_choice, read_completion
from mathturn_gym.errors import (
    InvalidValueError,
    MissingDependencyError,
    PolicyError,
    check_float,
    check_int,
    raise_unknown_name,
)
from mathturn_gym.types import Completion, Ids

__all__ = ["OpenAIPolicy"]

T = TypeVar("T")

_WEIGHTS_APIS: Final = ("vllm", "sglang")
_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})


class OpenAIPolicy:
    """Policy over one or more replicas of a server that takes and returns token ids.

    It is a `Policy`, a `StreamingPolicy` and an `AsyncPolicy`. vLLM >= 0.10 returns ids (`return_token_ids`); start it
    with `--logprobs-mode processed_logprobs`, or its log-probs are not those of the distribution sampled from (which
    is noticed). Sampling runs on the server, seeded per request: the same seed gives the same sample from the same
    server, and not the sample that `CausalLMPolicy` draws with it.

    Args:
        urls: Base URL of every replica, e.g. "http://127.0.0.1:8000".
        model: The model's name there; None asks the first replica.
        tokenizer: The served model's; kept for who makes an environment with it.
        temperature: See `Sampling`.
        top_p: See `Sampling`.
        top_k: See `Sampling`.
        min_p: See `Sampling`.
        stop_ids: Ids that end a completion, besides the model's own end of sequence.
        concurrency: Most requests under way at once, over all replicas.
        timeout: Seconds that one request may take.
        retries: Further attempts of a request that failed for the server's sake (no connection, timeout, busy, 5xx).
        backoff: Seconds before the first retry; doubled with each.
        api_key: Sent as a bearer token.
        version: Version of the weights.

    Raises:
        InvalidValueError: a value outside its range.
        MissingDependencyError: httpx2 is not installed.

    Attributes:
        scheduler: "streaming": `collect` sends each episode's next turn as soon as its completion has come.
    """

    scheduler: Final = "streaming"

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        tokenizer: Any = None,
        model: str | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        stop_ids: Iterable[int] = (),
        concurrency: int = 256,
        timeout: float = 600.0,
        retries: int = 5,
        backoff: float = 0.5,
        api_key: str | None = None,
        version: int = 0,
    ) -> None:
        self.urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        if not self.urls or not all(url.startswith(("http://", "https://")) for url in self.urls):
            raise InvalidValueError(f"urls must be one or more http(s) URLs, got {urls!r}")
        self.temperature = check_float("temperature", temperature, low=0.0)
        self.top_p, self.min_p = check_float("top_p", top_p, low=1e-9, high=1.0), check_float("min_p", min_p, low=0.0)
        self.top_k = check_int("top_k", top_k, low=0)
        self.stop_ids = sorted({check_int("stop_ids", i, low=0) for i in stop_ids})
        self.tokenizer = tokenizer
        self.version = check_int("version", version, low=0)
        self._retries, self._backoff = check_int("retries", retries, low=0), check_float("backoff", backoff, low=0.0)
        self._model, self._concurrency = model, check_int("concurrency", concurrency, low=1)
        self._client = _make_client(check_float("timeout", timeout, low=0.0), self._concurrency, api_key)
        self._checked: set[str] = set()
        self._probing: dict[str, asyncio.Lock] = {}
        self._down: set[str] = set()
        self._sessions = Sessions()
        self._tickets = itertools.count()
        self._running: dict[int, Future[Completion]] = {}
        self._done: SimpleQueue[int] = SimpleQueue()
        self._in_flight, self._updating = 0, False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai-policy", daemon=True)
        self._thread.start()
        self._slots, self._change = self._call(self._start())

    # ---- the three protocols

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """Continues one context; cancelling the call drops the connection, and with it the request.

        Args:
            context: int64 (L,), not empty.
            max_tokens: Budget, >= 0; 0 is answered without asking.
            seed: Determines the sample on the server.
            session: Requests of one session go to one replica, while it is up.

        Raises:
            PolicyError: the server refuses, cannot return ids, or did not answer after all retries.
        """
        return await asyncio.wrap_future(self._begin(context, max_tokens, seed, session))

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Continues each context; see `Policy.complete`.

        Raises:
            PolicyError: as for `acomplete`; the other requests are dropped.
        """
        drawn = [None] * len(contexts) if seeds is None else seeds
        futures = [self._begin(*row, None) for row in zip(contexts, max_tokens, drawn, strict=True)]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Sends one request; `advance` answers it."""
        ticket = next(self._tickets)
        self._running[ticket] = future = self._begin(context, max_tokens, seed, None)
        future.add_done_callback(lambda _: self._done.put(ticket))
        return ticket

    def advance(self) -> list[tuple[int, Completion]]:
        """Waits for the next answers; empty where nothing was submitted.

        Raises:
            PolicyError: as for `acomplete`, for the request that met it.
        """
        found: list[tuple[int, Completion]] = []
        while self._running and (not found or not self._done.empty()):
            future = self._running.pop(ticket := self._done.get(), None)
            if future is not None:
                found.append((ticket, future.result()))
        return found

    def cancel(self, ticket: int) -> bool:
        """Drops a submitted request; False where there is none of that number."""
        future = self._running.pop(ticket, None)
        return future is not None and (future.cancel() or True)

    def release(self, context: Ids) -> None:
        """The server's own prefix cache forgets by itself."""

    # ---- weights and the end

    def update_weights(
        self, path: str | Path, *, version: int | None = None, api: Literal["vllm", "sglang"] = "vllm"
    ) -> int:
        """Has every replica load a checkpoint: requests under way are awaited, new ones wait.

        vLLM must run with VLLM_SERVER_DEV_MODE=1 (`/collective_rpc`, then `/reset_prefix_cache`); SGLang takes
        `/update_weights_from_disk`.

        Args:
            path: The checkpoint's folder, as the servers see it.
            version: The new version, above the old one; None counts up by one.
            api: Whose calls to make.

        Returns:
            The new version.

        Raises:
            PolicyError: a replica refuses; the version stays.
        """
        if api not in _WEIGHTS_APIS:
            raise_unknown_name("api", api, _WEIGHTS_APIS)
        new = check_int("version", self.version + 1 if version is None else version, low=self.version + 1)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}),
            ("/reset_prefix_cache", {}),
        ]
        if api == "sglang":
            calls = [("/update_weights_from_disk", {"model_path": str(path)})]
        self._call(self._update(calls, new))
        return new

    def close(self) -> None:
        """Drops what is under way and closes the connections."""
        if self._loop.is_closed():
            return
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> OpenAIPolicy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- inside: all of it in the policy's own event loop

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> tuple[asyncio.Semaphore, asyncio.Condition]:
        return asyncio.Semaphore(self._concurrency), asyncio.Condition()

    async def _stop(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._client.aclose()

    def _begin(self, context: Ids, max_tokens: int, seed: int | None, session: str | None) -> Future[Completion]:
        budget = check_int("max_tokens", max_tokens, low=0)
        if len(context) == 0:
            raise InvalidValueError("context is empty: a language model continues at least one id")
        ids = np.array(context, np.int64)
        return asyncio.run_coroutine_threadsafe(self._request(ids, budget, seed, session), self._loop)

    async def _request(self, context: Ids, budget: int, seed: int | None, session: str | None) -> Completion:
        """One request, from the wait for a place to the completion."""
        async with self._slots:
            async with self._change:
                await self._change.wait_for(lambda: not self._updating)
                self._in_flight += 1
            try:
                return await self._complete(context, budget, seed, session)
            finally:
                async with self._change:
                    self._in_flight -= 1
                    self._change.notify_all()

    async def _complete(self, context: Ids, budget: int, seed: int | None, session: str | None) -> Completion:
        if not budget:
            return Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), True, self.version)
        key = self._sessions.of(context) if session is None else session
        prompt = [int(i) for i in context]

        async def ask(url: str) -> Completion:
            await self._check(url, prompt)
            choice = await self._post_completion(url, prompt, budget, seed)
            return read_completion(url, prompt, budget, choice, self.version)

        completion = await self._retry(key, ask)
        if session is None:
            self._sessions.remember(np.concatenate([context, completion.ids]), key)
        return completion

    async def _retry(self, key: str, ask: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        """Asks the session's replica, then, after a pause, the next one that is up."""
        pause, failure = self._backoff, ""
        for attempt in range(self._retries + 1):
            url = self._replica(key)
            try:
                found = await ask(url)
            except _TryAgainError as error:
                failure = f"{url}: {error}"
                self._down.add(url)
            else:
                self._down.discard(url)
                return found
            if attempt < self._retries:
                await asyncio.sleep(pause)
                pause *= 2
        raise PolicyError(
            f"no answer after {self._retries + 1} attempts; the last: {failure}. Is the server running, and are"
            f" timeout and retries large enough?"
        )

    def _replica(self, key: str) -> str:
        """Rendezvous hashing: a session moves only when its own replica is down, or up again."""
        up = [url for url in self.urls if url not in self._down]
        if not up:  # all have failed: each gets another chance
            self._down.clear()
            up = self.urls
        return max(up, key=lambda url: zlib.crc32(f"{key} {url}".encode()))

    async def _post_completion(self, url: str, prompt: list[int], budget: int, seed: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": budget,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "stop_token_ids": self.stop_ids,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if seed is not None:
            body["seed"] = int(seed)
        return first_choice(url, await self._send(url, "/v1/completions", body))

    async def _send(self, url: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """One HTTP exchange; `_TryAgainError` where another attempt may help."""
        import httpx2

        try:
            if body is None:
                response = await self._client.get(url + path)
            else:
                response = await self._client.post(url + path, json=body)
        except httpx2.TransportError as error:
            raise _TryAgainError(f"{type(error).__name__} {error}".strip()) from error
        if response.status_code in _RETRIED:
            raise _TryAgainError(f"HTTP {response.status_code} {response.text[:200]}")
        if response.status_code >= 400:
            raise PolicyError(f"{url}{path} refuses: HTTP {response.status_code} {response.text[:500]}")
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise PolicyError(f"{url}{path} did not answer in JSON: {response.text[:200]!r}") from error

    async def _check(self, url: str, prompt: list[int]) -> None:
        """Once per replica: its model's name, that it returns ids, and which log-probs it returns."""
        async with self._probing.setdefault(url, asyncio.Lock()):
            if url not in self._checked:
                await self._probe(url, prompt)
                self._checked.add(url)

    async def _probe(self, url: str, prompt: list[int]) -> None:
        if self._model is None:
            listed = await self._send(url, "/v1/models", None)
            try:
                self._model = str(listed["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise PolicyError(f"{url}/v1/models names no model: {listed!r}; give model=") from error
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "logprobs": 0, "return_token_ids": True}
        probe = {**body, "temperature": 1.0, "top_k": 1, "seed": 0}
        completion = read_completion(
            url, prompt, 1, first_choice(url, await self._send(url, "/v1/completions", probe)), 0
        )
        # Of one id that could be sampled, the log-prob is 0: anything else is the untouched distribution's.
        raw = bool(np.any(completion.logprobs < -1e-3))
        changed = self.temperature not in (0.0, 1.0) or self.top_k or self.top_p < 1.0 or self.min_p
        if raw and changed:
            raise PolicyError(
                f"{url} returns log-probs of the untouched distribution, not of the one that is sampled from with"
                f" temperature={self.temperature}, top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}: start"
                f" vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 with nothing cut off"
            )

    async def _update(self, calls: Sequence[tuple[str, dict[str, Any]]], version: int) -> None:
        async with self._change:
            await self._change.wait_for(lambda: not self._updating)
            self._updating = True
            await self._change.wait_for(lambda: self._in_flight == 0)
        try:
            for path, body in calls:
                for url in self.urls:
                    try:
                        await self._send(url, path, body)
                    except _TryAgainError as error:
                        raise PolicyError(f"{url}{path}: {error}; its weights may be the old ones") from error
            self.version = version
        finally:
            async with self._change:
                self._updating = False
                self._change.notify_all()


class _TryAgainError(Exception):
    """An attempt failed for the server's sake."""


def _make_client(timeout: float, connections: int, api_key: str | None) -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise MissingDependencyError("OpenAIPolicy needs httpx2: pip install 'mathturn-gym[openai]'") from error
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        trust_env=False,
    )
