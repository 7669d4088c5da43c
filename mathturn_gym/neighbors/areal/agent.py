"""The agent: one query, `num_turns` turns of observation, reply, verdict and feedback, one `SequenceSample`."""

from __future__ import annotations

import dataclasses
import logging
import operator
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from mathturn_gym.env.dialogue import Dialogue, Tokenizer, load_tokenizer
from mathturn_gym.env.rewards import affine_reward, turn_reward
from mathturn_gym.episodes.returns import discounted_sums
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, MathTurnError, check_float, check_int
from mathturn_gym.neighbors.areal.dialogue import (
    RIGHT_TEXT,
    WRONG_TEXT,
    answers_after_prompt,
    decode_batch,
    spliced_feedback_ids,
)
from mathturn_gym.neighbors.areal.logs import LoggedTurn, TrajectoryLog, write_original_logs
from mathturn_gym.neighbors.areal.protocol import (
    BundledGenerationOutputs,
    EnvironmentService,
    GenerationHyperparameters,
    Queue,
    ReplyError,
)
from mathturn_gym.neighbors.areal.sample import SequenceSample, Trajectory
from mathturn_gym.types import Completion, Ids, Status, Verdict


class MathMultiTurnAgent:
    """AReaL's `MathMultiTurnAgent`, as it was (`compat=True`) or with its defects fixed (`compat=False`).

    An agent has no state of its own: one serves any number of trajectories at once.

    Args:
        gconfig: Generation settings: `GenerationHyperparameters`, a mapping of its fields, or any object with
            `new(n=1)` or dataclass with `n`. Observations carry it with `n=1`.
        tokenizer_path: What `load_tokenizer` takes: a folder or hub name, "builtin", or a tokenizer.
        answer_save_path: Folder of the logs, or None for no logs.
        reward_scaling: See `mathturn_gym.env.rewards.turn_reward`.
        reward_bias: See `mathturn_gym.env.rewards.turn_reward`.
        turn_level_discount: Per turn; in [0, 1] with `compat=False`.
        num_turns: Turns of a trajectory; at least 1 with `compat=False`.
        compat: Give what the original gave, to the bit, defects included.
        clock: Seconds since the epoch, for `birth_time`.

    Attributes:
        tokenizer: The tokenizer.
        dialogue: Texts to ids and back, with `compat=False`; None with `compat=True`.
        log: Writes the logs with `compat=False`; None with `compat=True` or without a folder.

    Raises:
        InvalidValueError: with `compat=False`: an argument is outside what is allowed.
        ChatTemplateError: with `compat=False`: the tokenizer has no usable chat template.
    """

    def __init__(
        self,
        gconfig: Any,
        tokenizer_path: str | Path | Tokenizer,
        answer_save_path: str | os.PathLike[str] | None,
        reward_scaling: float = 1.0,
        reward_bias: float = 0.0,
        turn_level_discount: float = 1.0,
        num_turns: int = 5,
        *,
        compat: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.compat = bool(compat)
        self.gconfig: Any = _one_completion(gconfig)
        self.tokenizer: Tokenizer = load_tokenizer(tokenizer_path)
        self.answer_save_path = answer_save_path
        self.reward_scaling = reward_scaling
        self.reward_bias = reward_bias
        self.turn_level_discount = turn_level_discount
        self.num_turns = num_turns
        self.clock = clock
        self.dialogue: Dialogue | None = None
        self.log: TrajectoryLog | None = None
        if not self.compat:
            self._check()
            self.dialogue = Dialogue(self.tokenizer)
            self.log = None if answer_save_path is None else TrajectoryLog(answer_save_path)

    def _check(self) -> None:
        """Raises where an argument is outside what is allowed; the original had no checks."""
        self.reward_scaling = check_float("reward_scaling", self.reward_scaling)
        self.reward_bias = check_float("reward_bias", self.reward_bias)
        self.turn_level_discount = check_float("turn_level_discount", self.turn_level_discount, low=0.0, high=1.0)
        self.num_turns = check_int("num_turns", self.num_turns, low=1)
        path = self.answer_save_path
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise InvalidValueError(f"answer_save_path must be the path of a folder or None, got {path!r}")
        if path is not None and Path(path).exists() and not Path(path).is_dir():
            raise InvalidValueError(f"answer_save_path must be a folder, but {str(path)!r} is a file")
        if not callable(self.clock):
            raise InvalidValueError(
                f"clock must be a function without arguments that gives seconds, got {self.clock!r}"
            )

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        """Collects one trajectory.

        Args:
            prompt: One item with `packed_prompts`, and `task_ids` if the sample is to have them.
            env: Judges the answers.
            obs_queue: Gets `(qid, token_ids, gconfig)` per turn.
            act_queue: Gives the reply to each, a `BundledGenerationOutputs` or anything with its attributes.

        Returns:
            One `SequenceSample` of one item with K sequences under each packed key.

        Raises:
            Exception: with `compat=True` what the original raises (see `collect_original`), else `collect_repaired`'s.
        """
        # The original resets its environment before every query, stateless or not.
        await env.reset()
        collect = collect_original if self.compat else collect_repaired
        return await collect(self, prompt, env, obs_queue, act_queue)


def _one_completion(gconfig: Any) -> Any:
    """The generation settings with n=1."""
    if isinstance(gconfig, Mapping):
        gconfig = GenerationHyperparameters(**gconfig)
    if hasattr(gconfig, "new"):
        return gconfig.new(n=1)
    if dataclasses.is_dataclass(gconfig) and not isinstance(gconfig, type) and hasattr(gconfig, "n"):
        return dataclasses.replace(gconfig, n=1)
    raise InvalidValueError(
        "gconfig must be GenerationHyperparameters, a mapping of its fields, have new(n=1), or be a dataclass with n,"
        f" got {gconfig!r}"
    )


# ---- how a trajectory is collected: as the original did, and repaired


async def collect_original(
    agent: MathMultiTurnAgent, prompt: Any, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
) -> list[SequenceSample]:
    """Plays all turns of one query.

    Raises:
        AssertionError: the prompt is a batch of several, or of none.
        IndexError: the answer is not found in the sequence's text.
        ValidationError: the replies do not fit each other (the logs are written by then).
        Exception: whatever the environment raises.
    """
    if prompt.bs != 1:
        raise AssertionError  # without a message, as it was; compat=False has one
    tokenizer = agent.tokenizer
    prompt_ids: list[int] = prompt.data["packed_prompts"].cpu().numpy().tolist()
    qid = prompt.ids[0]
    trajectory = Trajectory(qid, prompt_ids, int(agent.clock() * 1000))
    prompt_text = decode_batch(tokenizer, [prompt_ids])[0]
    all_answers: list[str] = []
    all_success: list[Any] = []
    rewards: list[float] = []
    context = prompt_ids
    for _ in range(agent.num_turns):
        await obs_queue.put((qid, context, agent.gconfig))
        reply = await act_queue.get()
        answers = answers_after_prompt(tokenizer, reply.seqs, reply.prompt_ids)
        # Overwritten each turn, so that the log shows the last prompt for every turn (defect 11).
        prompt_text = decode_batch(tokenizer, [reply.prompt_ids])[0]
        _, success, *_ = await env.step((qid, answers))
        worth = [affine_reward(float(score), agent.reward_bias, agent.reward_scaling) for score in success]
        all_success.extend(success)
        all_answers.extend(answers)
        trajectory.add(reply)
        rewards.append(worth[0])
        # As in the original agent: any score but 0 is congratulated, and feedback is made for the last turn, where it is unused.
        feedback = spliced_feedback_ids(tokenizer, RIGHT_TEXT if success[0] else WRONG_TEXT)
        context = [*reply.seqs[0], *feedback]
    if agent.answer_save_path is not None:
        write_original_logs(
            agent.answer_save_path,
            qid=str(qid),
            prompt=prompt_text,
            prompt_len=len(prompt_ids),
            answers=all_answers,
            seqlens=trajectory.seqlens,
            rewards=rewards,
            success=all_success,
            version_starts=trajectory.version_start,
            version_ends=trajectory.version_end,
        )
    returns = discounted_sums(np.array([rewards], np.float64), agent.turn_level_discount)[0].tolist()
    return [trajectory.sample(returns, agent.num_turns, _task_ids(prompt))]


# ---- how a trajectory is collected with the original's interface and without its defects (`compat=False`)


_LOG = logging.getLogger(__name__)
_REPLY_FIELDS: Final = ("seqs", "prompt_ids", "logprobs", "no_eos", "version_start", "version_end")


async def collect_repaired(
    agent: MathMultiTurnAgent, prompt: Any, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
) -> list[SequenceSample]:
    """Plays all turns of one query.

    The answer is the text of the completion's own ids; feedback is a template difference, which also closes turns
    that were cut off; only a score of 1 is congratulated; an exception of the verification leaves the turn undecided
    (score 0, logged); logs are written when the sample has been checked.

    Raises:
        InvalidValueError: the prompt, or what the environment returns, is not what it must be.
        ReplyError: a reply does not fit its observation; field and turn are named.
        MathTurnError: the environment's own complaint about its user (an unknown query, for example).
    """
    assert agent.dialogue is not None
    qid, context = _prompt(prompt, agent.dialogue.vocab_size)
    trajectory = Trajectory(qid, context.tolist(), int(check_float("clock()", agent.clock(), low=0.0) * 1000))
    played: list[tuple[BundledGenerationOutputs, str, Verdict]] = []
    rewards: list[float] = []
    for turn in range(agent.num_turns):
        await obs_queue.put((qid, context.tolist(), agent.gconfig))
        who = f"reply to query {qid!r}, turn {turn}"
        completion = _completion(await act_queue.get(), context, agent.dialogue.vocab_size, who)
        answer = agent.dialogue.response(context, completion.ids)
        verdict = await _judge(env, qid, answer)
        rewards.append(turn_reward(verdict.value, bias=agent.reward_bias, scaling=agent.reward_scaling))
        # Made again from the checked completion: what a reply says twice (prompt in seqs and prompt_ids) now agrees.
        reply = BundledGenerationOutputs.from_completion(qid, context.tolist(), completion)
        trajectory.add(reply)
        played.append((reply, answer, verdict))
        # The last turn has no successor to read its feedback; the original made it all the same.
        if turn + 1 < agent.num_turns:
            text = RIGHT_TEXT if verdict.correct else WRONG_TEXT
            feedback = agent.dialogue.feedback_ids(text, turn, completion.ids)
            context = np.concatenate([context, completion.ids, feedback])
    returns = discounted_sums(np.array([rewards]), agent.turn_level_discount)[0].tolist()
    sample = trajectory.sample(returns, agent.num_turns, _task_ids(prompt))
    if agent.log is not None:
        turns = zip(played, rewards, returns, strict=True)
        agent.log.write(qid, [_logged(agent, *one, reward, worth) for one, reward, worth in turns])
    return [sample]


def _prompt(prompt: Any, vocab_size: int) -> tuple[str, Ids]:
    """Query id and ids of the prompt, checked."""
    if getattr(prompt, "bs", None) != 1:
        raise InvalidValueError(f"prompt must be a SequenceSample of one item, got {prompt!r}")
    if not prompt.data or "packed_prompts" not in prompt.data:
        raise InvalidValueError(f"prompt {prompt.ids[0]!r} must have data under 'packed_prompts', got {prompt.data!r}")
    ids = torch.as_tensor(prompt.data["packed_prompts"]).cpu().numpy()
    _check_ids(f"packed_prompts of query {prompt.ids[0]!r}", ids, vocab_size, InvalidValueError)
    if not ids.size:
        raise InvalidValueError(f"packed_prompts of query {prompt.ids[0]!r} must hold at least one id, got none")
    return str(prompt.ids[0]), ids.astype(np.int64)


def _task_ids(prompt: Any) -> torch.Tensor | None:
    value: torch.Tensor | None = prompt.data["task_ids"] if "task_ids" in prompt.keys else None
    return value


def _check_ids(name: str, ids: Ids, vocab_size: int, error: type[InvalidValueError]) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise error(f"{name} must be one row of integers, got {ids.dtype} of shape {ids.shape}")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise error(f"{name} must be ids in [0, {vocab_size}), got {int(ids.min())} to {int(ids.max())}")


def _completion(reply: Any, context: Ids, vocab_size: int, who: str) -> Completion:
    """The completion of a reply, every field checked against the observation that it answers."""
    for name in _REPLY_FIELDS:
        if not hasattr(reply, name):
            raise ReplyError(f"{who}: it must have {', '.join(_REPLY_FIELDS)}; {name} is missing from {reply!r}")
        if name != "prompt_ids" and len(getattr(reply, name)) != 1:
            raise ReplyError(f"{who}: {name} must have one entry (gconfig.n is 1), got {getattr(reply, name)!r}")
    size = len(context)
    # An empty list would become float64, which no id is.
    sequence = np.asarray(reply.seqs[0], dtype=None if len(reply.seqs[0]) else np.int64)
    _check_ids(f"{who}: seqs[0]", sequence, vocab_size, ReplyError)
    if not np.array_equal(np.asarray(reply.prompt_ids), context) or not np.array_equal(sequence[:size], context):
        raise ReplyError(f"{who}: prompt_ids must be the observation's {size} ids, and seqs[0] must begin with them")
    logprobs = np.asarray(reply.logprobs[0], np.float64)
    if logprobs.shape != (len(sequence) - 1,):
        raise ReplyError(f"{who}: logprobs[0] must have {len(sequence) - 1} entries, got shape {logprobs.shape}")
    if not np.all(np.isfinite(logprobs)):
        raise ReplyError(f"{who}: logprobs[0] must be finite: the sample is for training by ratios")
    try:
        return Completion(
            sequence[size:],
            logprobs[size - 1 :],  # type: ignore[arg-type]  # Completion makes them float32
            truncated=bool(reply.no_eos[0]),
            version_start=operator.index(reply.version_start[0]),
            version_end=operator.index(reply.version_end[0]),
        )
    except (InvalidEpisodeError, TypeError) as error:
        raise ReplyError(f"{who}: {error}") from error


async def _judge(env: EnvironmentService, qid: str, answer: str) -> Verdict:
    """The environment's verdict; what it raises about a model's text is one too."""
    try:
        result = await env.step((qid, [answer]))
    # A user's mistake (an unknown query) ends the run; what the verification of a text raises does not (law 3).
    except MathTurnError:  # the environment says that its user made a mistake
        raise
    except Exception as error:
        _LOG.exception("the verification of query %r raised; the turn is undecided", qid)
        return Verdict(Status.UNDECIDED, f"{type(error).__name__}: {error}", tier="error")
    try:
        _, success, *_ = result
        (score,) = success
        # A score above 1, or NaN, would become a reward without a word.
        score = check_float("score", float(score), low=0.0, high=1.0)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"env.step must return (None, [score], True, False, info) with a score in [0, 1], got {result!r} for query"
            f" {qid!r}"
        ) from error
    return Verdict(Status.RIGHT if score == 1.0 else Status.WRONG, score=score)


def _logged(
    agent: MathMultiTurnAgent,
    reply: BundledGenerationOutputs,
    answer: str,
    verdict: Verdict,
    reward: float,
    discounted_return: float,
) -> LoggedTurn:
    assert agent.dialogue is not None
    return LoggedTurn(
        prompt=agent.dialogue.decode(np.array(reply.prompt_ids, np.int64)),
        answer=answer,
        prompt_len=reply.prompt_len,
        answer_len=len(reply.output_ids[0]),
        no_eos=reply.no_eos[0],
        success=verdict.correct,
        score=verdict.value,
        reward=reward,
        discounted_return=discounted_return,
        version_start=reply.version_start[0],
        version_end=reply.version_end[0],
        error=verdict.reason,
    )
