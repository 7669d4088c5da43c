"""transformers' continuous batching on a model that a trainer owns: no copy of the weights, nothing to synchronize.

`ContinuousBatchingManager` (transformers >= 5.17) keeps a paged cache, shares the blocks of common prefixes, and decodes
with FlashAttention and CUDA graphs where there is a GPU. `CausalLMPolicy` has what it lacks: seeds per request, the ids that
truncated sampling allows, and caches by episode.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, PolicyError, check_int, raise_unknown_name
from mathturn_gym.policies.sampling import Sampling
from mathturn_gym.types import Completion, Ids

_CPU_CACHE_BYTES: Final = 2**30  # keys and values on a CPU, where the library would take most of the machine's memory
_CPU_BLOCKS: Final = 2048  # 65,536 ids: small models need no more, and all of it is written at the start
_CPU_BATCH_TOKENS: Final = 2048
_CPU_PAGE: Final = 32
_STEP_SECONDS: Final = 0.01
_LOOK_SECONDS: Final = 1.0  # how often a wait looks whether the generation thread still lives


class StreamedBatches:
    """A batch's answers by a stream, for policies with `submit` and `advance`; what else ends meanwhile is kept."""

    submit: Callable[..., int]
    advance: Callable[..., list[tuple[int, Completion]]]

    def __init__(self) -> None:
        self._unclaimed: list[tuple[int, Completion]] = []

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Continues each context; see `Policy.complete`."""
        drawn = [None] * len(contexts) if seeds is None else seeds
        rows = {
            self.submit(context, max_tokens=budget, seed=seed): row
            for row, (context, budget, seed) in enumerate(zip(contexts, max_tokens, drawn, strict=True))
        }
        done: dict[int, Completion] = {}
        others: list[tuple[int, Completion]] = []
        while len(done) < len(rows):
            for ticket, completion in self.advance():
                if ticket in rows:
                    done[rows[ticket]] = completion
                else:
                    others.append((ticket, completion))
        self._unclaimed += others  # only now: `advance` hands out what is unclaimed at once, and would never wait
        return [done[row] for row in range(len(rows))]


class ContinuousPolicy(StreamedBatches):
    """A `StreamingPolicy` over a model that is trained in place.

    A thread decodes while requests wait. It is started by the first request, and `held` stops it for a training step.
    Requests under way wait, go on with the new weights, and each id carries the version that sampled it.

    Args:
        model: A transformers model, or a peft model around one.
        tokenizer: Kept for environments.
        sampling: How ids are drawn; the log-probs are those of the same distribution.
        stop_ids: Ids that end a completion.
        vocab_size: Higher ids are never sampled.
        max_length: Longest context, or None.
        seed: Of the one generator that all requests share.
        version: Version of the weights.
        free_cache: `held` frees the cache's memory where nothing is under way; None does so on a GPU. Starting again costs
            about half a second.
        **options: Of `transformers.ContinuousBatchingConfig`: page_size, num_blocks, max_batch_tokens, use_cuda_graph, …;
            and `attention`, the implementation to sample with (None keeps the model's).

    Raises:
        MissingDependencyError: transformers is too old.
        InvalidValueError: an unknown option, or min_p, which the library does not sample with.

    Attributes:
        scheduler: "streaming": `collect` sends each episode's next turn as soon as its completion has come.
    """

    scheduler: Final = "streaming"

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        sampling: Sampling,
        stop_ids: Sequence[int],
        vocab_size: int,
        max_length: int | None = None,
        seed: int = 0,
        version: int = 0,
        free_cache: bool | None = None,
        **options: Any,
    ) -> None:
        import transformers
        from transformers.generation import configuration_utils

        super().__init__()
        ContinuousBatchingConfig: Any = getattr(configuration_utils, "ContinuousBatchingConfig", None)
        known = getattr(ContinuousBatchingConfig, "__dataclass_fields__", {})
        if "page_size" not in known:  # the pause that an update needs came with it
            raise MissingDependencyError(
                f"rollout 'continuous' needs transformers >= 5.17, and {transformers.__version__} is installed:"
                " pip install --upgrade transformers"
            )
        if sampling.min_p:
            raise InvalidValueError("min_p must be 0 with rollout 'continuous', which does not sample with it")
        self._model: Any = model.get_base_model() if hasattr(model, "peft_config") else model
        self._attention: str | None = options.pop("attention", None)
        for name in options:
            if name not in known:
                raise_unknown_name("rollout option", name, known)
        chosen = {"seed": seed % 2**31, **_cpu_limits(self._model), **options, "return_logprobs": True}
        self._config = ContinuousBatchingConfig(**chosen)
        width = int(self._model.get_input_embeddings().weight.shape[0])
        make: Any = transformers.GenerationConfig
        self._generation = make(
            do_sample=sampling.temperature > 0.0,
            temperature=sampling.temperature or 1.0,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            eos_token_id=list(stop_ids) or -1,
            # Embeddings may be padded beyond the tokenizer's last id.
            suppress_tokens=list(range(vocab_size, width)) or None,
        )
        self.tokenizer, self.sampling, self.version = tokenizer, sampling, check_int("version", version, low=0)
        self._stop_ids, self._max_length = frozenset(stop_ids), max_length
        self._frees = self._model.device.type != "cpu" if free_cache is None else free_cache
        self._manager: Any = None
        self._trained_with = ""
        self._closed = False
        self._tickets = itertools.count()
        self._running: dict[int, list[tuple[int, int]]] = {}  # ticket -> where which version began

    # ---- a stream

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Queues one context; `advance` answers it. The seed is not read: all requests share one generator."""
        if len(context) == 0:
            raise InvalidValueError("context is empty: a language model continues at least one id")
        budget = check_int("max_tokens", max_tokens, low=0)
        budget = budget if self._max_length is None else min(budget, self._max_length - len(context))
        ticket = next(self._tickets)
        if budget <= 0:
            nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), True, self.version)
            self._unclaimed.append((ticket, nothing))
            return ticket
        self._running[ticket] = [(0, self.version)]
        manager = self._started()
        if manager.add_request(context.tolist(), request_id=str(ticket), max_new_tokens=budget) is None:
            del self._running[ticket]
            self._raise_stopped()
        return ticket

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Waits for the next completions, at most about as long as `steps` steps take; empty where nothing was submitted."""
        found, self._unclaimed = self._unclaimed, []
        until = None if steps is None else time.monotonic() + steps * _STEP_SECONDS
        while self._running and not found:
            left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - time.monotonic())
            if left <= 0.0:
                break
            if self._closed or self._manager is None or not self._manager.is_running():
                self._raise_stopped()
            output = self._manager.get_result(timeout=left)
            while output is not None:  # all that has ended, without waiting for more
                self._take(output, found)
                output = (
                    None if self._manager.output_router.output_queue.empty() else self._manager.get_result(timeout=0)
                )
        return found

    def cancel(self, ticket: int) -> bool:
        """Drops a request; False where there is none of that number."""
        if self._running.pop(ticket, None) is None:
            return False
        if self._manager is not None:
            self._manager.cancel_request(str(ticket))
        return True

    def release(self, context: Ids) -> None:
        """Does nothing: the paged cache evicts blocks that no request holds."""

    # ---- weights

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is sampled inside, and the model attends as it is trained."""
        if self._manager is not None and not self._running and self._frees:
            self._stop()  # frees the cache: the update needs the memory
        if self._manager is None:
            yield
            return
        with self._manager.pause():
            serving = self._model.config._attn_implementation
            self._model.set_attn_implementation(self._trained_with)
            try:
                yield
            finally:
                self._model.eval()
                self._model.set_attn_implementation(serving)

    def sync(self, version: int) -> None:
        """Notes that the model's weights are another version now. Call it while `held`."""
        self.version = version
        if self._manager is None:
            return
        processor = self._manager.batch_processor
        for ticket, marks in self._running.items():
            state = processor.scheduler.active_requests.get(str(ticket))
            marks.append((0 if state is None else len(state.generated_tokens), version))
        # Keys and values of older weights may stay where a request goes on with them, and no new one may find them.
        processor.cache.evict_cached_blocks()
        for allocator in processor.cache.cache_allocators.values():
            allocator.ledger.hash_to_block.clear()
            allocator.ledger.block_to_hash.clear()

    def close(self) -> None:
        """Ends the thread; requests under way are dropped."""
        self._closed = True
        if self._manager is not None:
            self._stop(hard=True)

    # ---- inside

    def _started(self) -> Any:
        if self._closed:
            raise PolicyError("the policy is closed: make another ContinuousPolicy")
        if self._manager is None:
            self._trained_with = self._model.config._attn_implementation
            # `use_row_attention` gives the trainer a kernel of its own, which knows no paged cache.
            self._model.set_attn_implementation(self._attention or _servable(self._trained_with))
            self._manager = self._model.init_continuous_batching(
                generation_config=self._generation,
                continuous_batching_config=copy.copy(self._config),  # it writes what it measured into it
            )
            self._manager.start()
        return self._manager

    def _stop(self, *, hard: bool = False) -> None:
        manager, self._manager = self._manager, None
        manager.stop(block=True, hard_stop=hard)
        manager.destroy()
        self._model.set_attn_implementation(self._trained_with)

    def _take(self, output: Any, found: list[tuple[int, Completion]]) -> None:
        ticket = int(output.request_id)
        marks = self._running.pop(ticket, None)
        if marks is None:  # it was cancelled
            return
        if output.error is not None:
            raise PolicyError(f"continuous batching gave up a request: {output.error}")
        ids = np.array(output.generated_tokens, np.int64)
        versions = np.zeros(len(ids), np.int32)
        for start, version in marks:
            versions[start:] = version
        last = int(versions[-1]) if len(ids) else self.version
        completion = Completion(
            ids,
            np.minimum(np.array(output.logprobs, np.float32), 0.0),  # rounding can lift a certain id's above 0
            truncated=not len(ids) or int(ids[-1]) not in self._stop_ids,
            version_start=int(versions[0]) if len(ids) else last,
            version_end=last,
            versions=versions,
        )
        found.append((ticket, completion))

    def _raise_stopped(self) -> None:
        status = None if self._manager is None else self._manager.background_thread_status
        cause = None if status is None else status.fatal_error
        raise PolicyError(
            f"continuous batching has ended with {len(self._running)} requests under way: {cause or 'it was closed'}"
        ) from cause


def _servable(attention: str) -> str:
    """The attention to sample with: what the model has if the library takes it, else torch's own."""
    return attention if attention in ("sdpa", "eager") or "flash" in attention else "sdpa"


def _cpu_limits(model: Any) -> Mapping[str, int]:
    """Sizes of cache and batch on a CPU; on a GPU the library measures what is free."""
    if model.device.type != "cpu":
        return {}
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    block = _CPU_PAGE * 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize
    return {
        "page_size": _CPU_PAGE,
        "num_blocks": max(64, min(_CPU_BLOCKS, _CPU_CACHE_BYTES // block)),
        "max_batch_tokens": _CPU_BATCH_TOKENS,
    }
