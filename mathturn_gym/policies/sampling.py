r"""Draws the next id: `Sampling` (temperature, top-k, top-p, min-p), and `AnswerGrammar`, a mask for boxed numbers.

logits ─► (grammar's mask) ─► log_distribution ─► draw: the id at which the cumulative sum exceeds a uniform number
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from mathturn_gym.errors import InvalidValueError, check_float, check_int

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_BLOCK: Final = 128
_SMALL_VOCABULARY: Final = 8192  # vocabularies up to this size are summed in one piece: blocks would save nothing there


@dataclass(frozen=True, slots=True)
class Sampling:
    """Draws ids from logits: temperature, then top-k, then top-p, then min-p, then normalized again.

    The order is that of `transformers.generate`.

    Args:
        temperature: > 0 divides the logits; 0 takes the likeliest id. The log-probs of greedy sampling are those at
            temperature 1: they are no behavior log-probs, and no importance ratio can be built on them.
        top_p: Keep the smallest set of ids whose probability reaches this, in (0, 1]; 1 keeps all.
        top_k: Keep this many ids; 0 keeps all.
        min_p: Keep the ids whose probability is at least this share of the likeliest one's, in [0, 1]; 0 keeps all
            (Nguyen et al. 2024, arXiv:2407.01082).

    Raises:
        InvalidValueError: a value outside these ranges.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_float("temperature", self.temperature, low=0.0)
        check_int("top_k", self.top_k, low=0)
        check_float("min_p", self.min_p, low=0.0, high=1.0)
        if check_float("top_p", self.top_p, low=0.0, high=1.0) == 0.0:
            raise InvalidValueError("top_p must be in (0, 1], got 0.0; for greedy decoding use temperature=0")

    @property
    def truncates(self) -> bool:
        """True where some ids are cut off, so that importance ratios are biased."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def log_distribution(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Log-probs under the distribution that is sampled from, float32 (B, V); -inf where an id is cut off."""
        logits_BV = logits_BV.float()
        if self.temperature not in (0.0, 1.0):
            logits_BV = logits_BV / self.temperature
        if self.top_k or self.top_p < 1.0:
            logits_BV = self._truncate(logits_BV)
        if self.min_p:
            floor_B1 = logits_BV.amax(dim=-1, keepdim=True) + math.log(self.min_p)
            logits_BV = logits_BV.masked_fill(logits_BV < floor_B1, -torch.inf)
        return torch.log_softmax(logits_BV, dim=-1)

    def draw(self, logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
        """The id at which the cumulative distribution first exceeds each uniform number, int64 (B,).

        For large vocabularies the sums of blocks find the block, and cumulative sums inside it the id: a cumulative sum over
        everything took three times as long, a sixth of a decoding step of 64 rows (issue 33). All sums are float64 in both forms, but
        are added in another order. So an id can differ from the other form's only where a uniform number lies within their
        rounding (about 1e-15) of the border between two ids. Which form is taken depends on the vocabulary alone.
        """
        if self.temperature == 0.0:
            return logprobs_BV.argmax(dim=-1)
        probs_BV, size = logprobs_BV.exp(), logprobs_BV.shape[1]
        if size <= _SMALL_VOCABULARY:
            cdf_BV = torch.cumsum(probs_BV, dim=-1, dtype=torch.float64)
            return _first_above(cdf_BV, uniforms_B * cdf_BV[:, -1])
        ends_BN = torch.cumsum(_block_sums(probs_BV), dim=-1)
        target_B = uniforms_B * ends_BN[:, -1]
        block_B1 = _first_above(ends_BN, target_B)[:, None]
        before_B = torch.where(block_B1 > 0, ends_BN.gather(1, (block_B1 - 1).clamp_min(0)), 0.0)[:, 0]
        ids_BK = block_B1 * _BLOCK + torch.arange(_BLOCK, device=probs_BV.device)
        inside_BK = probs_BV.gather(1, ids_BK.clamp_max(size - 1)).masked_fill(ids_BK >= size, 0.0)
        cdf_BK = torch.cumsum(inside_BK, dim=-1, dtype=torch.float64)
        found_B = block_B1[:, 0] * _BLOCK + _first_above(cdf_BK, target_B - before_B)
        return found_B.clamp_max(size - 1)  # of logits that are not finite: the caller names them

    def _truncate(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Logits with -inf outside the top-k and top-p sets; ties go to the smaller id."""
        sorted_BV, order_BV = torch.sort(logits_BV, dim=-1, descending=True, stable=True)
        keep_BV = torch.ones_like(sorted_BV, dtype=torch.bool)
        if self.top_k:
            keep_BV[:, self.top_k :] = False
        if self.top_p < 1.0:
            probs_BV = torch.softmax(sorted_BV.masked_fill(~keep_BV, -torch.inf), dim=-1)
            # An id stays while those before it have not yet reached top_p: the first always does.
            keep_BV &= probs_BV.cumsum(dim=-1) - probs_BV < self.top_p
        return torch.full_like(logits_BV, -torch.inf).scatter(-1, order_BV, sorted_BV.masked_fill(~keep_BV, -torch.inf))


def _first_above(cdf_BN: torch.Tensor, target_B: torch.Tensor) -> torch.Tensor:
    """The first place of each row whose cumulative sum exceeds the target, int64 (B,)."""
    total_B = cdf_BN[:, -1]
    # Below the total, however it was rounded: the last place of positive probability is the last that can be found.
    target_B = torch.minimum(target_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cdf_BN, target_B[:, None], right=True)[:, 0].clamp_max(cdf_BN.shape[1] - 1)


def _block_sums(probs_BV: torch.Tensor) -> torch.Tensor:
    """The sums of `_BLOCK` probabilities each, the last block shorter, float64 (B, N)."""
    whole = probs_BV.shape[1] // _BLOCK * _BLOCK
    blocks_BNK = probs_BV[:, :whole].view(len(probs_BV), whole // _BLOCK, _BLOCK)
    if probs_BV.device.type == "cpu":  # torch would write all of it as float64 first: three times as slow
        sums_BN = torch.from_numpy(blocks_BNK.detach().numpy().sum(axis=-1, dtype=np.float64))
    else:
        sums_BN = blocks_BNK.sum(dim=-1, dtype=torch.float64)
    rest_B1 = probs_BV[:, whole:].sum(dim=-1, keepdim=True, dtype=torch.float64)
    return torch.cat([sums_BN, rest_B1], dim=-1)


def entropy(logprobs_BV: torch.Tensor) -> torch.Tensor:
    """Entropy in nats, float32 (B,), of distributions given as log-probs; an id that is cut off (-inf) adds 0."""
    return -(logprobs_BV.exp() * logprobs_BV.masked_fill(logprobs_BV.isneginf(), 0.0)).sum(dim=-1)


# ---- the grammar of boxed numbers


_OPEN, _CLOSE, _DIGITS = "\\boxed{", "}", tuple("0123456789")
_START: Final = -1


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    r"""The ids that may follow each id of an answer: the same grammar for every algorithm that is compared under it.

        prompt or feedback ─► \boxed{ ─► digit ─► digit, or } ─► end of turn

    A policy with random weights would spend its budget on learning what an answer looks like: of answers made of the 13 ids
    that a boxed number is written with, one in thirty thousand is right. What may follow depends on the last id alone. For a
    language model the grammar is a mask on its logits, so that sampling, scoring and training all use one distribution. For
    `MaskablePPO` it gives the action masks; algorithms without masks get the 13 ids as their action space.

    Args:
        first: What an answer may begin with.
        following: For each id of an answer, what may follow it.
    """

    first: tuple[int, ...]  # what an answer may begin with
    following: Mapping[int, tuple[int, ...]]  # for each id of an answer, what may follow it

    def __call__(self, answer: Sequence[int]) -> tuple[int, ...]:
        """The ids that may come next; after an id that the grammar does not know, an answer may begin."""
        return self.following.get(int(answer[-1]), self.first) if len(answer) else self.first


def answer_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    r"""The ids that a boxed whole number is written with, the end of the turn included, ascending.

    Args:
        tokenizer: One in which `\boxed{`, `}` and each digit is a single id.

    Raises:
        InvalidValueError: one of these is more than one id in this tokenizer, or it has no end-of-turn id.

    >>> from mathturn_gym.env.dialogue import load_tokenizer
    >>> len(answer_ids(load_tokenizer("builtin")))
    13
    """
    grammar = answer_grammar(tokenizer)
    return tuple(sorted({*grammar.first, *(one for after in grammar.following.values() for one in after)}))


def answer_grammar(tokenizer: PreTrainedTokenizerBase) -> AnswerGrammar:
    r"""The grammar of boxed whole numbers.

    Args:
        tokenizer: See `answer_ids`.

    Raises:
        InvalidValueError: see `answer_ids`.

    >>> from mathturn_gym.env.dialogue import load_tokenizer
    >>> tokenizer = load_tokenizer("builtin")
    >>> grammar = answer_grammar(tokenizer)
    >>> tokenizer.decode(grammar([]))
    '\\boxed{'
    >>> tokenizer.decode(grammar(tokenizer.encode("\\boxed{7")))
    '0123456789}'
    """
    box, close, *digits = (_single_id(tokenizer, text) for text in (_OPEN, _CLOSE, *_DIGITS))
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise InvalidValueError(f"grammar: the tokenizer must have an end-of-turn id, got eos_token_id {end!r}")
    after_digit = dict.fromkeys(digits, (*digits, close))
    return AnswerGrammar((box,), {box: tuple(digits), close: (end,), **after_digit})


def mask_logits(model: PreTrainedModel, grammar: AnswerGrammar) -> torch.utils.hooks.RemovableHandle:
    """Gives every id that the grammar does not allow the probability 0, wherever the model is called from.

    Args:
        model: A causal language model, called with `input_ids`; it is changed in place by a forward hook, and nothing
            of it is saved with the weights.
        grammar: What may follow which id.

    Returns:
        A handle; its `remove()` takes the mask away.
    """
    import torch

    size = int(model.get_output_embeddings().weight.shape[0])  # type: ignore[no-untyped-call]
    rows = [grammar.first, *grammar.following.values()]
    state_of_id = torch.zeros(size, dtype=torch.long, device=model.device)
    forbidden = torch.ones(len(rows), size, dtype=torch.bool, device=model.device)
    for state, (last, allowed) in enumerate(zip([_START, *grammar.following], rows, strict=True)):
        if last != _START:
            state_of_id[last] = state
        forbidden[state, list(allowed)] = False

    def mask(module: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> Any:
        ids, keep = kwargs["input_ids"], kwargs.get("logits_to_keep")  # fewer logits than ids where not all are needed
        ids = ids[:, keep] if isinstance(keep, torch.Tensor) else ids[:, -output.logits.shape[1] :]
        output.logits = output.logits.masked_fill(forbidden[state_of_id[ids]], -torch.inf)
        return output

    handle: torch.utils.hooks.RemovableHandle = model.register_forward_hook(mask, with_kwargs=True)
    return handle


def _single_id(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise InvalidValueError(f"grammar: {text!r} is {len(ids)} ids in this tokenizer, and must be one")
    return int(ids[0])
