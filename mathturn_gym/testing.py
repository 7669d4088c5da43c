"""For users' tests: policies without a model, and contract tests that any policy or environment can be held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from mathturn_gym.dialogue import CHATML_TEMPLATE, Dialogue
from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.seeding import uniforms
from mathturn_gym.types import Completion, Ids, Policy

__all__ = ["TEMPLATES", "RandomPolicy", "ScriptedPolicy", "check_policy", "make_tokenizer"]

Script: TypeAlias = "Sequence[str] | Callable[[str], str]"


TEMPLATES: Final[dict[str, str]] = {
    "chatml": CHATML_TEMPLATE,
    "chatml-system": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    + CHATML_TEMPLATE,
    "header": "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n\n' + message['content'] | trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}",
    "inst": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + '<|im_end|>' }}{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% endif %}{% endfor %}",
    "plain": "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
}
"""Chat templates of the shapes that models have: markers around every message, a default system message, a BOS and
trimmed content, no generation prompt, and no markers at all."""


def make_tokenizer(template: str = "chatml", seed: int = 0, merges: int = 40) -> Any:
    """A small byte-level tokenizer with random merges: takes any text, downloads nothing, differs by seed.

    Args:
        template: A name in `TEMPLATES`, or a Jinja chat template; None for a tokenizer without one.
        seed: Decides the order of the bytes and the merges.
        merges: How many pairs are merged.

    >>> tokenizer = make_tokenizer("header", seed=1)
    >>> tokenizer.decode(tokenizer("héllo 3")["input_ids"])
    'héllo 3'
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    rng = np.random.default_rng(seed)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [pieces[i] for i in rng.permutation(len(pieces))]
    common = list("abcdefghijklmnopqrstuvwxyz0123456789Ġ{}\\+=.")
    pairs: list[tuple[str, str]] = []
    while len(pairs) < merges:
        left, right = (common[i] for i in rng.integers(len(common), size=2))
        if left + right not in pieces:
            pairs.append((left, right))
            pieces.append(left + right)
            common.append(left + right)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin|>"]
    vocabulary = {piece: i + len(specials) for i, piece in enumerate(pieces)}
    model = models.BPE(vocab={**{s: i for i, s in enumerate(specials)}, **vocabulary}, merges=pairs)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(seed % 2))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<|begin|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATES.get(template, template)
    return tokenizer


class ScriptedPolicy:
    r"""Says given texts, each closed with the template's end of turn; what does not fit its budget is cut off.

    Args:
        script: Texts, one per turn (the last again when they run out), or a function from the context's text to one.
        dialogue: The environment's `Dialogue` (its tokenizer writes the ids).

    >>> policy = ScriptedPolicy([r"\boxed{4}"], Dialogue("builtin"))
    >>> policy.complete([np.array([65])], max_tokens=[99])[0].truncated
    False
    """

    def __init__(self, script: Script, dialogue: Dialogue) -> None:
        if not callable(script) and (isinstance(script, str) or not len(script)):
            raise InvalidValueError(f"script must be texts or a function, got {script!r}")
        self._script, self._dialogue = script, dialogue
        self._turn_starts = _generation_prompt(dialogue)

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Says each context's next text, with log-prob 0: there is no chance in it."""
        return [self._one(context, limit) for context, limit in zip(contexts, max_tokens, strict=True)]

    def _one(self, context: Ids, limit: int) -> Completion:
        text = self._text(context)
        plain = self._dialogue.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = np.array([*plain, *self._dialogue.end_of_turn], np.int64)
        return Completion(ids[:limit], np.zeros(min(limit, len(ids)), np.float32), truncated=len(ids) > limit)

    def _text(self, context: Ids) -> str:
        if callable(self._script):
            return self._script(self._dialogue.decode(context))
        played = self._dialogue.decode(context).count(self._turn_starts) - 1
        return self._script[min(max(played, 0), len(self._script) - 1)]


class RandomPolicy:
    """Uniform over the vocabulary at every id, with the exact log-prob of that; the honest floor.

    Args:
        vocab_size: Ids are in [0, vocab_size).
        end_of_turn: Stops after this id, or None.
        seed: Used where `complete` gets no seeds.
        tokenizer: Whose ids these are; kept for who makes an environment with it.
    """

    def __init__(
        self, vocab_size: int, end_of_turn: int | None = None, seed: int = 0, *, tokenizer: Any = None
    ) -> None:
        self.vocab_size = check_int("vocab_size", vocab_size, low=1)
        self.end_of_turn, self.tokenizer = end_of_turn, tokenizer
        self._rng = np.random.default_rng(seed)

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Samples until the end of turn or the budget; a row's seed alone decides it."""
        drawn = seeds if seeds is not None else self._rng.integers(2**62, size=len(contexts)).tolist()
        return [self._one(limit, seed) for limit, seed in zip(max_tokens, drawn, strict=True)]

    def _one(self, limit: int, seed: int) -> Completion:
        ids = np.floor(uniforms(seed, limit) * self.vocab_size).astype(np.int64)
        ends = np.flatnonzero(ids == (-1 if self.end_of_turn is None else self.end_of_turn))
        if len(ends):
            ids = ids[: ends[0] + 1]
        logprobs = np.full(len(ids), -np.log(self.vocab_size), np.float32)
        return Completion(ids, logprobs, truncated=not len(ends))


def check_policy(policy: Policy, vocab_size: int, *, max_tokens: int = 8) -> None:
    """Holds a policy to its contract; use it in your own tests.

    Checks that completions come in order, keep their budgets (0 included), have ids of the vocabulary and one
    log-prob per id, and that a row's seed decides its sample, whoever shares its batch.

    Args:
        policy: The policy.
        vocab_size: Ids must be in [0, vocab_size).
        max_tokens: Budget of the checks.

    Raises:
        AssertionError: the contract is broken; the message says where.
    """
    contexts = [np.arange(n, dtype=np.int64) % vocab_size for n in (3, 7, 1)]
    budgets = [max_tokens, 1, 0]
    batch = policy.complete(contexts, max_tokens=budgets, seeds=[1, 2, 3])
    assert len(batch) == 3, f"3 contexts gave {len(batch)} completions"
    for row, (completion, budget) in enumerate(zip(batch, budgets, strict=True)):
        ids: Any = completion.ids
        assert len(ids) <= budget, f"row {row}: {len(ids)} ids for a budget of {budget}"
        assert len(completion.logprobs) == len(ids), f"row {row}: log-probs and ids differ in length"
        assert not len(ids) or (ids.min() >= 0 and ids.max() < vocab_size), (
            f"row {row}: an id outside [0, {vocab_size})"
        )
    alone = policy.complete(contexts[:1], max_tokens=budgets[:1], seeds=[1])[0]
    assert np.array_equal(alone.ids, batch[0].ids), "row 0 samples other ids when it is alone in its batch"


def _generation_prompt(dialogue: Dialogue) -> str:
    """The text that opens every assistant turn: how a script counts the turns of a context."""
    text = dialogue.decode(dialogue.feedback_ids("?", 0, np.zeros(0, np.int64)))
    return text[text.rindex("?") + 1 :]
