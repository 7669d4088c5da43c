"""Replicas of a model, their requests and their weights: the asyncio side of `OpenAIPolicy`.

context ─► session ─► replica (`ServerGroup`) ─► POST /v1/completions
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.http import HttpClient, Server, ServerGroup, TryAgainError
from mathturn_gym.errors import PolicyError
from mathturn_gym.policies.sampling import Sampling
from mathturn_gym.types import Completion, Ids

_KEY: Final = 0x5E5510


class PrefixIndex:
    """Finds the session (one per episode) that a context continues, by its prefixes.

    A context is found by hashes of its prefixes, h(n) = sum of w[i] * (id[i] + 1) over i < n, modulo 2^64, with fixed
    random odd weights: one cumulative sum gives all of them, so a look-up costs what the context's length costs,
    however many contexts are known. A collision would send a request to another replica, and no more.

    Args:
        room: Contexts to remember; the oldest are forgotten first.
    """

    def __init__(self, room: int = 65536) -> None:
        self._room = room
        self._known: OrderedDict[int, tuple[int, str]] = OrderedDict()  # hash -> (length, session)
        self._names = itertools.count()
        self._weights: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        """Contexts that are known."""
        return len(self._known)

    def of(self, context: Ids) -> str:
        """The session of the longest context that `context`, int64 (L,), continues; or a new one."""
        hashes = self._hashes(context)
        for length in range(len(hashes), 0, -1):
            key = hashes[length - 1]
            if key in self._known and self._known[key][0] == length:
                self._known.move_to_end(key)
                return self._known[key][1]
        return str(next(self._names))

    def remember(self, ids: Ids, session: str) -> None:
        """Notes that what continues `ids`, int64 (L,), belongs to a session."""
        key = self._hashes(ids)[-1]
        self._known[key] = len(ids), session
        self._known.move_to_end(key)
        if len(self._known) > self._room:
            self._known.popitem(last=False)

    def release(self, ids: Ids) -> None:
        """Forgets every context that `ids` continues: the episode has ended."""
        for key in self._hashes(ids):
            self._known.pop(key, None)

    def _hashes(self, ids: Ids) -> list[int]:
        """Hash of every prefix, the shortest first."""
        if len(ids) > len(self._weights):
            size = max(1024, 2 * len(ids))
            # Of one generator the first numbers are the same however many are drawn: earlier hashes stay valid.
            drawn = np.random.Generator(np.random.Philox(key=_KEY)).integers(0, 2**64, size, np.uint64)
            self._weights = drawn | np.uint64(1)
        terms = self._weights[: len(ids)] * (np.asarray(ids).astype(np.uint64) + np.uint64(1))
        hashes: list[int] = np.cumsum(terms).tolist()
        return hashes


# ---- replicas and their requests


_ANSWER_BYTES: Final = 2**20
"""Largest answer that is read, besides what the ids need."""

_ID_BYTES: Final = 1024
"""The same per id asked for or sent: an id, its log-prob, and its text in whatever form a server adds it."""


class Replicas:
    """Servers of one model. It lives in one event loop.

    Args:
        servers: At least one.
        client: How they are reached.
        model: The model's name there; None asks the first one that answers.
        sampling: How ids are drawn.
        stop_ids: Ids that end a completion, besides the model's own end of sequence.
        concurrency: Most requests under way at once, over all servers.
        timeout: Seconds that a server may ask to be left alone.
        retries: Further attempts of a request that failed for a server's sake.
        backoff: Seconds before the first retry; doubled with each.
        prefixes: Finds the session that a context continues.
        version: Version of the weights.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        client: HttpClient,
        *,
        model: str | None,
        sampling: Sampling,
        stop_ids: Sequence[int],
        concurrency: int,
        timeout: float,
        retries: int,
        backoff: float,
        prefixes: PrefixIndex,
        version: int,
    ) -> None:
        self.servers, self.client, self.model, self.version = servers, client, model, version
        self._sampling, self._stop_ids = sampling, list(stop_ids)
        self._group = ServerGroup(servers, timeout=timeout, retries=retries, backoff=backoff)
        self._prefixes = prefixes
        self._slots, self._change = asyncio.Semaphore(concurrency), asyncio.Condition()
        self._in_flight, self._updating = 0, False
        self._checked: set[str] = set()
        self._probing: dict[str, asyncio.Lock] = {}

    async def complete(self, context: Ids, budget: int, seed: int | None, session: str | None) -> Completion:
        """One request, from the wait for a place to the completion.

        Raises:
            PolicyError: the server refuses, answers with something else than a completion, or does not answer.
        """
        if not budget:
            return Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), True, self.version)
        async with self._slots:
            async with self._change:
                await self._change.wait_for(lambda: not self._updating)
                self._in_flight += 1
            try:
                return await self._ask_for(context, budget, seed, session)
            except PolicyError as error:  # an answer that is quoted may quote the request
                raise PolicyError(self.client.scrubbed(str(error))) from None
            finally:
                async with self._change:
                    self._in_flight -= 1
                    self._change.notify_all()

    async def update(self, calls: Iterable[tuple[str, Mapping[str, Any]]], version: int) -> None:
        """Makes calls to every server while no request is under way, then raises the version.

        Raises:
            PolicyError: a server refuses; the version stays.
        """
        async with self._change:
            await self._change.wait_for(lambda: not self._updating)
            self._updating = True
            await self._change.wait_for(lambda: self._in_flight == 0)
        try:
            for path, body in calls:
                for server in self.servers:
                    try:
                        await self.client.send(server, path, dict(body), max_bytes=_ANSWER_BYTES)
                    except TryAgainError as error:
                        raise PolicyError(f"{server.url}{path}: {error}; its weights may be the old ones") from None
            self.version = version
        finally:
            async with self._change:
                self._updating = False
                self._change.notify_all()

    async def close(self) -> None:
        """Drops what is under way and closes the connections."""
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self.client.close()

    async def _ask_for(self, context: Ids, budget: int, seed: int | None, session: str | None) -> Completion:
        key = self._prefixes.of(context) if session is None else session
        prompt = context.tolist()

        async def ask(server: Server) -> Completion:
            await self._check(server, prompt)
            return await self._post(server, prompt, budget, self._body(budget, seed))

        completion = await self._group.ask(key, ask)
        if session is None:
            self._prefixes.remember(np.concatenate([context, completion.ids]), key)
        return completion

    def _body(self, budget: int, seed: int | None) -> dict[str, Any]:
        sampling = self._sampling
        body: dict[str, Any] = {
            "max_tokens": budget,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop_token_ids": self._stop_ids,
        }
        return body if seed is None else {**body, "seed": int(seed)}

    async def _post(self, server: Server, prompt: list[int], budget: int, body: Mapping[str, Any]) -> Completion:
        fixed = {"prompt": prompt, "logprobs": 0, "return_token_ids": True, "skip_special_tokens": False}
        limit = _ANSWER_BYTES + _ID_BYTES * (len(prompt) + budget)
        request = {"model": self.model, **fixed, **body}
        answer = await self.client.send(server, "/v1/completions", request, max_bytes=limit)
        return read_answer(server.url, prompt, budget, answer, self.version)

    # ---- what a server is

    async def _check(self, server: Server, prompt: list[int]) -> None:
        """Once per server: its model's name, that it returns ids, and which log-probs it returns."""
        async with self._probing.setdefault(server.url, asyncio.Lock()):
            if server.url not in self._checked:
                await self._probe(server, prompt)
                self._checked.add(server.url)

    async def _probe(self, server: Server, prompt: list[int]) -> None:
        if self.model is None:
            listed = await self.client.send(server, "/v1/models", None, max_bytes=_ANSWER_BYTES)
            self.model = model_name(server.url, listed)
        completion = await self._post(server, prompt, 1, {"max_tokens": 1, "temperature": 1.0, "top_k": 1, "seed": 0})
        # Of one id that could be sampled, the log-prob is 0: anything else is the untouched distribution's.
        raw, sampling = bool(np.any(completion.logprobs < -1e-3)), self._sampling
        if raw and (sampling.truncates or sampling.temperature not in (0.0, 1.0)):
            raise PolicyError(
                f"{server.url} returns log-probs of the untouched distribution, not of the one that is sampled from"
                f" with {sampling}: start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1"
                f" with nothing cut off"
            )


# ---- the completions protocol: answers are checked field by field


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
