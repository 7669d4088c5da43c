"""Replicas of a model, their requests and their weights: the asyncio side of `OpenAIPolicy`.

context ─► session ─► replica (`ServerGroup`) ─► POST /v1/completions, /inference/v1/generate or /generate
"""

from __future__ import annotations

import asyncio
import itertools
import math
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.http import HttpClient, Server, ServerGroup, TryAgainError
from mathturn_gym.errors import PolicyError
from mathturn_gym.policies.sampling import Sampling
from mathturn_gym.seeding import derive_seed
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

    def release(self, ids: Ids) -> str | None:
        """Forgets every context that `ids` continues: the episode has ended. Returns its session, if it had one."""
        found = [self._known.pop(key)[1] for key in self._hashes(ids) if key in self._known]
        return found[-1] if found else None

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


_ANSWER_BYTES: Final = 2**20  # largest answer that is read, besides what the ids need

# The same per id asked for or sent: an id, its log-prob, and its text in whatever form a server adds it.
_ID_BYTES: Final = 1024

_MASK_BYTES: Final = 12  # the same per id that truncated sampling keeps, as text

_PAUSE_SECONDS: Final = 0.5  # after this time requests that a pause has overtaken on their way are aborted as well

PauseMode = Literal["wait", "abort", "keep"]
Endpoint = Literal["completions", "tokens", "auto"]


