r"""Which ids may follow which in an answer: one grammar, the same for every algorithm that is compared under it.

    prompt or feedback ─► \boxed{ ─► digit ─► digit, or } ─► end of turn

A policy with random weights would spend its budget on learning what an answer looks like: of answers made of the 13 ids
that a boxed number is written with, one in thirty thousand is right. What may follow depends on the last id alone. For a
language model the grammar is a mask on its logits, so that sampling, scoring and training all see one distribution. For
`MaskablePPO` it gives the action masks; algorithms without masks get the 13 ids as their action space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["AnswerGrammar", "answer_grammar", "answer_ids", "mask_logits"]

_OPEN, _CLOSE, _DIGITS = "\\boxed{", "}", tuple("0123456789")
_START: Final = -1


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """What may follow which id in an answer.

    Args:
        first: What an answer may begin with.
        following: For each id of an answer, what may follow it.
    """

    first: tuple[int, ...]
    following: Mapping[int, tuple[int, ...]]

    def __call__(self, answer: Sequence[int]) -> tuple[int, ...]:
        """The ids that may come next.

        Args:
            answer: The ids of the answer so far. After an id that the grammar does not know, an answer may begin.
        """
        return self.following.get(int(answer[-1]), self.first) if len(answer) else self.first


def answer_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    r"""The ids that a boxed whole number is written with, the end of the turn included, ascending.

    Args:
        tokenizer: One in which `\boxed{`, `}` and each digit is a single id.

    Raises:
        InvalidValueError: one of these is more than one id in this tokenizer, or it has no end-of-turn id.

    >>> from mathturn_gym.baselines.tiny import train_tokenizer
    >>> len(answer_ids(train_tokenizer()))
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

    >>> from mathturn_gym.baselines.tiny import train_tokenizer
    >>> tokenizer = train_tokenizer()
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
