"""A transformers causal language model as a policy: contexts of ids in, sampled ids and their log-probs out.

    contexts (ragged) ─► left padding ─► prefill ─► logits ─► temperature, top-k, top-p ─► log-probs
                                           ▲ KV cache                                        │ inverse CDF
                                           └──────────── sampled ids (finished rows leave) ◄─┘

It knows ids only: what they mean as text is the dialogue's business. A row's sample is read off the cumulative
distribution at a uniform number that depends on the row's seed and position alone, so it does not depend on who shares
the batch - as far as floating point allows: padding and batch size change logits in the last bits (about 1e-6 in
float32), which moves a sample only where its uniform number falls within that distance of a boundary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import CheckpointError, InvalidValueError, check_int
from mathturn_gym.seeding import uniforms
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.sampling import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["CausalLMPolicy", "load_model"]


class CausalLMPolicy:
    """A causal language model of transformers as a `Policy`.

    Args:
        model: Any decoder-only model with a KV cache; used in eval mode and left in the mode it was in.
        tokenizer: Where given, its end-of-turn id stops a completion, and ids beyond its vocabulary (padded
            embeddings) are never sampled.
        device: Where to move the model; None leaves it where it is.
        dtype: What to convert the model to; None leaves it. Cached and uncached log-probs agree to about 1e-5 in
            float32 and only to about 0.1 in bfloat16.
        temperature: See `Sampling`.
        top_p: See `Sampling`.
        top_k: See `Sampling`.
        stop_ids: Ids that end a completion; they are sampled, so they stay its last id. None takes the end-of-sequence
            ids of tokenizer and model config. A checkpoint's `generation_config.json` is never applied.
        pad_id: Id to pad contexts with (masked out, so any will do); None takes the tokenizer's, the config's, or 0.
        max_batch_size: Most rows per forward pass; None takes all at once.
        version: Version of the weights, stamped on every completion; `update_weights` raises it.
        seed: Seeds the rows of `complete(seeds=None)`; None draws from the operating system.

    Raises:
        InvalidValueError: a value outside its range; a tokenizer with more ids than the model's embedding; no stop
            ids known and none given.

    Attributes:
        version: Version of the weights.
        max_length: Longest context the model's positions reach, or None where its config says nothing.
    """

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
        stop_ids: Iterable[int] | None = None,
        pad_id: int | None = None,
        max_batch_size: int | None = None,
        version: int = 0,
        seed: int | None = None,
    ) -> None:
        self.sampling = Sampling(temperature, top_p, top_k)
        self.max_batch_size = None if max_batch_size is None else check_int("max_batch_size", max_batch_size, low=1)
        self.version = check_int("version", version, low=0)
        self.model = cast(Any, model)  # its methods are decorated in ways that type checkers lose
        self.model.to(device=device, dtype=dtype)
        self.tokenizer = tokenizer
        config = model.config.get_text_config()
        self.max_length: int | None = getattr(config, "max_position_embeddings", None)
        self.vocab_size = _vocab_size(self.model, tokenizer)
        self.stop_ids = _stop_ids(config, tokenizer, stop_ids, self.vocab_size)
        known = (pad_id, getattr(tokenizer, "pad_token_id", None), getattr(config, "pad_token_id", None), 0)
        self.pad_id = check_int("pad_id", next(i for i in known if i is not None), low=0, high=self.vocab_size - 1)
        self._rng = np.random.default_rng(seed)
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._takes_logits_to_keep = "logits_to_keep" in parameters

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        dtype: torch.dtype | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> CausalLMPolicy:
        """Loads model and tokenizer with `AutoModelForCausalLM` and `AutoTokenizer` (safetensors only).

        Args:
            name_or_path: A folder, or a name on the Hugging Face hub.
            dtype: Of the weights; None keeps the checkpoint's.
            model_kwargs: Passed to `AutoModelForCausalLM.from_pretrained`.
            **kwargs: Passed to the constructor; `tokenizer=` replaces the folder's own.

        Raises:
            CheckpointError: nothing loadable is there.
        """
        from transformers import AutoTokenizer

        model = load_model(name_or_path, dtype=dtype or "auto", **(model_kwargs or {}))
        if "tokenizer" not in kwargs:
            try:
                kwargs["tokenizer"] = AutoTokenizer.from_pretrained(str(name_or_path))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"no tokenizer can be loaded from {str(name_or_path)!r}: {error}") from error
        return cls(model, **kwargs)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.get_input_embeddings().weight.device  # type: ignore[no-any-return]

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
            InvalidValueError: lengths that differ; an empty context, one with ids outside the vocabulary, or one
                longer than `max_length`; logits that are NaN. The row is named.
        """
        budgets = self._check_rows(contexts, max_tokens)
        if seeds is None:
            seeds = self._rng.integers(0, 2**63 - 1, size=len(contexts)).tolist()
        if len(seeds) != len(contexts):
            raise InvalidValueError(f"seeds must have one entry per context ({len(contexts)}), got {len(seeds)}")
        completions: list[Completion] = [
            Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True, version_start=self.version)
        ] * len(contexts)
        rows = [row for row in range(len(contexts)) if budgets[row]]
        # Neighbours in length share a forward pass, so that little of it is padding.
        rows.sort(key=lambda row: len(contexts[row]))
        size = self.max_batch_size or max(1, len(rows))
        with torch.no_grad(), _eval_mode(self.model):
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                done = self._complete_batch(
                    [contexts[row] for row in batch], budgets[batch], [seeds[row] for row in batch], batch
                )
                for row, completion in zip(batch, done, strict=True):
                    completions[row] = completion
        return completions

    def score(self, contexts: Sequence[Ids], completions: Sequence[Ids]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of given completions under the sampling distribution, in one teacher-forced pass without a cache.

        Args:
            contexts: B arrays, int64 (L_b,), none empty.
            completions: B arrays, int64 (A_b,).

        Returns:
            B arrays, float32 (A_b,); -inf where top-k or top-p cuts an id off.
        """
        sequences = [np.concatenate([a, b]) for a, b in zip(contexts, completions, strict=True)]
        self._check_rows(contexts, [len(ids) for ids in completions])
        logprobs: list[npt.NDArray[np.float32]] = []
        size = self.max_batch_size or max(1, len(sequences))
        with torch.no_grad(), _eval_mode(self.model):
            for start in range(0, len(sequences), size):
                ids_BT, mask_BT = self._left_pad(sequences[start : start + size])
                logits_BTV = self._forward(ids_BT, mask_BT, _positions(mask_BT), None, last_only=False)[:, :-1]
                dist_BTV = self.sampling.log_distribution(logits_BTV.flatten(0, 1)).view(logits_BTV.shape)
                picked_BT = dist_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0].cpu().numpy()
                for offset, row in enumerate(picked_BT, start):
                    logprobs.append(row[len(row) - len(completions[offset]) :].astype(np.float32))
        return logprobs

    def update_weights(self, weights: Mapping[str, torch.Tensor] | str | Path, *, version: int | None = None) -> int:
        """Replaces the weights and raises the version.

        Args:
            weights: A state dict (tied weights may be left out), or the folder of a checkpoint.
            version: The new version, above the old one; None counts up by one.

        Returns:
            The new version.

        Raises:
            CheckpointError: a weight is missing, unknown, or of another shape; nothing was changed.
        """
        new = check_int("version", self.version + 1 if version is None else version, low=self.version + 1)
        if isinstance(weights, (str, Path)):
            weights = load_model(weights, dtype="auto").state_dict()
        own = self.model.state_dict()
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        missing = sorted(set(own) - set(weights) - tied)
        unknown = sorted(set(weights) - set(own))
        shapes = [key for key in weights if key in own and weights[key].shape != own[key].shape]
        for what, keys in (("lack", missing), ("have unknown", unknown), ("have another shape for", shapes)):
            if keys:
                raise CheckpointError(f"the new weights {what} {', '.join(keys[:5])}; nothing was changed")
        self.model.load_state_dict(dict(weights), strict=False)
        self.version = new
        return new

    def _check_rows(self, contexts: Sequence[Ids], max_tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        """Budgets after the model's own length limit; raises for rows that the model cannot continue."""
        if len(max_tokens) != len(contexts):
            raise InvalidValueError(f"max_tokens must have one entry per context ({len(contexts)}), got {max_tokens!r}")
        budgets = np.empty(len(contexts), np.int64)
        for row, context in enumerate(contexts):
            budgets[row] = check_int(f"max_tokens[{row}]", max_tokens[row], low=0)
            if len(context) == 0:
                raise InvalidValueError(f"contexts[{row}] is empty: a language model continues at least one id")
            low, high = int(np.min(context)), int(np.max(context))
            if low < 0 or high >= self.vocab_size:
                raise InvalidValueError(
                    f"contexts[{row}] has id {low if low < 0 else high}, outside the vocabulary [0, {self.vocab_size})"
                )
            if self.max_length is not None:
                if len(context) > self.max_length:
                    raise InvalidValueError(
                        f"contexts[{row}] has {len(context)} ids, the model's positions end at {self.max_length}: "
                        f"make the environment with max_context_tokens={self.max_length} or less"
                    )
                budgets[row] = min(budgets[row], self.max_length - len(context))
        return budgets

    def _complete_batch(
        self, contexts: list[Ids], budgets_B: npt.NDArray[np.int64], seeds: list[int], names: list[int]
    ) -> list[Completion]:
        """Decodes rows together; a row leaves batch and cache as soon as it has ended."""
        from transformers import DynamicCache

        ids_BL, mask_BL = self._left_pad(contexts)
        cache = DynamicCache(config=self.model.config)
        position_BL = _positions(mask_BL)
        uniforms_B = [uniforms(seed, int(budget)) for seed, budget in zip(seeds, budgets_B, strict=True)]
        alive = np.arange(len(contexts))
        ids_by_row: list[list[int]] = [[] for _ in contexts]
        logprobs_by_row: list[list[float]] = [[] for _ in contexts]
        stopped = np.zeros(len(contexts), np.bool_)
        step = 0
        while True:
            logits_BV = self._forward(ids_BL, mask_BL, position_BL, cache, last_only=True)[:, -1]
            chosen_B, logprobs_B = self._sample(logits_BV, [float(uniforms_B[row][step]) for row in alive])
            chosen = chosen_B.cpu().numpy()
            for row, token, logprob in zip(alive, chosen.tolist(), logprobs_B.tolist(), strict=True):
                if not np.isfinite(logprob):
                    raise InvalidValueError(
                        f"the model's logits for contexts[{names[row]}] are not finite at completion id {step} "
                        f"(version {self.version}): its weights are broken, or its dtype overflows"
                    )
                ids_by_row[row].append(token)
                logprobs_by_row[row].append(logprob)
            step += 1
            at_stop = np.isin(chosen, self.stop_ids)
            stopped[alive[at_stop]] = True
            keep = np.flatnonzero(~at_stop & (budgets_B[alive] > step))
            if keep.size == 0:
                break
            ids_BL, position_BL = chosen_B[:, None], position_BL[:, -1:] + 1
            if keep.size < alive.size:
                alive = alive[keep]
                index = torch.from_numpy(keep).to(mask_BL.device)
                cache.batch_select_indices(index)
                ids_BL, position_BL, mask_BL = ids_BL[index], position_BL[index], mask_BL[index]
            mask_BL = torch.cat([mask_BL, mask_BL.new_ones(len(alive), 1)], dim=1)
        return [
            Completion(
                np.array(ids, np.int64),
                np.minimum(np.array(logprobs, np.float32), 0.0),
                truncated=not stopped[row],
                version_start=self.version,
            )
            for row, (ids, logprobs) in enumerate(zip(ids_by_row, logprobs_by_row, strict=True))
        ]

    def _sample(self, logits_BV: torch.Tensor, uniforms_B: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids, int64 (B,), and their log-probs, float32 (B,), under the distribution they were drawn from."""
        logprobs_BV = self.sampling.log_distribution(logits_BV)
        uniform_B = torch.tensor(uniforms_B, dtype=torch.float64, device=logprobs_BV.device)
        chosen_B = self.sampling.draw(logprobs_BV, uniform_B)
        return chosen_B, logprobs_BV.gather(-1, chosen_B[:, None])[:, 0]

    def _left_pad(self, contexts: Sequence[Ids]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and attention mask, int64 (B, L), padded on the left: the last column is every row's last id."""
        length = max(len(context) for context in contexts)
        ids_BL = np.full((len(contexts), length), self.pad_id, np.int64)
        mask_BL = np.zeros((len(contexts), length), np.int64)
        for row, context in enumerate(contexts):
            ids_BL[row, length - len(context) :] = context
            mask_BL[row, length - len(context) :] = 1
        return torch.from_numpy(ids_BL).to(self.device), torch.from_numpy(mask_BL).to(self.device)

    def _forward(
        self, ids_BL: torch.Tensor, mask_BT: torch.Tensor, position_BL: torch.Tensor, cache: Any, *, last_only: bool
    ) -> torch.Tensor:
        """Logits over the ids that may be sampled, (B, 1 or L, V)."""
        kwargs: dict[str, Any] = {}
        if self._takes_positions:
            kwargs["position_ids"] = position_BL
        if self._takes_logits_to_keep and last_only:
            kwargs["logits_to_keep"] = 1
        out = self.model(
            input_ids=ids_BL, attention_mask=mask_BT, past_key_values=cache, use_cache=cache is not None, **kwargs
        )
        logits: torch.Tensor = out.logits[..., : self.vocab_size]
        return logits


@contextmanager
def _eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switches a model to eval mode and back (a trainer may share it)."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _positions(mask_BL: torch.Tensor) -> torch.Tensor:
    """Positions that count real ids only, so that left padding moves nothing."""
    return (mask_BL.cumsum(dim=-1) - 1).clamp_min(0)


def _vocab_size(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """Number of ids that may be sampled: the model's, or the tokenizer's where that has fewer."""
    embedding = int(model.get_input_embeddings().weight.shape[0])
    if tokenizer is None:
        return embedding
    size = max(tokenizer.get_vocab().values()) + 1
    if size > embedding:
        raise InvalidValueError(
            f"tokenizer has ids up to {size - 1}, the model's embedding only {embedding} rows: they do not belong "
            f"together, or the model needs model.resize_token_embeddings({size})"
        )
    return size


def _stop_ids(
    config: Any, tokenizer: PreTrainedTokenizerBase | None, given: Iterable[int] | None, vocab_size: int
) -> tuple[int, ...]:
    """The ids that end a completion, sorted."""
    if given is not None:
        return tuple(sorted({check_int("stop_ids", i, low=0, high=vocab_size - 1) for i in given}))
    known: set[int] = set()
    for value in (getattr(tokenizer, "eos_token_id", None), getattr(config, "eos_token_id", None)):
        known |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    if not known:
        raise InvalidValueError(
            "stop_ids: neither tokenizer nor model config names an end-of-sequence id; "
            "give stop_ids=[...], or stop_ids=[] to let every completion run to its budget"
        )
    return tuple(sorted(i for i in known if i < vocab_size))


def load_model(name_or_path: str | Path, **kwargs: Any) -> PreTrainedModel:
    """Loads a causal language model with `AutoModelForCausalLM`, from safetensors only (no pickle).

    Raises:
        CheckpointError: nothing loadable is there.
    """
    from transformers import AutoModelForCausalLM

    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(name_or_path), use_safetensors=True, **kwargs)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no model can be loaded from {str(name_or_path)!r}: {error}") from error
    return model