@dataclass(frozen=True, slots=True)
class Update:
    """Calls that give a server weights; they are made again where a server has lost them."""

    calls: Sequence[tuple[str, Mapping[str, Any]]]  # path and body of each
    version: int  # what the weights are called
    model: str | None = None  # the model's name afterwards (an adapter's, say); None leaves it


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
        api: Whose protocol.
        endpoint: Of vLLM; "auto" takes the token endpoint where there is one.
        support: Answers must carry the ids that truncated sampling kept.
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
        api: Literal["vllm", "sglang"] = "vllm",
        endpoint: Endpoint = "completions",
        support: bool = False,
    ) -> None:
        self.servers, self.client, self.model, self.version = servers, client, model, version
        self._sampling, self._stop_ids = sampling, list(stop_ids)
        self._group = ServerGroup(servers, timeout=timeout, retries=retries, backoff=backoff)
        self._prefixes = prefixes
        self._api, self._endpoint, self._support = api, endpoint, support
        self._slots, self._change = asyncio.Semaphore(concurrency), asyncio.Condition()
        self._in_flight, self._updating, self._aborting = 0, False, False
        self._update: Update | None = None
        self._holds: dict[str, int] = {}  # versions of the weights that were given, by URL
        self._protocols: dict[str, _Protocol] = {}  # of servers that have been checked, by URL
        self._probing: dict[str, asyncio.Lock] = {}
        self._no_sessions: set[str] = set()
        # Several trainers may share a router: their first episodes are not one session.
        self._name = uuid.uuid4().hex[:8]

    async def complete(self, context: Ids, budget: int, seed: int | None, session: str | None) -> Completion:
        """One request, from the wait for a place to the completion; goes on where an update has aborted it."""
        if not budget:
            return Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), True, self.version)
        key = self._prefixes.of(context) if session is None else session
        parts: list[Completion] = []
        async with self._slots:
            while True:
                done = sum(map(len, parts))
                # The same seed would draw the first part's numbers again.
                own = seed if seed is None or not done else derive_seed(seed, done)
                prompt = np.concatenate([context, *(part.ids for part in parts)]).tolist()
                async with self._under_way():
                    try:
                        part, aborted = await self._ask_for(key, prompt, budget - done, own)
                    except PolicyError as error:  # an answer that is quoted may quote the request
                        raise PolicyError(self.client.scrubbed(str(error))) from None
                parts.append(part)
                if not aborted or done + len(part) == budget:
                    break
        completion = joined(parts)
        if session is None:
            self._prefixes.remember(np.concatenate([context, completion.ids]), key)
        return completion

    @asynccontextmanager
    async def _under_way(self) -> AsyncIterator[None]:
        async with self._change:
            await self._change.wait_for(lambda: not self._updating)
            self._in_flight += 1
        try:
            yield
        finally:
            async with self._change:
                self._in_flight -= 1
                self._change.notify_all()

    async def finish(self, session: str) -> None:
        """Tells routers that a session has ended; what is none answers 404 and is not told again."""
        for server in self.servers:
            if server.url not in self._no_sessions:
                path = f"/finish_session?session_id={self._name}-{session}"
                try:
                    await self.client.send(server, path, {}, max_bytes=_ANSWER_BYTES)
                except PolicyError:
                    self._no_sessions.add(server.url)
                except TryAgainError:  # it forgets sessions by itself after a while
                    continue

    # ---- weights

    @property
    def version_given(self) -> int | None:
        """The version of the weights that the servers were given last; None for those that they were started with."""
        return None if self._update is None else self._update.version

    async def update(self, update: Update, mode: PauseMode) -> None:
        """Gives every server other weights, then raises the version. New requests wait meanwhile.

        A server that does not answer is left: it gets the weights when it is there again, before it is asked anything.

        Args:
            update: The calls.
            mode: What happens to requests under way: "wait" for them; "abort" takes what they have, and they go on from
                there; "keep" freezes them on the server, with the keys and values of the old weights.
        """
        async with self._change:
            await self._change.wait_for(lambda: not self._updating)
            self._updating, self._aborting = True, mode == "abort"
        try:
            await self._pause(mode)
            for server in self.servers:
                await self._give(server, update)
            self._update, self.version = update, update.version
            self.model = self.model if update.model is None else update.model
        finally:
            if mode != "wait":
                await self._tell_all("/resume" if self._api == "vllm" else "/continue_generation")
            async with self._change:
                self._updating = self._aborting = False
                self._change.notify_all()

    async def _pause(self, mode: PauseMode) -> None:
        if mode == "keep":
            if any(not protocol.labels for protocol in self._protocols.values()):
                raise PolicyError(
                    'update_weights(mode="keep") needs answers that say which weights sampled an id: start vLLM >= 0.32 with'
                    ' --enable-scale-out and make the policy with endpoint="tokens", or take mode="abort"'
                )
            await self._tell_all(*self._pausing(mode))
            return
        while True:
            if mode == "abort":
                await self._tell_all(*self._pausing(mode))
            # a request that was on its way when the pause came waits in the server: the next pause aborts it too.
            async with self._change:
                idle = self._change.wait_for(lambda: self._in_flight == 0)
                try:
                    await asyncio.wait_for(idle, None if mode == "wait" else _PAUSE_SECONDS)
                except TimeoutError:
                    continue
                return

    def _pausing(self, mode: PauseMode) -> tuple[str, dict[str, Any]]:
        if self._api == "vllm":
            return f"/pause?mode={mode}", {}
        return "/pause_generation", {"mode": "in_place" if mode == "keep" else mode}

    async def _give(self, server: Server, update: Update) -> None:
        protocol = self._protocols.get(server.url)
        labelled = protocol if protocol is not None and protocol.labels else None
        marker = f"loading-{uuid.uuid4().hex}"
        try:
            if labelled is not None:
                await self.client.send(
                    server, "/update_weight_version", {"new_version": marker}, max_bytes=_ANSWER_BYTES
                )
            for path, body in update.calls:
                await self.client.send(server, path, dict(body), max_bytes=_ANSWER_BYTES)
            if labelled is not None:  # a process that was started in between has neither the weights nor the mark
                found = await self.client.send(server, "/weight_info", None, max_bytes=_ANSWER_BYTES)
                if not isinstance(found, dict) or found.get("weight_version") != marker:
                    raise TryAgainError("it was started again while it was given its weights", lost=True)
                labelled.label = None
            await self._label(server, update.version)
        except TryAgainError as error:
            self._forget(server)
            if not error.lost:
                raise PolicyError(f"{server.url}: {error}; its weights may be the old ones") from None
        else:
            self._holds[server.url] = update.version

    async def _label(self, server: Server, version: int) -> None:
        """Has a server stamp the ids that it samples from now on, where its answers have labels."""
        protocol = self._protocols.get(server.url)
        if protocol is not None and protocol.labels and protocol.label != version:
            body = {"new_version": str(version)}
            await self.client.send(server, "/update_weight_version", body, max_bytes=_ANSWER_BYTES)
            protocol.label = version

    async def _tell_all(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        for server in self.servers:
            try:
                await self.client.send(server, path, dict(body or {}), max_bytes=_ANSWER_BYTES)
            except TryAgainError as error:
                if not error.lost:
                    raise PolicyError(f"{server.url}{path}: {error}") from None
                self._forget(server)

    def _forget(self, server: Server, seen: _Protocol | None = None) -> None:
        """A server may be another process when it answers again: with its first weights, and perhaps other options.

        Where others have found out more than the caller had `seen` of it, nothing is forgotten; None forgets all.
        """
        if seen is None or self._protocols.get(server.url) is seen:
            self._protocols.pop(server.url, None)
            self._holds.pop(server.url, None)

    async def close(self) -> None:
        """Drops what is under way and closes the connections."""
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self.client.close()

    # ---- one request

    async def _ask_for(self, key: str, prompt: list[int], budget: int, seed: int | None) -> tuple[Completion, bool]:
        async def ask(server: Server) -> tuple[Completion, bool]:
            if self._aborting:  # an update must not wait for a server that is down
                return Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), True, self.version), True
            protocol = await self._checked(server, prompt)
            try:
                return await self._post(protocol, server, prompt, budget, self._wanted(budget, seed), key)
            except TryAgainError as error:
                if error.lost:
                    self._forget(server, protocol)
                raise

        return await self._group.ask(key, ask)

    def _wanted(self, budget: int, seed: int | None) -> dict[str, Any]:
        sampling = self._sampling
        wanted: dict[str, Any] = {
            "max_tokens": budget,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop_token_ids": self._stop_ids,
        }
        return wanted if seed is None else {**wanted, "seed": int(seed)}

    async def _post(
        self,
        protocol: _Protocol,
        server: Server,
        prompt: list[int],
        budget: int,
        wanted: Mapping[str, Any],
        key: str | None = None,
    ) -> tuple[Completion, bool]:
        """A completion, and whether an update has aborted it."""
        session = (
            {} if key is None else {"X-Session-ID": f"{self._name}-{key}", "X-SMG-Routing-Key": f"{self._name}-{key}"}
        )
        width = min(self._sampling.top_k, 4096) or 4096
        limit = _ANSWER_BYTES + _ID_BYTES * (len(prompt) + budget) + _MASK_BYTES * width * budget * self._support
        # Keys and values of other weights, of this run or an earlier one, are not found again under another salt.
        salt = f"{self._name}-{self.version}"
        request = {**protocol.request(prompt, wanted), "model": self.model, "cache_salt": salt}
        answer = await self.client.send(server, protocol.path, request, max_bytes=limit, headers=session)
        choice = protocol.choice(server.url, prompt, answer)
        aborted = choice.get("finish_reason") == "abort" and self._updating
        if aborted:
            choice = {**choice, "finish_reason": "length"}
        current = None if self._update is None or key is None else self.version  # a probe asks before weights are given
        completion = read_completion(server.url, prompt, budget, choice, self.version, current=current)
        if self._support and key is not None and completion.support is None:
            raise PolicyError(
                f"{server.url} returned no sampling_mask: truncated sampling is trained on with the ids that could be drawn;"
                " start vLLM >= 0.28 with --return-sampling-mask and --enable-scale-out, or sample with nothing cut off"
            )
        return completion, aborted

    # ---- what a server is

    async def _checked(self, server: Server, prompt: list[int]) -> _Protocol:
        """Once per server, and again when it was lost: its model's name, its protocol, its weights, its log-probs."""
        async with self._probing.setdefault(server.url, asyncio.Lock()):
            protocol = self._protocols.get(server.url)
            if protocol is None:
                protocol = self._protocols[server.url] = await self._probe(server, prompt)
            if self._update is not None:
                if self._holds.get(server.url) != self._update.version:
                    await self._give(server, self._update)
                    if server.url not in self._holds:
                        raise TryAgainError("it went away while it was given its weights", lost=True)
                await self._label(server, self._update.version)
            return protocol

    async def _probe(self, server: Server, prompt: list[int]) -> _Protocol:
        if self.model is None:
            listed = await self.client.send(server, "/v1/models", None, max_bytes=_ANSWER_BYTES)
            self.model = model_name(server.url, listed)
        wanted = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 1, "min_p": 0.0, "seed": 0}
        kinds = {"completions": _Completions, "tokens": _Tokens, "auto": _Tokens}
        protocol: _Protocol = _SGLang() if self._api == "sglang" else kinds[self._endpoint]()
        try:
            completion, _ = await self._post(protocol, server, prompt, 1, wanted)
        except PolicyError:  # 403 without --enable-scale-out, 404 before vLLM 0.22
            if self._api == "sglang" or self._endpoint != "auto":
                raise
            protocol = _Completions()
            completion, _ = await self._post(protocol, server, prompt, 1, wanted)
        # Of one id that could be sampled, the log-prob is 0: anything else is the untouched distribution's.
        raw, sampling = bool(np.any(completion.logprobs < -1e-3)), self._sampling
        if raw and (sampling.truncates or sampling.temperature not in (0.0, 1.0)):
            raise PolicyError(
                f"{server.url} returns log-probs of the untouched distribution, not of the one that is sampled from"
                f" with {sampling}: start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1"
                f" with nothing cut off"
            )
        return protocol


