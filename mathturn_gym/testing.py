"""Tools for users' tests: policies without a model, contract tests for any policy or environment, and synthetic episodes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from mathturn_gym.env import StepInfo
from mathturn_gym.env.dialogue import CHATML_TEMPLATE, Dialogue, completion_ids
from mathturn_gym.errors import EpisodeStateError, InvalidActionError, InvalidValueError, check_int
from mathturn_gym.seeding import derive_seed, uniforms
from mathturn_gym.types import NO_VERSION, Completion, Episode, Ids, Policy, Status, StopReason, Verdict

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


def make_tokenizer(
    template: str = "chatml", seed: int = 0, merges: int = 40, *, marks: Sequence[str] = (), eos: str = "<|im_end|>"
) -> Any:
    """A small byte-level tokenizer with random merges: takes any text, downloads nothing, differs by seed.

    Args:
        template: A name in `TEMPLATES`, or a Jinja chat template; None for a tokenizer without one.
        seed: Decides the order of the bytes and the merges.
        merges: How many pairs are merged.
        marks: Further special tokens, such as those that a template writes.
        eos: The special token that ends a sequence.

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
    specials = list(dict.fromkeys(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin|>", *marks, eos]))
    vocabulary = {piece: i + len(specials) for i, piece in enumerate(pieces)}
    model = models.BPE(vocab={**{s: i for i, s in enumerate(specials)}, **vocabulary}, merges=pairs)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(seed % 2))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<|begin|>",
        eos_token=eos,
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
        ids = completion_ids(self._dialogue, text)
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
    log-prob per id, and that a row's seed determines its sample, whatever the other rows are.

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


def check_turn_env(make: Callable[[], gym.Env[Any, Any]], *, episodes: int = 3, seed: int = 0) -> None:
    """Holds an environment to the contract of `MathMultiTurnEnv`; use it for your own environment, or a served one.

    Checks Gymnasium's own contract; that a seed decides the episode; the sequence law; that `info` has its keys, true
    offsets and budgets, no accepted answer and no clock; that mistakes raise and change nothing; that observations are
    copies; and that `get_state` forks.

    Args:
        make: Makes a new environment, equal to the ones before.
        episodes: Episodes to play.
        seed: Decides problems and actions.

    Raises:
        AssertionError: the contract is broken; the message says where.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked = make().unwrapped
        check_env(checked, skip_render_check=True)
        checked.close()
    env, twin = make().unwrapped, make().unwrapped
    try:
        _check_order(env)
        for episode in range(episodes):
            _check_episode(env, twin, seed, episode)
        _check_problem_id(env, twin, seed)
    finally:
        env.close()
        twin.close()


def _check_order(env: gym.Env[Any, Any]) -> None:
    """`step` before `reset`, and unknown options."""
    _raises(EpisodeStateError, "step() before reset()", lambda: env.step(np.zeros(0, np.int64)))
    _raises(InvalidValueError, "an unknown reset option", lambda: env.reset(options={"no such option": 1}))


def _check_episode(env: gym.Env[Any, Any], twin: gym.Env[Any, Any], seed: int, index: int) -> None:
    """One episode, played by two environments alike and by a fork of one of them."""
    space: Any = env.action_space
    rng = np.random.default_rng(derive_seed("check_turn_env", seed, index))
    observation, info = env.reset(seed=seed, options={"index": index})
    _same("reset", (observation, info), twin.reset(seed=seed, options={"index": index}))
    _check_info(info, observation, np.zeros(0, np.int64), 0)
    over, segment = False, 0
    while not over:
        for bad in (np.array([space.vocab_size]), np.zeros(space.max_length + 1, np.int64), np.zeros(2), [1, 2]):
            _raises(InvalidActionError, f"the action {bad!r}", functools.partial(env.step, bad))
        size = int(rng.integers(0, min(space.max_length, 12) + 1))
        action = rng.integers(space.vocab_size, size=size)
        state = twin.get_state()  # type: ignore[attr-defined]
        result, before = env.step(action), observation.copy()
        observation[:] = 0  # what a caller does with its copy changes nothing
        _same(f"turn {info['turn']}", result, twin.step(action))
        twin.set_state(state)  # type: ignore[attr-defined]
        _same(f"turn {info['turn']} of a fork", result, twin.step(action))
        observation, reward, terminated, truncated, info = result
        assert type(reward) is float, f"the reward is a {type(reward).__name__}, not a float"
        assert not (terminated and truncated), "an episode is terminated and truncated"
        if info["segment"] == segment:
            assert np.array_equal(observation[: len(before) + size], np.concatenate([before, action])), (
                f"turn {info['turn']}: the observation is not the one before ++ the action ++ feedback"
            )
            _check_info(info, observation, before, size)
        else:  # it was re-rendered, and the info says so
            assert info["segment"] == segment + 1, f"turn {info['turn']}: segment {info['segment']} after {segment}"
            _check_info(info, observation, before[:0], info["feedback_start"])
        segment = info["segment"]
        over = terminated or truncated
        assert over == (info["stop_reason"] is not None), f"stop_reason is {info['stop_reason']!r}, over is {over}"
    _raises(EpisodeStateError, "step() after the end", lambda: env.step(np.zeros(0, np.int64)))


def _check_info(info: dict[str, Any], observation: Ids, before: Ids, action: int) -> None:
    optional = {"gold", "reward_terms", "reward_verdict", "feedback_verdict"}
    assert set(info) | optional == set(StepInfo.__annotations__), f"info has the keys {sorted(info)}"
    assert info["new_ids_start"] == len(before), f"new_ids_start is {info['new_ids_start']}, expected {len(before)}"
    # The feedback begins after the action; a prompt that leaves no room plays no turn.
    assert info["feedback_start"] in (len(before) + action, len(before)), f"feedback_start is {info['feedback_start']}"
    assert info["context_left"] >= 0, "context_left is negative"
    assert (info["completion_budget"] == 0) == (info["stop_reason"] is not None), (
        "completion_budget is 0 at the end alone"
    )
    verdict = info["verdict"]
    assert verdict is None or (verdict.gold is None and verdict.seconds == 0), "info tells the answer, or has a clock"


def _check_problem_id(env: gym.Env[Any, Any], twin: gym.Env[Any, Any], seed: int) -> None:
    """A problem comes again by its id, and the stream goes on as if it had not."""
    _, first = env.reset(seed=seed)
    again, info = twin.reset(seed=seed, options={"problem_id": first["problem_id"]})
    assert info["problem_id"] == first["problem_id"], "problem_id chose another problem"
    assert np.array_equal(again, env.reset(seed=seed)[0]), "problem_id gave another prompt"
    assert twin.reset()[1]["problem_id"] == first["problem_id"], "problem_id used up a number of the stream"
    _raises(InvalidValueError, "an unknown problem_id", lambda: env.reset(options={"problem_id": "no such problem"}))


def _raises(error: type[Exception], what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"{what} must raise {error.__name__}")


def _same(where: str, left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    assert np.array_equal(left[0], right[0]), f"{where}: the observations differ"
    assert left[1:] == right[1:], f"{where}: {left[1:]} against {right[1:]}"


def _generation_prompt(dialogue: Dialogue) -> str:
    """The text that opens every assistant turn: how a script counts the turns of a context."""
    text = dialogue.decode(dialogue.feedback_ids("?", 0, np.zeros(0, np.int64)))
    return text[text.rindex("?") + 1 :]


# ---- synthetic episodes, for tests and benchmarks of packing and training


def synthetic_episode(
    seed: int,
    index: int,
    completions: Sequence[int],
    *,
    prompt: int | Sequence[int] = 8,
    feedback: int = 4,
    anew: Sequence[int] = (),
    group: str | None = None,
    vocab_size: int = 100,
    logprobs: bool = True,
    max_version: int = 0,
    **fields: Any,
) -> Episode:
    """A lawful episode of random ids, log-probs, versions, verdicts and rewards.

    Args:
        seed: Of the collection.
        index: Of the episode; `(seed, index)` determine it, and `(seed, group)` its prompt.
        completions: Lengths of its K completions; 0 is an empty one.
        prompt: The prompt's length, or its ids.
        feedback: Ids of feedback between two turns.
        anew: Turns, from 1 on, before which the context is re-rendered: each begins a segment, with a context that is as
            long as prompt and feedback together.
        group: See `Episode.group`.
        vocab_size: Ids are in [0, vocab_size).
        logprobs: False: the policy gave none (NaN).
        max_version: Versions rise within [0, max_version].
        fields: Other fields of `Episode`, or different ones.

    Raises:
        InvalidValueError: a negative length, or a turn in `anew` that is not there.

    >>> synthetic_episode(0, 0, [3, 2], prompt=5, feedback=4).turn_spans.tolist()
    [[5, 8], [12, 14]]
    """
    if min([feedback, *completions, 0]) < 0:
        raise InvalidValueError(f"lengths must be >= 0, got feedback {feedback}, completions {list(completions)}")
    rng = np.random.default_rng(derive_seed(seed, index))
    start = np.asarray(
        np.random.default_rng(derive_seed(seed, group or index)).integers(vocab_size, size=prompt)
        if isinstance(prompt, int)
        else prompt,
        dtype=np.int64,
    )
    turns = len(completions)
    if not set(anew) <= set(range(1, turns)):
        raise InvalidValueError(f"anew must hold turns in [1, {turns - 1}], got {list(anew)}")
    lengths, gaps = np.array(completions, np.int64), np.full(turns, feedback, np.int64)
    gaps[:1] = len(start)
    gaps[list(anew)] = max(1, len(start) + feedback)
    begins = np.cumsum(lengths + gaps) - lengths
    spans = np.stack([begins, begins + lengths], axis=1).reshape(-1, 2)
    size = int(spans[-1, 1]) if turns else len(start)
    mask = np.zeros(size, np.bool_)
    for begin, end in spans.tolist():
        mask[begin:end] = True
    drawn = np.log1p(-rng.random(size)).astype(np.float32) if logprobs else np.float32(np.nan)
    versions = np.full(size, NO_VERSION, np.int32)
    versions[mask] = np.sort(rng.integers(max_version + 1, size=int(mask.sum())))
    right = rng.random(turns) < 0.3
    known: dict[str, Any] = {
        "problem_id": f"synthetic/{group or index}",
        "ids": np.concatenate([start, rng.integers(vocab_size, size=size - len(start))]),
        "loss_mask": mask,
        "logprobs": np.where(mask, drawn, np.float32(0)).astype(np.float32),
        "versions": versions,
        "turn_spans": spans,
        "rewards": rng.normal(size=turns),
        "verdicts": tuple(Verdict(Status.RIGHT if flag else Status.WRONG, "synthetic") for flag in right.tolist()),
        "feedbacks": tuple("again" if k + 1 < turns else "" for k in range(turns)),
        "turn_truncated": (False,) * turns,
        "terminated": True,
        "truncated": False,
        "stop_reason": StopReason.TURNS,
        "index": index,
        "seed": seed,
        "group": group,
        "segment_starts": np.array([0, *(int(spans[turn - 1, 1]) for turn in sorted(anew))], np.int64),
    }
    return Episode(**{**known, **fields})
