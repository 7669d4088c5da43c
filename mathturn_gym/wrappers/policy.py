"""A transformers causal language model as a policy: contexts of ids in, sampled ids and their log-probs out.

It knows ids only: what they mean as text is the dialogue's business. A row's sample is read off the cumulative
distribution at a uniform number that depends on the row's seed and position alone, so it does not depend on who shares
the batch - as far as floating point allows: padding, batch size and what was cached change logits in the last bits
(about 1e-6 in float32), which moves a sample only where its uniform number falls within that distance of a boundary.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.policies.loop import DecodingLoop, DecodingStats, Row
from mathturn_gym.policies.models import load_adapter, load_model, load_tokenizer, new_adapter, prepare_weights
from mathturn_gym.policies.runner import ModelRunner, eval_mode, stop_ids_of, vocab_size_of
from mathturn_gym.policies.sampling import Sampling, answer_grammar, mask_logits
from mathturn_gym.policies.scoring import score_batch, score_completions
from mathturn_gym.seeding import uniforms
from mathturn_gym.types import Completion, Ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from mathturn_gym.episodes.packing import PackedBatch


class CausalLMPolicy:
    """A causal language model of transformers as a `Policy`.

    `complete` answers a batch; `submit` and `advance` answer requests as they end, which is how `collect` keeps the
    batch full. Either way an episode's keys and values are kept between its turns, found again by the ids themselves,
    and dropped when the weights change.

    Args:
        model: Any decoder-only model of attention layers, or a peft model around one; used in eval mode and left in
            the mode it was in.
        tokenizer: Where given, its end-of-turn id stops a completion, and ids beyond its vocabulary (padded
            embeddings) are never sampled.
        device: Where to move the model; None leaves it where it is.
        dtype: What to convert the model to; None leaves it. Cached and uncached log-probs agree to about 1e-5 in
            float32 and only to about 0.1 in bfloat16.
        temperature, top_p, top_k, min_p: See `Sampling`.
        stop_ids: Ids that end a completion; they are sampled, so they stay its last id. None takes the end-of-sequence
            ids of tokenizer and model config. A checkpoint's `generation_config.json` is never applied.
        pad_id: Id to pad contexts with (masked out, so any will do); None takes the tokenizer's, the config's, or 0.
        max_batch_size: Most rows that decode together; None for no limit. Rows beyond it wait for a place. Out of
            memory halves it once, with a warning, and the rows go on.
        cache_bytes: Budget for the keys and values of contexts between their turns, on the model's device; the least
            recently used leave first. 0 keeps none: every turn computes its whole context again.
        refill: Share of the rows that may stand empty while requests wait, in [0, 1]: 0 admits each at once, 1 waits
            for all (a barrier). A prefill costs a pass of its own, so a few are worth waiting for.
        raw_logprobs: Completions also carry each id's log-prob at temperature 1, nothing cut off.
        entropies: Completions also carry the entropy of each distribution sampled from.
        support: With a `top_k`, completions also carry the ids that could be drawn (which top_p and min_p may make fewer):
            what losses need for an importance ratio without bias. `train` asks for it.
        grammar: "boxed-integer" masks everything but boxed whole numbers, wherever the model is called from
            (`mathturn_gym.policies.sampling`); None masks nothing.
        version: Version of the weights, stamped on every id; `update_weights` raises it.
        seed: Seeds the rows of `complete(seeds=None)`; None draws from the operating system.
        base: Where the model was loaded from; `save_pretrained` notes it beside an adapter.

    Raises:
        InvalidValueError: a value outside its range; a tokenizer with more ids than the model's embedding; no stop
            ids known and none given; a model with recurrent layers.

    Attributes:
        scheduler: "streaming": `collect` sends each episode's next turn as soon as its completion has come.
        max_length: Longest context the model's positions reach, or None where its config says nothing.
    """

    scheduler: Final = "streaming"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        stop_ids: Iterable[int] | None = None,
        pad_id: int | None = None,
        max_batch_size: int | None = None,
        cache_bytes: int = 2**30,
        refill: float = 0.125,
        raw_logprobs: bool = False,
        entropies: bool = False,
        support: bool = False,
        grammar: Literal["boxed-integer"] | None = None,
        version: int = 0,
        seed: int | None = None,
        base: str | None = None,
    ) -> None:
        self.sampling = Sampling(temperature, top_p, top_k, min_p)
        self.model = cast(Any, model)  # its methods are decorated in ways that type checkers lose
        self.model.to(device=device, dtype=dtype)
        self.tokenizer = tokenizer
        config = model.config.get_text_config()
        self.max_length: int | None = getattr(config, "max_position_embeddings", None)
        self.vocab_size = vocab_size_of(self.model, tokenizer)
        self.stop_ids = stop_ids_of(config, tokenizer, stop_ids, self.vocab_size)
        known = (pad_id, getattr(tokenizer, "pad_token_id", None), getattr(config, "pad_token_id", None), 0)
        self.pad_id = check_int("pad_id", next(i for i in known if i is not None), low=0, high=self.vocab_size - 1)
        self.grammar, self._base = grammar, base
        if grammar is not None:
            self._mask(grammar)
        self._rng = np.random.default_rng(seed)
        self._runner = ModelRunner(self.model, self.vocab_size, self.pad_id)
        # Without a top_k the ids that could be drawn may be all of the vocabulary, at every place.
        kept = min(top_k, self.vocab_size) if support else 0
        self.keeps_support = kept > 0
        self._outputs: dict[str, Any] = {"raw": raw_logprobs, "entropies": entropies, "support": kept}
        self._loop = DecodingLoop(
            self._runner,
            self.sampling,
            self.stop_ids,
            max_rows=None if max_batch_size is None else check_int("max_batch_size", max_batch_size, low=1),
            refill=check_float("refill", refill, low=0.0, high=1.0),
            cache_bytes=check_int("cache_bytes", cache_bytes, low=0),
            raw_logprobs=raw_logprobs,
            entropies=entropies,
            support=kept,
        )
        self._loop.version = check_int("version", version, low=0)
        self._weights = self._runner.weights_mark()
        self._lock = threading.RLock()
        self._next_ticket = 0
        self._unclaimed: list[tuple[int, Completion]] = []
        self._actions: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        adapter: str | Path | None = None,
        lora: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
        attention: str | None = None,
        init_seed: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> CausalLMPolicy:
        """Loads model and tokenizer from one folder or hub name: safetensors only, and no code of the folder's.

        `mathturn_gym.wrappers.load_policy` takes more names (runs, servers, `builtin`), and brings back how a run
        sampled.

        Args:
            name_or_path: A folder, or a name on the Hugging Face hub.
            adapter: Folder or hub name of a LoRA adapter, to be put around it, trainable (needs peft).
            lora: Puts a new LoRA adapter around it: keywords of `peft.LoraConfig`.
            dtype: Of the weights; None keeps the checkpoint's.
            attention: transformers' name of an attention implementation; None chooses.
            init_seed: Where given, only the model's shape is loaded, and its weights are drawn with this seed.
            seed: See the constructor; it also determines a new adapter's first weights.
            **kwargs: Passed to the constructor; `tokenizer=` replaces the folder's own.

        Raises:
            CheckpointError: nothing loadable is there.
            InvalidValueError: an unknown keyword of the adapter's.
            MissingDependencyError: an adapter is asked for and peft is not installed.
        """
        model: Any = load_model(name_or_path, dtype=dtype, attention=attention, init_seed=init_seed)
        if "tokenizer" not in kwargs:
            kwargs["tokenizer"] = load_tokenizer(name_or_path)
        if adapter is not None:
            model = load_adapter(model, adapter, trainable=True)
        elif lora is not None:
            model = new_adapter(model, lora, seed=seed or 0)
        return cls(model, seed=seed, **{"base": str(name_or_path), **kwargs})

    def save_pretrained(self, folder: str | Path, *, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Writes model (of an adapted one: the adapter), tokenizer and policy.json, which `load_policy` reads back.

        Args:
            folder: Made where it is not there.
            weights: What is written, where the model holds only a part of them (sharded); None takes the model's.
        """
        path = Path(folder)
        self.model.save_pretrained(path, **({} if weights is None else {"state_dict": dict(weights)}))
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(path)
        (path / "generation_config.json").unlink(missing_ok=True)  # `generate` would apply it without a word
        facts: dict[str, Any] = {**dataclasses.asdict(self.sampling), "grammar": self.grammar}
        if hasattr(self.model, "peft_config") and self._base is not None:
            # An adapter alone does not say which model it was trained around.
            facts["model"] = self._base
        (path / "policy.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._runner.device

    @property
    def version(self) -> int:
        """Version of the weights. Setting it (weights were changed in place) drops the caches."""
        return self._loop.version

    @version.setter
    def version(self, version: int) -> None:
        with self._lock:
            self._loop.version = check_int("version", version, low=0)
            self._loop.drop_caches()
            self._weights = self._runner.weights_mark()

    @property
    def max_batch_size(self) -> int | None:
        """Most rows that decode together, or None."""
        return self._loop.max_rows

    @property
    def stats(self) -> DecodingStats:
        """Counts of what was fed, reused and run."""
        return self._loop.stats

    @property
    def cached_bytes(self) -> int:
        """Bytes of the contexts that are kept between their turns."""
        return self._loop.store.nbytes

    # ---- a batch

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Samples a completion for each context.

        Args:
            contexts: B arrays, int64 (L_b,), none empty, of whatever lengths.
            max_tokens: B budgets, >= 0; 0 gives an empty, truncated completion. Where context and budget together
                reach beyond `max_length`, the budget is cut to what fits.
            seeds: B seeds; None draws them from the policy's own generator.

        Returns:
            B completions, in order. A row ends with the stop id that it sampled, or is `truncated`.

        Raises:
            InvalidValueError: lengths that differ; a negative seed; an empty context, one with ids outside the
                vocabulary, or one longer than `max_length`. The row is named.
            PolicyError: logits that are not finite, or memory that does not suffice for half of the rows. Every
                request is dropped with it.
        """
        if len(max_tokens) != len(contexts):
            raise InvalidValueError(f"max_tokens must have one entry per context ({len(contexts)}), got {max_tokens!r}")
        if seeds is not None and len(seeds) != len(contexts):
            raise InvalidValueError(f"seeds must have one entry per context ({len(contexts)}), got {len(seeds)}")
        budgets = [self._budget(f"[{row}]", contexts[row], max_tokens[row]) for row in range(len(contexts))]
        checked = [None if seeds is None else _seed(f"seeds[{row}]", seeds[row]) for row in range(len(contexts))]
        tickets: dict[int, int] = {}
        found: dict[int, Completion] = {}
        with self._lock:
            try:
                # Neighbours in length wait side by side, so that little of a pass is padding.
                for row in sorted(range(len(contexts)), key=lambda row: len(contexts[row])):
                    tickets[self._submit(f"contexts[{row}]", contexts[row], budgets[row], checked[row])] = row
                while len(found) < len(tickets):
                    for ticket, completion in self._steps():
                        if ticket in tickets:
                            found[tickets[ticket]] = completion
                        else:
                            self._unclaimed.append((ticket, completion))
            except BaseException:  # for example an interrupt: the others will not be fetched
                for ticket in tickets:
                    self._loop.cancel(ticket)
                raise
            return [found[row] for row in range(len(contexts))]

    # ---- a stream

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Queues one context; `advance` answers it.

        Args:
            context: int64 (L,), not empty.
            max_tokens: Its budget, >= 0.
            seed: Decides its sample; None draws one.

        Returns:
            A ticket, with which its completion comes.

        Raises:
            InvalidValueError: as for `complete`.
        """
        budget = self._budget("", context, max_tokens)
        seed = None if seed is None else _seed("seed", seed)
        with self._lock:
            return self._submit(f"request {self._next_ticket}", context, budget, seed)

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Decodes until at least one of the submitted requests has ended.

        Args:
            steps: Returns after this many steps even where nothing has ended; None waits.

        Returns:
            Tickets and completions, in the order in which they ended; empty where nothing is queued.

        Raises:
            PolicyError: as for `complete`.
        """
        with self._lock:
            done, self._unclaimed = self._unclaimed, []
            return done or self._steps(steps)

    def cancel(self, ticket: int) -> bool:
        """Drops a request whose completion has not been fetched; False where there is none of that number."""
        with self._lock:
            kept = [pair for pair in self._unclaimed if pair[0] != ticket]
            found, self._unclaimed = len(kept) < len(self._unclaimed), kept
            return found or self._loop.cancel(ticket)

    def release(self, context: Ids) -> None:
        """Frees what is cached of a context that will not be continued (an episode that has ended).

        Args:
            context: int64 (L,); all of the episode's ids.
        """
        with self._lock:
            self._loop.store.release(context)

    def drop_caches(self) -> None:
        """Frees all keys and values (before a training step that needs the memory); later turns are computed again."""
        with self._lock:
            self._loop.drop_caches()

    # ---- scoring and weights

    def score(self, contexts: Sequence[Ids], completions: Sequence[Ids]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of given completions under the sampling distribution, in one teacher-forced pass without a cache.

        Args:
            contexts: B arrays, int64 (L_b,), none empty.
            completions: B arrays, int64 (A_b,).

        Returns:
            B arrays, float32 (A_b,); -inf where an id is cut off.

        Raises:
            InvalidValueError: lengths that differ; an empty context, ids outside the vocabulary, or context and
                completion together longer than `max_length`. The row is named.
        """
        if len(completions) != len(contexts):
            raise InvalidValueError(
                f"completions must have one entry per context ({len(contexts)}), got {len(completions)}"
            )
        for row, (context, ids) in enumerate(zip(contexts, completions, strict=True)):
            self._check(f"contexts[{row}]", context)
            self._check(f"contexts[{row}] + completions[{row}]", np.concatenate([context, ids]))
        with self._lock, eval_mode(self.model):
            return score_completions(self._runner, self.sampling, contexts, completions, self.max_batch_size)

    def logprobs(
        self, batch: PackedBatch, *, max_tokens: int = 16384, raw: bool = False, entropies: bool = False
    ) -> torch.Tensor:
        """Log-probs of a packed batch's trained ids, teacher-forced and without a graph.

        With the weights that sampled them they equal `batch.behavior_logprobs` (to about 1e-5 in float32).

        Args:
            batch: In any layout and form.
            max_tokens: Most ids (padding included) of one forward pass; a longer row has a pass of its own.
            raw: Under the untouched logits instead of the distribution that is sampled from.
            entropies: Entropies, in nats, instead of log-probs.

        Returns:
            float32, shaped as `batch.input_ids`, on its device; 0 off the loss mask.
        """
        sampling = Sampling() if raw else self.sampling
        with self._lock, eval_mode(self.model):
            return score_batch(self._runner, sampling, batch, max_tokens=max_tokens, entropies=entropies)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | str | Path, *, version: int | None = None) -> int:
        """Replaces the weights, raises the version and drops the caches.

        Requests that are under way go on with the new weights, from the ids they have: their later ids carry the new
        version. Safe to call from another thread than the one that decodes.

        Args:
            weights: A state dict (tied weights may be left out), or the folder of a checkpoint. Where the model is a
                peft model, also its adapter's alone: `get_peft_model_state_dict`, or what `save_pretrained` writes.
            version: The new version, above the old one; None counts up by one.

        Returns:
            The new version.

        Raises:
            CheckpointError: a weight is missing, unknown, or of another shape; nothing was changed.
        """
        new = check_int("version", self.version + 1 if version is None else version, low=self.version + 1)
        load = prepare_weights(self.model, weights)

        def replace() -> None:
            load()
            self.version = new

        self._between_steps(replace)
        return new

    # ---- inside

    def _mask(self, grammar: str) -> None:
        if grammar != "boxed-integer":
            raise_unknown_name("grammar", grammar, ("boxed-integer",))
        if self.tokenizer is None:
            raise InvalidValueError(f"grammar {grammar!r} needs a tokenizer: its ids depend on it")
        mask_logits(self.model, answer_grammar(self.tokenizer))

    def _between_steps(self, action: Callable[[], None]) -> None:
        """Does something that must not happen during a step: here, or in the thread that is decoding."""
        done: Future[None] = Future()
        self._actions.put((action, done))
        # Either this thread gets the lock between two steps, or the decoding one runs the action itself.
        while not done.done():
            if self._lock.acquire(timeout=0.01):
                try:
                    self._run_actions()
                finally:
                    self._lock.release()
        done.result()

    def _run_actions(self) -> None:
        while not self._actions.empty():
            action, done = self._actions.get()
            try:
                action()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

    def _check(self, name: str, ids: Ids) -> None:
        """Raises for ids that the model cannot read."""
        if len(ids) == 0:
            raise InvalidValueError(f"{name} is empty: a language model continues at least one id")
        low, high = int(np.min(ids)), int(np.max(ids))
        if low < 0 or high >= self.vocab_size:
            raise InvalidValueError(
                f"{name} has id {low if low < 0 else high}, outside the vocabulary [0, {self.vocab_size})"
            )
        if self.max_length is not None and len(ids) > self.max_length:
            raise InvalidValueError(
                f"{name} has {len(ids)} ids, the model's positions end at {self.max_length}: "
                f"make the environment with max_context_tokens={self.max_length} or less"
            )

    def _budget(self, place: str, context: Ids, max_tokens: int) -> int:
        """The budget after the model's own length limit; raises for a context that the model cannot continue."""
        budget = check_int(f"max_tokens{place}", max_tokens, low=0)
        self._check(f"contexts{place}" if place else "context", context)
        return budget if self.max_length is None else min(budget, self.max_length - len(context))

    def draw_seed(self) -> int:
        """A seed from the policy's own generator."""
        return int(self._rng.integers(0, 2**63 - 1))

    def _submit(self, label: str, context: Ids, budget: int, seed: int | None) -> int:
        if seed is None:
            seed = self.draw_seed()
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._loop.submit(Row(ticket, label, np.array(context, np.int64), uniforms(seed, budget)))
        return ticket

    def _steps(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Steps until a request has ended, or none is left."""
        self._run_actions()
        mark = self._runner.weights_mark()
        if mark != self._weights:  # a trainer that shares the model has stepped
            self._loop.drop_caches()
            self._weights = mark
        done: list[Row] = []
        with torch.no_grad(), eval_mode(self.model):
            while not done and self._loop.busy and steps != 0:
                done = self._loop.step()
                steps = None if steps is None else steps - 1
                self._run_actions()
        return [(row.ticket, row.completion(self.version, **self._outputs)) for row in done]


def _seed(name: str, seed: object) -> int:
    return check_int(name, seed, low=0, high=2**128 - 1)