# ---- three protocols; each turns a server's answer into the choice that `read_completion` reads


class _Protocol:
    """What is known of a server.

    Attributes:
        path: Where completions are asked for.
        labels: Its answers say which weights sampled each id.
        label: What it was told that its weights are called.
    """

    path = ""
    labels = False

    def __init__(self) -> None:
        self.label: int | None = None

    def request(self, prompt: list[int], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent."""
        raise NotImplementedError

    def choice(self, url: str, prompt: list[int], answer: Any) -> Mapping[str, Any]:
        """What came, as `read_completion` reads it."""
        raise NotImplementedError


class _Completions(_Protocol):
    """vLLM's `/v1/completions`: ids in and out, without versions per id."""

    path = "/v1/completions"

    def request(self, prompt: list[int], wanted: Mapping[str, Any]) -> dict[str, Any]:
        fixed = {"prompt": prompt, "logprobs": 0, "return_token_ids": True, "skip_special_tokens": False}
        return {**fixed, **wanted}

    def choice(self, url: str, prompt: list[int], answer: Any) -> Mapping[str, Any]:
        return _first_choice(url, self.path, prompt, answer)


class _Tokens(_Protocol):
    """vLLM's `/inference/v1/generate` (>= 0.22, `--enable-scale-out`): versions per id, sampling masks, routed experts."""

    path, labels = "/inference/v1/generate", True

    def request(self, prompt: list[int], wanted: Mapping[str, Any]) -> dict[str, Any]:
        return {"token_ids": prompt, "sampling_params": {**wanted, "logprobs": 0, "skip_special_tokens": False}}

    def choice(self, url: str, prompt: list[int], answer: Any) -> Mapping[str, Any]:
        choice = _first_choice(url, self.path, prompt, answer)
        table = choice.get("logprobs")
        content = table.get("content") if isinstance(table, dict) else None
        if not isinstance(content, list):
            return choice
        logprobs = [one.get("logprob") if isinstance(one, dict) else None for one in content]
        return {**choice, "logprobs": {"token_logprobs": logprobs}}


class _SGLang(_Protocol):
    """SGLang's `/generate`."""

    path = "/generate"

    def request(self, prompt: list[int], wanted: Mapping[str, Any]) -> dict[str, Any]:
        names = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
        params = {names.get(name, name): value for name, value in wanted.items()}
        params["top_k"] = params["top_k"] or -1  # it refuses 0
        fixed = {"skip_special_tokens": False, "no_stop_trim": True}
        return {"input_ids": prompt, "sampling_params": {**params, **fixed}, "return_logprob": True}

    def choice(self, url: str, prompt: list[int], answer: Any) -> Mapping[str, Any]:
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise PolicyError(f"{url}{self.path} answered without meta_info: {_short(answer)}")
        _check_read(url, prompt, meta.get("prompt_tokens"))
        pairs, reason = meta.get("output_token_logprobs"), meta.get("finish_reason")
        if not isinstance(pairs, list) or not all(isinstance(one, list) and len(one) >= 2 for one in pairs):
            return {}
        return {
            "token_ids": [one[1] for one in pairs],
            "logprobs": {"token_logprobs": [one[0] for one in pairs]},
            "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
            "sampling_mask": meta.get("sampling_mask"),
            "routed_experts": meta.get("routed_experts"),
        }


def _first_choice(url: str, path: str, prompt: list[int], answer: Any) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise PolicyError(f"{url}{path} answered without choices: {_short(answer)}")
    usage = answer.get("usage")
    _check_read(url, prompt, usage.get("prompt_tokens") if isinstance(usage, dict) else None)
    return choice


def _check_read(url: str, prompt: list[int], read: Any) -> None:
    if read is not None and read != len(prompt):
        raise PolicyError(
            f"{url} read {_short(read)} of the prompt's {len(prompt)} ids: it must take a list of ids as it is"
            " (start it with a larger context, and without truncation of prompts)"
        )


# ---- answers are checked field by field


_LARGEST_ID: Final = 2**31 - 1

_ROUNDING: Final = 1e-4  # log-probs up to this much above 0 are 0: servers round


def model_name(url: str, answer: Any) -> str:
    """The first model's name in an answer of `/v1/models`."""
    with suppress(KeyError, IndexError, TypeError):
        if isinstance(name := answer["data"][0]["id"], str):
            return name
    raise PolicyError(f"{url}/v1/models names no model ({_short(answer)}); give model=")


def read_completion(
    url: str, prompt: list[int], budget: int, choice: Mapping[str, Any], version: int, *, current: int | None = None
) -> Completion:
    """The completion in an answer's choice.

    Args:
        url: Of the server, for messages.
        prompt: The ids that were sent.
        budget: The most ids that were asked for.
        choice: The answer's choice.
        version: Version of the weights, where the answer does not say.
        current: The version that the servers were given; None where they were given none, so that labels mean nothing.

    Raises:
        PolicyError: no ids or log-probs, or such that are none; more than asked for; another prompt than was sent;
            an end that is neither a stop nor the budget.
        TryAgainError: the ids were sampled by weights that were not given: the server has been started again.
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
    spans = choice.get("weight_versions") if current is not None else None
    versions = versions_of(url, _labels(url, spans), len(ids), version)
    mask = choice.get("sampling_mask")
    return Completion(
        np.array(ids, np.int64),
        np.minimum(np.array(logprobs, np.float32), 0.0),
        truncated=reason == "length",
        version_start=int(versions[0]) if ids else version,
        version_end=int(versions[-1]) if ids else version,
        versions=versions,
        support=None if mask is None else support_of(url, mask, ids),
        routed_experts=choice.get("routed_experts"),
    )


def _labels(url: str, spans: Any) -> list[tuple[Any, Any, Any]] | None:
    if spans is None:
        return None
    try:
        return [(span["version"], span["start"], span["end"]) for span in spans]
    except (KeyError, TypeError):
        raise PolicyError(
            f"{url}: weight_versions must be spans of version, start and end, got {_short(spans)}"
        ) from None


def versions_of(
    who: str, spans: Sequence[tuple[Any, Any, Any]] | None, count: int, version: int
) -> npt.NDArray[np.int32]:
    """The version of each of `count` ids, int32 (count,).

    Args:
        who: The engine, for messages.
        spans: (label, start, end), in order; None where all ids are of one version.
        count: How many ids.
        version: That one.

    Raises:
        PolicyError: the spans do not cover the ids.
        TryAgainError: a label that is no version that was ever given: the server has been started again.
    """
    if spans is None:
        return np.full(count, version, np.int32)
    found: npt.NDArray[np.int32] = np.full(count, -1, np.int32)
    for label, start, end in spans:
        if not str(label).isdecimal() or int(label) > version:
            raise TryAgainError(f"{who} sampled with weights {_short(label)}, not with version {version}", lost=True)
        if type(start) is not int or type(end) is not int or not 0 <= start <= end:
            raise PolicyError(f"{who}: weight_versions must be spans of ids, got {_short(list(spans))}")
        found[start:end] = int(label)
    if np.any(found < 0):
        raise PolicyError(f"{who}: weight_versions {_short(list(spans))} do not cover the {count} ids")
    return found


def support_of(who: str, mask: Any, ids: Sequence[int]) -> npt.NDArray[np.int32]:
    """Sampling masks (the ids that were kept for each place) as `Completion.support`, int32 (A, S)."""
    if not isinstance(mask, list) or len(mask) != len(ids):
        raise PolicyError(
            f"{who}: sampling_mask must have a list of ids for each of {len(ids)} ids, got {_short(mask)}"
        )
    for place, (kept, drawn) in enumerate(zip(mask, ids, strict=True)):
        whole = isinstance(kept, list) and all(type(one) is int and 0 <= one <= _LARGEST_ID for one in kept)
        if not whole or drawn not in kept:
            raise PolicyError(f"{who}: sampling_mask[{place}] must be ids with {drawn} among them, got {_short(kept)}")
    table: npt.NDArray[np.int32] = np.full((len(ids), max(map(len, mask), default=1)), -1, np.int32)
    for row, kept in zip(table, mask, strict=True):
        row[: len(kept)] = kept
    return table


def joined(parts: Sequence[Completion]) -> Completion:
    """The parts of a completion that updates have interrupted, as one."""
    if len(parts) == 1:
        return parts[0]
    supports = [part.support for part in parts if part.support is not None]
    width = max((one.shape[1] for one in supports), default=0)
    wide = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=-1) for one in supports]
    return replace(
        parts[-1],
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        version_start=parts[0].version_start,
        version_end=parts[-1].version_end,
        support=np.concatenate(wide) if len(wide) == len(parts) else None,
        # The last part's prompt holds the earlier parts, so its experts are those of all ids.
    )


def _short(value: object) -> str:
    """The beginning of a value, for messages."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
