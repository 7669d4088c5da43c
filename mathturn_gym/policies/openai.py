"""A model behind a server of vLLM or SGLang: token ids in, ids and log-probs out, no text in between."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np

from mathturn_gym.base.http import HttpClient, servers_of
from mathturn_gym.errors import InvalidValueError, PolicyError, check_float, check_int, raise_unknown_name
from mathturn_gym.policies._replicas import Endpoint, PauseMode, PrefixIndex, Replicas, Update
from mathturn_gym.policies.sampling import Sampling
from mathturn_gym.types import Completion, Ids

T = TypeVar("T")

_APIS: Final = ("vllm", "sglang")
_STEP_SECONDS: Final = 0.01


class OpenAIPolicy:
    """Policy over one or more replicas of a server that takes and returns token ids.

    It answers batches (`complete`), streams (`submit`, `advance`) and asyncio tasks (`acomplete`). vLLM >= 0.10 returns
    ids (`return_token_ids`); start it with `--logprobs-mode processed_logprobs`, or its log-probs are not those of the
    distribution sampled from (which is noticed). Sampling runs on the server, seeded per request: the same seed gives
    the same sample from the same server, and not the sample that `CausalLMPolicy` draws with it.

    A child process that was forked from this one can use it: it gets connections of its own there.

    Args:
        urls: Base URL of every replica, e.g. "http://127.0.0.1:8000". User and password in it are sent, never shown.
        tokenizer: The served model's; kept for who makes an environment with it.
        model: The model's name there; None asks the first replica.
        temperature, top_p, top_k, min_p: See `Sampling`.
        stop_ids: Ids that end a completion, besides the model's own end of sequence.
        concurrency: Most requests under way at once, over all replicas.
        timeout: Seconds that one attempt of a request may take, to the last byte of its answer; also the longest that
            a server may ask to be left alone (Retry-After).
        retries: Further attempts of a request that failed for the server's sake (no connection, timeout, busy, 5xx,
            an answer that was cut off).
        backoff: Seconds before the first retry; doubled with each.
        api_key: Sent as a bearer token, never shown.
        version: Version of the weights.
        api: "vllm" (`/v1/completions`, or any server that answers so), or "sglang" (`/generate`).
        endpoint: Of vLLM: "completions"; "tokens" is `/inference/v1/generate` (vLLM >= 0.22, `--enable-scale-out`), which says
            which weights sampled each id and which ids truncated sampling kept; "auto" takes the latter where it is.
        support: Completions must carry the ids that could be drawn (vLLM: `--return-sampling-mask`).

    Raises:
        InvalidValueError: a value outside its range.
        MissingDependencyError: httpx2 is not installed.

    Attributes:
        scheduler: "streaming": `collect` sends each episode's next turn as soon as its completion has come.
        urls: The replicas, without user and password.
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
        api: Literal["vllm", "sglang"] = "vllm",
        endpoint: Endpoint = "completions",
        support: bool = False,
    ) -> None:
        for name, value, allowed in (("api", api, _APIS), ("endpoint", endpoint, get_args(Endpoint))):
            if value not in allowed:
                raise_unknown_name(name, value, allowed)
        servers, secrets = servers_of([urls] if isinstance(urls, str) else list(urls))
        if not servers:
            raise InvalidValueError(f"urls must be one or more http(s) URLs, got {urls!r}")
        self.urls = [server.url for server in servers]
        self.tokenizer = tokenizer
        self.sampling = Sampling(temperature, top_p, top_k, min_p)
        self.stop_ids = sorted({check_int("stop_ids", i, low=0) for i in stop_ids})
        connection: dict[str, Any] = {
            "needed_by": "OpenAIPolicy",
            "timeout": check_float("timeout", timeout, low=1e-3),
            "connections": check_int("concurrency", concurrency, low=1),
            "api_key": api_key,
            "secrets": secrets,
        }
        settings: dict[str, Any] = {
            "model": model,
            "sampling": self.sampling,
            "stop_ids": self.stop_ids,
            "concurrency": concurrency,
            "timeout": timeout,
            "retries": check_int("retries", retries, low=0),
            "backoff": check_float("backoff", backoff, low=0.0),
            "prefixes": PrefixIndex(),
            "version": check_int("version", version, low=0),
            "api": api,
            "endpoint": endpoint,
            "support": support,
        }
        self._api = api
        self._parts = servers, connection, settings
        self._process = _Process(*self._parts)
        self._left_behind: list[_Process] = []
        self._closed = False
        self._tickets = itertools.count()
        self._running: dict[int, Future[Completion]] = {}
        self._done: SimpleQueue[int] = SimpleQueue()
        self._unclaimed: list[tuple[int, Completion]] = []
        self._ends: set[Future[Any]] = set()

    @property
    def version(self) -> int:
        """Version of the weights."""
        return self._process.replicas.version

    # ---- asyncio, batches, streams

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
            PolicyError: the server refuses, cannot return ids, answers with something else than a completion, or did
                not answer after all retries; the policy is closed.
        """
        future = self._begin(context, max_tokens, seed, session)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed:
                raise _closed() from None
            raise

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
            return [_result(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Sends one request; `advance` answers it."""
        future = self._begin(context, max_tokens, seed, None)
        ticket, done = next(self._tickets), self._done
        self._running[ticket] = future
        future.add_done_callback(lambda _: done.put(ticket))
        return ticket

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Waits for the next answers; empty where nothing was submitted.

        Args:
            steps: Returns after about the time that a server needs for this many steps, even where nothing has ended; None waits.

        Raises:
            PolicyError: as for `acomplete`, for the request that met it; answers that came with it come next time.
        """
        found, self._unclaimed = self._unclaimed, []
        while self._running and (not found or not self._done.empty()):
            try:
                ticket = self._done.get(timeout=None if steps is None else steps * _STEP_SECONDS)
            except Empty:
                break
            future = self._running.pop(ticket, None)
            if future is None:  # it was cancelled
                continue
            try:
                found.append((ticket, _result(future)))
            except BaseException:
                self._unclaimed = found
                raise
        return found

    def cancel(self, ticket: int) -> bool:
        """Drops a submitted request; False where there is none of that number."""
        future = self._running.pop(ticket, None)
        return future is not None and (future.cancel() or True)

    def release(self, context: Ids) -> None:
        """Forgets which replica holds a context that has ended, and tells a router (`POST /finish_session`)."""
        session = self._process.prefixes.release(context)
        if session is not None and not self._closed:
            process = self._here()
            told = process.start(process.replicas.finish(session))
            self._ends.add(told)
            told.add_done_callback(self._ends.discard)

    # ---- weights and the end

    def update_weights(
        self, path: str | Path, *, version: int | None = None, mode: PauseMode = "wait", adapter: bool = False
    ) -> int:
        """Has every replica load a checkpoint; new requests wait meanwhile.

        vLLM must run with VLLM_SERVER_DEV_MODE=1 (`/collective_rpc`, `/reset_prefix_cache`); SGLang takes
        `/update_weights_from_disk`. A replica that is started again later is given the weights before it is asked.

        Args:
            path: The checkpoint's folder, as the servers see it.
            version: The new version, above the old one; None counts up by one.
            mode: What happens to requests under way: "wait" for them; "abort" takes what they have, and they go on from there
                with the new weights, so that every id has its exact version; "keep" freezes them in the server, which does
                not read their ids again (vLLM's token endpoint alone, whose answers have versions).
            adapter: The folder holds a LoRA adapter, which vLLM loads beside its model (`--enable-lora`,
                VLLM_ALLOW_RUNTIME_LORA_UPDATING=1).

        Returns:
            The new version.

        Raises:
            PolicyError: a replica refuses; the version stays.
        """
        if mode not in get_args(PauseMode):
            raise_unknown_name("mode", mode, get_args(PauseMode))
        # What the servers were started with may be any weights: the first ones given may have the version of the policy.
        lowest = self.version + (self._process.replicas.version_given is not None)
        new = check_int("version", self.version + 1 if version is None else version, low=lowest)
        name = "mathturn" if adapter else None  # one name: the salt of each version keeps old keys and values apart
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}),
            ("/reset_prefix_cache", {}),
        ]
        if self._api == "sglang":
            calls = [("/update_weights_from_disk", {"model_path": str(path)})]
        elif adapter:
            calls = [("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), "load_inplace": True})]
        process = self._here()
        _result(process.start(process.replicas.update(Update(calls, new, name), mode)))
        return new

    def close(self) -> None:
        """Drops what is under way, whose waiters get a `PolicyError`, and closes the connections."""
        if self._closed:
            return
        process = self._here()
        self._closed = True
        # a router that is not told of the last sessions' ends keeps their caches; one that is gone is not waited for.
        wait(list(self._ends), timeout=1.0)
        process.close()

    def __enter__(self) -> OpenAIPolicy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- inside

    def _begin(self, context: Ids, max_tokens: int, seed: int | None, session: str | None) -> Future[Completion]:
        budget = check_int("max_tokens", max_tokens, low=0)
        if len(context) == 0:
            raise InvalidValueError("context is empty: a language model continues at least one id")
        process = self._here()
        return process.start(process.replicas.complete(np.array(context, np.int64), budget, seed, session))

    def _here(self) -> _Process:
        """The event loop and connections of this process: a forked child makes its own."""
        if self._closed:
            raise _closed()
        if self._process.pid != os.getpid():
            # Thread and sockets belong to the parent: they are not closed here, and not collected either.
            self._left_behind.append(self._process)
            self._running, self._done, self._unclaimed, self._ends = {}, SimpleQueue(), [], set()
            self._process = _Process(*self._parts)
        return self._process


class _Process:
    """A policy's resources in one process: a thread with an event loop, and the connections in it."""

    def __init__(self, servers: Sequence[Any], connection: dict[str, Any], settings: dict[str, Any]) -> None:
        self.pid = os.getpid()
        self.prefixes: PrefixIndex = settings["prefixes"]
        self.replicas = Replicas(servers, HttpClient(**connection), **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai-policy", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancels what runs and ends the thread."""
        self.start(self.replicas.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except CancelledError:
        raise _closed() from None


def _closed() -> PolicyError:
    return PolicyError("the policy is closed: make another OpenAIPolicy")
