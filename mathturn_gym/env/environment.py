"""The environment: a model is shown a problem in ids, answers in ids, and tries again after a verdict and feedback.

    obs[k+1] = obs[k] ++ action[k] ++ feedback[k]

With `history` other than "keep", the observation is re-rendered between turns: then the law holds within each of the
episode's segments.

One class makes all three environment ids, which differ only in the defaults of their keywords.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

import gymnasium as gym
import numpy as np

from mathturn_gym.base.render import draw_dialogue, render_dialogue
from mathturn_gym.base.text import shorten
from mathturn_gym.base.user_functions import error_of, name_of, place_of, positional_parameters
from mathturn_gym.env.dialogue import Tokenizer
from mathturn_gym.env.dialogue._dialogue import DialogueLike, History, make_dialogue
from mathturn_gym.env.feedback import Feedback
from mathturn_gym.env.feedback._registry import get_feedback
from mathturn_gym.env.noise import get_noise
from mathturn_gym.env.rewards import LARGEST_RETURN, RewardTerms, affine_reward, check_scale, get_terms
from mathturn_gym.env.verification import VerifierLike, get_verifier
from mathturn_gym.errors import (
    EpisodeStateError,
    InvalidValueError,
    PromptTooLongError,
    check_float,
    check_int,
    raise_unknown_name,
)
from mathturn_gym.problems import ProblemsLike, load_problems
from mathturn_gym.problems.lists import FiniteSource
from mathturn_gym.seeding import derive_seed
from mathturn_gym.spaces import TokenIds, check_step
from mathturn_gym.types import Ids, Problem, StopReason, TurnContext, TurnRecord, Verdict


class StepInfo(TypedDict, total=False):
    """The info of `reset` and `step`. It holds no times, so the same call gives the same info.

    Attributes:
        problem_id: The problem's id; `reset(options={"problem_id": …})` gives the same problem again.
        prompt: The problem's text.
        metadata: The problem's metadata (family, split, level, …).
        turn: Turns played so far, 0 after `reset`.
        turns_left: Turns that may still be played.
        verdict: The verdict of the turn just played, without the gold answer; None after `reset`.
        response: The text that was verified ("" after `reset`).
        feedback: What the environment said about it, as text ("" where it said nothing: after `reset`, at the end).
        new_ids_start: `obs[new_ids_start:]` came with this call: the prompt, or the action and its feedback; all of it
            where the observation was re-rendered.
        feedback_start: `obs[feedback_start:]` is the feedback (the prompt, after `reset`).
        segment: How many times the observation was re-rendered in this episode (`history="keep"`: 0).
        completion_budget: The most tokens that the next completion can use, 0 at the end.
        context_left: `max_context_tokens` minus the observation's length, never below 0.
        stop_reason: "solved", "turns", "context", "tokens" or "time" at the end (see `StopReason`), None before.
        verifier_errors: Turns so far whose verifier raised (`verdict.is_verifier_error`).
        judged_turns: Turns so far on which a judge decided (`verdict.is_judged`).
        gold: The accepted answers; only with `gold_in_info=True`.
        reward_verdict: What the reward took the turn just played for; only with `verdict_noise`, as the next.
        feedback_verdict: What the feedback took it for, and the end of the episode.
        reward_terms: What the reward of the turn just played is the sum of ("verdict" and the names asked for); only with
            `reward_terms`, and not after `reset`.
    """

    problem_id: str
    prompt: str
    metadata: dict[str, Any]
    turn: int
    turns_left: int
    verdict: Verdict | None
    response: str
    feedback: str
    new_ids_start: int
    feedback_start: int
    segment: int
    completion_budget: int
    context_left: int
    stop_reason: str | None
    verifier_errors: int
    judged_turns: int
    gold: tuple[str, ...]
    reward_verdict: Verdict
    feedback_verdict: Verdict
    reward_terms: dict[str, float]


def info_of(infos: Mapping[str, Any], i: int) -> dict[str, Any]:
    """Environment i's info out of a vector environment's infos.

    A key belongs to environment i where its mask (`infos["_key"][i]`) says so, or where there is no mask: Gymnasium's
    wrappers add dictionaries whose keys have none (`RecordEpisodeStatistics`).

    >>> info_of({"turn": np.array([1, 2]), "_turn": np.array([True, True])}, 1)
    {'turn': 2}
    """
    info: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") or (f"_{key}" in infos and not infos[f"_{key}"][i]):
            continue
        value = values
        if isinstance(values, dict):
            value = info_of(values, i)
        elif isinstance(values, (np.ndarray, list, tuple)):
            value = values[i]
        info[key] = value.item() if isinstance(value, np.generic) else value
    return info


_OPTIONS: Final = ("problem_id", "index", "family", "level", "episode")
_FEEDBACK_ROOM: Final = 256
_PROMPT_ROOM: Final = 2048
_PROBED: Final = 16
_PLAIN: Final = (str, int, float, bool, type(None))  # need no copy
_NO_IDS: Final = np.zeros(0, np.int64)
_PLACEHOLDER: Final = "{problem}"


VerdictSource: TypeAlias = Callable[[TurnContext], Verdict]
"""Judges the turns that `step` plays in place of the environment's verifier."""


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeState:
    """An episode at some turn, as `get_state` gives it: everything that decides what follows.

    Args:
        problem: The problem.
        ids: int64 (L,); the observation.
        turns: The turns played.
        stop_reason: Why it ended or is about to (a prompt without room for an answer), or None.
        ended: Its last step was taken.
        stream: Seed of the environment's stream of problems.
        next_index: Number of the problem that the next `reset()` shows.
        rng_state: State of the environment's `np_random`, or None.
        segments: The finished segments: the observations before each re-rendering, with the turns played in them.
        episode_seed: Decides whatever is random in feedback and verdicts: copies of an episode meet the same.
    """

    problem: Problem
    ids: Ids
    turns: tuple[TurnRecord, ...]
    stop_reason: StopReason | None
    ended: bool
    stream: int
    next_index: int
    rng_state: Mapping[str, Any] | None
    segments: tuple[Ids, ...] = ()
    episode_seed: int = 0

    def __repr__(self) -> str:
        """`EpisodeState(on 'lins/3f', 2 turns, 57 tokens)`."""
        return f"EpisodeState(on {shorten(self.problem.id)}, {len(self.turns)} turns, {len(self.ids)} tokens)"


class Beginning(NamedTuple):
    """An episode that `plan_reset` has worked out and `commit_reset` has not begun."""

    problem: Problem  # its problem
    observation: Ids  # int64 (L0,); the prompt
    stop_reason: StopReason | None  # set where the prompt leaves no room for an answer, or there are no turns
    stream: int  # seed of the stream of problems
    next_index: int  # number of the problem after this one
    info: dict[str, Any]  # what `reset` returns
    episode_seed: int  # see `TurnContext`


class Transition(NamedTuple):
    """A turn that `weigh_turn` has worked out and `commit_turn` has not played."""

    observation: Ids  # int64 (L,); what `step` returns
    reward: float  # what `step` returns
    terminated: bool  # what `step` returns
    truncated: bool  # what `step` returns
    info: dict[str, Any]  # what `step` returns
    record: TurnRecord | None  # the turn; None where the prompt left no room for one
    stop_reason: StopReason | None  # why the episode ends with it, or None
    # Where the observation is re-rendered: the one before it and the action; else None.
    finished_segment: Ids | None = None


class MathMultiTurnEnv(gym.Env[Ids, Ids]):
    r"""A token-level, multi-turn mathematics environment.

    Observations are all ids so far, actions are completions (ids); both in `TokenIds`. An action may have any ids of
    the vocabulary, none at all, or more than the context has room for: it is verified, rewarded and appended as it is.

    Args:
        problems: A name ("lins", "add1", "guess8", with ":test" and the like for a split), a `.jsonl` file in the
            schema of GSM8K or MATH, `Problem` objects, or a `ProblemSource`.
        tokenizer: "builtin", a folder or hub name, or a Hugging Face tokenizer with a chat template.
        dialogue: Turns texts into ids and back: an object with the methods of `dialogue.TurnDialogue`, or a function that
            makes one of the tokenizer (it also gets `system_prompt=` where there is one). None takes what the feedback
            declares, and else `Dialogue`.
        num_turns: Turns of an episode, >= 1 (or what the feedback declares as its `fewest_turns`).
        max_completion_tokens: The most tokens of one action, >= 1.
        max_context_tokens: Budget for the whole context. An episode whose next feedback would leave no room for a
            single token ends truncated, without that feedback. None makes room for every turn at full length: 2,048 for
            the prompt, and per turn `max_completion_tokens` + 256 for feedback.
        max_episode_tokens: Budget of sampled tokens for all turns together; once it is used up the episode ends truncated,
            without feedback. None has no such budget.
        max_episode_seconds: The same in wall-clock seconds from `reset`, looked at after each turn; a copy of an episode
            (`set_state`) starts its own clock. The result depends on the speed of the machine, so a seed no longer
            determines an episode.
        stop_on_success: End at the first right answer.
        feedback: A name of `feedback.FEEDBACK` ("plain", "hint", "reason", "graded" …; "areal-v0.3" says what the original
            agent said, in its ids, see `docs/areal.md`), or a function `TurnContext -> str`.
        verifier: None for the built-in `Verifier()`; "boxed", "marked" or "lenient" for where it looks for the answer
            (`Verifier(extract=…)`); another `Verifier`, an object with `verify_turns(contexts)`,
            `verify_batch(responses, golds)` or `verify(response, gold)`, or a function `(response, gold)` or `(context: TurnContext)`, async or not, that
            returns a `Verdict`, a bool or a score in [0, 1]. See `verification.TurnVerifier`.
        reward_scaling: See `rewards.turn_reward`.
        reward_bias: See `rewards.turn_reward`.
        reward_terms: Terms added to that reward, `{"overlong": 1.0, "turn_cost": 0.05}`: weights of `rewards.TERMS`, or
            functions `TurnContext -> float` under other names. Each is reported in `info["reward_terms"]`.
        verdict_noise: Shares of false verdicts, `{"reward": [0.3, 0.0], "feedback": [0.3, 0.0], "same_coin": True}`: false
            negatives and false positives in the reward, and in what feedback and `stop_on_success` follow (see
            `noise.VerdictNoise`). None has none. `info["verdict"]` stays the verifier's.
        system_prompt: Text of a system message, or None.
        prompt_template: What the user's first message is, with `{problem}` where the problem's text goes
            ("{problem}\n\nPut the answer in \boxed{}."); None is the problem's text alone.
        chat_template_kwargs: Variables of the chat template, such as `{"enable_thinking": False}`.
        history: What later turns see of earlier ones: "keep" everything, "strip-thinking" (everything but thoughts), or
            "template" (what the chat template makes of the whole dialogue). With the last two, observations are re-rendered
            between turns, and an episode may have several segments. See `Dialogue`.
        render_mode: "human" (prints as it goes), "ansi" (`render()` returns the dialogue), "rgb_array" (it returns a picture of
            the dialogue's problem and end, always of one size; `RecordVideo` makes a video of them), or None.
        gold_in_info: Put the accepted answers into `info["gold"]`.

    Attributes:
        verdict_source: Asked for the verdict of each turn that `step` plays; None asks the verifier. A scheduler sets it to
            judge the turns of many environments in one call and still step each one through its wrappers.

    Raises:
        InvalidValueError: an argument is outside what is allowed, a function does not take what it is called with, or no
            problem fits into `max_context_tokens`.
        ChatTemplateError: the tokenizer has no usable chat template.
        ProblemFileError: a problem file is missing or broken.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own form
    action_space: TokenIds  # type: ignore[assignment]  # Gymnasium's Sequence has no element type
    observation_space: TokenIds  # type: ignore[assignment]

    def __init__(
        self,
        problems: ProblemsLike = "lins",
        tokenizer: str | Tokenizer = "builtin",
        *,
        dialogue: DialogueLike | None = None,
        num_turns: int = 5,
        max_completion_tokens: int = 1024,
        max_context_tokens: int | None = None,
        max_episode_tokens: int | None = None,
        max_episode_seconds: float | None = None,
        stop_on_success: bool = False,
        feedback: str | Feedback = "plain",
        verifier: VerifierLike = None,
        reward_scaling: float = 1.0,
        reward_bias: float = 0.0,
        reward_terms: RewardTerms | None = None,
        verdict_noise: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        prompt_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        history: History = "keep",
        render_mode: str | None = None,
        gold_in_info: bool = False,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise_unknown_name("render_mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self._feedback = get_feedback(feedback)
        self.num_turns = check_int("num_turns", num_turns, low=getattr(self._feedback, "fewest_turns", 1))
        self.max_completion_tokens = check_int("max_completion_tokens", max_completion_tokens, low=1)
        self.stop_on_success = _check_bool("stop_on_success", stop_on_success)
        self.gold_in_info = _check_bool("gold_in_info", gold_in_info)
        self.reward_scaling = check_float("reward_scaling", reward_scaling)
        self.reward_bias = check_float("reward_bias", reward_bias)
        check_scale(self.reward_bias, self.reward_scaling, self.num_turns)
        self._terms = get_terms(reward_terms)
        self._noise = get_noise(verdict_noise)
        self.source = load_problems(problems)
        wanted = getattr(self._feedback, "dialogue", None) if dialogue is None else dialogue
        if prompt_template is not None and (
            not isinstance(prompt_template, str) or _PLACEHOLDER not in prompt_template
        ):
            raise InvalidValueError(
                f"prompt_template must be a text with {_PLACEHOLDER} where the problem's text goes, got {prompt_template!r}"
            )
        self.prompt_template = prompt_template
        self.dialogue = make_dialogue(
            wanted,
            tokenizer,
            system_prompt=system_prompt,
            chat_template_kwargs=chat_template_kwargs,
            history=None if history == "keep" else history,  # a dialogue that is given may have its own
        )
        self._rerenders = getattr(self.dialogue, "history", "keep") != "keep"
        takes = positional_parameters(self.dialogue.feedback_ids) or []
        self._dialogue_takes_response = any(one.name == "response" for one in takes)
        self.verifier = get_verifier(verifier)
        if max_context_tokens is None:
            max_context_tokens = _PROMPT_ROOM + self.num_turns * (self.max_completion_tokens + _FEEDBACK_ROOM)
        self.max_context_tokens = check_int("max_context_tokens", max_context_tokens, low=1)
        self.max_episode_tokens = (
            None if max_episode_tokens is None else check_int("max_episode_tokens", max_episode_tokens, low=1)
        )
        self.max_episode_seconds = (
            None if max_episode_seconds is None else check_float("max_episode_seconds", max_episode_seconds, low=0.0)
        )
        self._check_prompt_fits()
        self.action_space = TokenIds(self.dialogue.vocab_size, self.max_completion_tokens)
        # An action may overrun the budget it was told of, so an observation can be longer than the context budget.
        self.observation_space = TokenIds(
            self.dialogue.vocab_size, self.max_context_tokens + self.max_completion_tokens
        )
        self._problem: Problem | None = None
        self._turns: list[TurnRecord] = []
        self._buffer: Ids = _NO_IDS
        self._length = 0
        self._segments: tuple[Ids, ...] = ()
        self._verifier_errors = self._judged_turns = 0
        self.verdict_source: VerdictSource | None = None
        self._begun: TurnContext | None = None
        self._stop_reason: StopReason | None = None
        self._ended = False
        self._sampled, self._began_at = 0, 0.0
        self._stream: int | None = None
        self._next_index = self._episode_seed = 0

    # ---- Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Ids, dict[str, Any]]:
        """Begins an episode.

        The first `reset(seed=s)` shows problem 0 of stream s, each `reset()` after it the next one.

        Args:
            seed: Begins stream `seed` again.
            options: `{"problem_id": id}` for one certain problem, `{"index": i}` for problem i of the stream;
                `{"family": name}` and `{"level": n}` take it from that part of the problems. `{"episode": i}` keeps several
                episodes on one problem apart, where feedback or verdicts are random (`TurnContext.episode_seed`).

        Returns:
            The prompt, int64 (L0,), and the info (see `StepInfo`).

        Raises:
            InvalidValueError: unknown option, or no such problem.
            PromptTooLongError: the prompt is longer than any observation can be. A prompt that fits into an observation
                but leaves no room for an answer gives an episode that its first `step` truncates, without a turn.
        """
        return self.commit_reset(self.plan_reset(seed=seed, options=options))

    def step(self, action: Ids) -> tuple[Ids, float, bool, bool, dict[str, Any]]:
        """Plays one turn: verifies the completion, rewards it, and appends it and the feedback.

        Everything is worked out before anything changes: where verifier, feedback or a reward term raises, the episode
        stands as before the call.

        Args:
            action: int64 (A,), 0 <= A <= max_completion_tokens.

        Returns:
            observation int64 (L,), reward, terminated (solved where that ends it, or last turn used), truncated (the
            context budget is used up), info (see `StepInfo`).

        Raises:
            InvalidActionError: the action is not in the action space; the message says why.
            EpisodeStateError: there is no episode, or it has ended.
            UserFunctionError: feedback or a reward term raised, or the verifier has never answered.
            InvalidValueError: one of them returned what it must not.
        """
        context, verdict = self.begin_turn(action), None
        if context is not None:
            source = self.verdict_source
            verdict = self.verifier.verify_turns([context])[0] if source is None else source(context)
        return self.commit_turn(self.weigh_turn(context, verdict))

    def render(self) -> Any:
        """The dialogue so far with its verdicts: a text in mode "ansi", a picture in mode "rgb_array".

        Mode "human" has printed it already and returns None.

        Raises:
            EpisodeStateError: there is no episode yet.
            MissingDependencyError: the picture needs the extra "train".
        """
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode: gym.make(id, render_mode='ansi')")
            return None
        if self._problem is None:
            raise EpisodeStateError("render() before reset(): there is no episode yet")
        if self.render_mode == "human":
            return None
        show = draw_dialogue if self.render_mode == "rgb_array" else render_dialogue
        return show(
            self._shown(self._problem), self._turns, self._stop_reason, system_prompt=self.dialogue.system_prompt
        )

    # ---- a turn and a reset in parts, so that others can verify many turns together, or while they do other things:
    # ---- working out changes nothing, committing cannot fail

    def begin_turn(self, action: Ids) -> TurnContext | None:
        """The turn that `step(action)` would play, to be judged; None where there is no turn to play (see `reset`).

        Until something is committed, the same action gives the same object, which a `verdict_source` can recognize.

        Raises:
            InvalidActionError: the action is not in the action space; the message says why.
            EpisodeStateError: there is no episode, or it has ended.
        """
        check_step(
            action, self.action_space, begun=self._problem is not None, ended=self._ended, stop_reason=self._stop_reason
        )
        assert self._problem is not None  # checked above
        if self._stop_reason is not None:
            return None
        if self._begun is not None and np.array_equal(self._begun.ids, action):
            return self._begun  # a scheduler has asked for this turn before it steps: the ids are decoded once
        ids, before = action.astype(np.int64), self._buffer[: self._length]
        # Neither changes any more: the buffer only grows, and the next episode gets another one.
        ids.setflags(write=False)
        before.setflags(write=False)
        self._begun = TurnContext(
            problem=self._problem,
            turn=len(self._turns),
            num_turns=self.num_turns,
            response=self.dialogue.response(before, ids),
            context_ids=before,
            ids=ids,
            max_tokens=self._budget(self._length, self._sampled),
            earlier=tuple(self._turns),
            segments=self._segments,
            episode_seed=self._episode_seed,
        )
        return self._begun

    def weigh_turn(self, context: TurnContext | None, verdict: Verdict | None) -> Transition:
        """Works out everything that follows from a judged turn, and changes nothing.

        Args:
            context: From `begin_turn`.
            verdict: Its verdict; None where there is no turn to play.

        Raises:
            UserFunctionError: feedback or a reward term raised.
            InvalidValueError: one of them returned what it must not.
        """
        if context is None or verdict is None:  # the prompt left no room, or there are no turns: nothing is played
            terminated, stop = self._stop_reason is StopReason.TURNS, self._stop_reason
            info = self._info(self.problem, None, 0, stop, self._length, offsets=(self._length, self._length, 0))
            return Transition(self._observation(), 0.0, terminated, not terminated, info, None, stop)
        context = context.with_verdict(verdict)
        rewarded, told = (context, context) if self._noise is None else self._noise.contexts(context)
        solved = told.judged.correct and self.stop_on_success
        start, end, segment = self._length, self._length + context.ids.shape[0], len(self._segments)
        text, observation, rerendered, stop = "", None, False, None
        sampled = self._sampled + context.ids.shape[0]
        if solved or context.turn + 1 == self.num_turns:
            stop = StopReason.SOLVED if solved else StopReason.TURNS
        elif self.max_episode_tokens is not None and sampled >= self.max_episode_tokens:
            stop = StopReason.TOKENS
        elif self.max_episode_seconds is not None and time.monotonic() - self._began_at >= self.max_episode_seconds:
            stop = StopReason.TIME
        else:
            text = self._say(told)
            if self._rerenders:
                observation, rerendered = self._rerendered(context, text)
            else:
                known = {"response": context.response} if self._dialogue_takes_response else {}
                feedback_ids = self.dialogue.feedback_ids(text, context.turn, context.ids, **known)
                observation = np.concatenate([context.context_ids, context.ids, feedback_ids])
            if observation.shape[0] >= self.max_context_tokens:
                text, observation, rerendered, stop = "", None, False, StopReason.CONTEXT
        if observation is None:
            observation = np.concatenate([context.context_ids, context.ids])
        # `turn_reward` without its checks: the environment checked bias and scaling, the verdict its score.
        reward, terms = affine_reward(rewarded.judged.value, self.reward_bias, self.reward_scaling), None
        if self._terms:
            reward, terms = self._add_terms(rewarded, reward)
        record = TurnRecord(context.response, verdict, text, reward, start, end, terms, segment)
        finished = np.concatenate([context.context_ids, context.ids]) if rerendered else None
        if rerendered:
            start, end, segment = 0, self._feedback_start(observation, context, text), segment + 1
        info = self._info(
            context.problem,
            record,
            context.turn + 1,
            stop,
            observation.shape[0],
            offsets=(start, end, segment),
            errors=self._verifier_errors + verdict.is_verifier_error,
            judged=self._judged_turns + verdict.is_judged,
            sampled=sampled,
        )
        truncated, terminated = stop is not None and stop.truncates, stop is not None and not stop.truncates
        return Transition(observation, reward, terminated, truncated, info, record, stop, finished)

    def commit_turn(self, transition: Transition) -> tuple[Ids, float, bool, bool, dict[str, Any]]:
        """Plays what `weigh_turn` worked out; returns what `step` returns."""
        if transition.record is not None:
            if transition.finished_segment is not None:
                self._segments += (transition.finished_segment,)
                self._new_buffer(transition.observation)
            else:
                self._append(transition.observation[self._length :])
            self._turns.append(transition.record)
            self._verifier_errors += transition.record.verdict.is_verifier_error
            self._judged_turns += transition.record.verdict.is_judged
            self._sampled += transition.record.end - transition.record.start
        self._stop_reason, self._begun = transition.stop_reason, None
        self._ended = transition.terminated or transition.truncated
        if self.render_mode == "human":
            self._print_new()
        return transition[:5]

    def plan_reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Beginning:
        """The episode that `reset` would begin; see there.

        A problem whose prompt is too long is passed over for good: the next call shows the one after it.
        """
        super().reset(seed=seed)
        stream, index = self._stream, self._next_index
        if seed is not None or stream is None:
            stream, index = self.np_random_seed % 2**32 if seed is None else seed, 0
        problem, next_index = self._choose(dict(options or {}), stream, index)
        prompt = self.dialogue.problem_ids(self._shown(problem))
        length = prompt.shape[0]
        if length > self.observation_space.max_length:
            self._stream, self._next_index = stream, next_index
            raise PromptTooLongError(
                f"the prompt of problem {problem.id!r} has {length} tokens, max_context_tokens is"
                f" {self.max_context_tokens}: make it larger, or leave the problem out"
            )
        stop = None if self._budget(length, 0) else StopReason.CONTEXT
        if not self.num_turns:
            stop = StopReason.TURNS
        info = self._info(problem, None, 0, stop, length)
        return Beginning(problem, prompt, stop, stream, next_index, info, self._seed_of(stream, index, options))

    def commit_reset(self, beginning: Beginning) -> tuple[Ids, dict[str, Any]]:
        """Begins what `plan_reset` worked out; returns what `reset` returns."""
        self._begin(beginning.problem, beginning.observation, [], beginning.stop_reason, ended=False)
        self._stream, self._next_index = beginning.stream, beginning.next_index
        self._episode_seed = beginning.episode_seed
        if self.render_mode == "human":
            self._print_new()
        return beginning.observation, beginning.info

    # ---- forking

    def get_state(self) -> EpisodeState:
        """The episode as it stands; `set_state` on this or an equal environment continues from it, any number of times.

        Raises:
            EpisodeStateError: there is no episode yet.
        """
        if self._problem is None or self._stream is None:
            raise EpisodeStateError("get_state() before reset(): there is no episode yet")
        rng = None if self._np_random is None else copy.deepcopy(self._np_random.bit_generator.state)
        ids = self._observation()
        ids.setflags(write=False)
        return EpisodeState(
            self._problem,
            ids,
            tuple(self._turns),
            self._stop_reason,
            self._ended,
            self._stream,
            self._next_index,
            rng,
            self._segments,
            self._episode_seed,
        )

    def set_state(self, state: EpisodeState) -> tuple[Ids, dict[str, Any]]:
        """Puts the environment into a state of `get_state`; returns that state's observation and info.

        Raises:
            InvalidValueError: the state does not fit this environment (vocabulary, budgets, turns).
        """
        reason = self.observation_space.why_not(state.ids)
        if reason is not None or len(state.turns) > self.num_turns:
            raise InvalidValueError(
                f"state does not fit this environment: {reason or f'it has {len(state.turns)} turns'};"
                f" allowed: {self.observation_space}, {self.num_turns} turns"
            )
        self._begin(state.problem, state.ids, list(state.turns), state.stop_reason, ended=state.ended)
        self._segments = state.segments
        self._stream, self._next_index = state.stream, state.next_index
        self._episode_seed = state.episode_seed
        if state.rng_state is not None:
            self.np_random.bit_generator.state = copy.deepcopy(dict(state.rng_state))
        last = self._turns[-1] if self._turns else None
        info = self._info(
            state.problem,
            last,
            len(self._turns),
            state.stop_reason,
            self._length,
            offsets=self._offsets(last),
            errors=self._verifier_errors,
            judged=self._judged_turns,
            sampled=self._sampled,
        )
        return self._observation(), info

    @property
    def problem(self) -> Problem:
        """The problem of the episode, gold answer included (which `info` leaves out).

        Raises:
            EpisodeStateError: there is no episode yet.
        """
        if self._problem is None:
            raise EpisodeStateError("problem before reset(): there is no episode yet")
        return self._problem

    # ---- inside

    def _choose(self, options: dict[str, Any], stream: int, index: int) -> tuple[Problem, int]:
        """The problem that the options ask for, or the next one; and the number of the one after it."""
        for name in options:
            if name not in _OPTIONS:
                raise_unknown_name("reset option", name, _OPTIONS)
        if "problem_id" in options:
            return self.source.by_id(str(options["problem_id"])), index
        if "index" in options:
            index = check_int("options['index']", options["index"], low=0)
        source = self.source
        if "family" in options or "level" in options:
            level = options.get("level")
            source = source.select(
                family=options.get("family"),
                level=None if level is None else check_int("options['level']", level, low=0),
            )
        return source.get(stream, index), index + 1

    def _seed_of(self, stream: int, index: int, options: Mapping[str, Any] | None) -> int:
        """`episode_seed` of the episode that the options ask for: of its place in the stream, and its own number."""
        given = options or {}
        number = check_int("options['episode']", given.get("episode", 0), low=0)
        # As `int`, so that NumPy's integers are equal seeds.
        return derive_seed("episode", int(stream), int(given.get("index", index)), number)

    def _check_prompt_fits(self) -> None:
        """Raises where none of the first problems fits: the budget is a mistake, not one long problem."""
        finite = self.source if isinstance(self.source, FiniteSource) else None
        count = min(_PROBED, len(finite)) if finite else 1
        problems = [finite[i] if finite else self.source.get(0, i) for i in range(count)]
        shortest = min(self.dialogue.problem_ids(self._shown(problem)).shape[0] for problem in problems)
        if shortest + 1 > self.max_context_tokens:
            raise InvalidValueError(
                f"max_context_tokens must hold a prompt and one token of an answer, got {self.max_context_tokens}: the"
                f" shortest of the first {count} prompts of {self.source.name!r} has {shortest} tokens"
            )

    def _add_terms(self, context: TurnContext, reward: float) -> tuple[float, dict[str, float]]:
        """The turn's reward with the terms that were asked for, and what it is the sum of."""
        terms = {"verdict": reward, **{name: term(context) for name, term in self._terms.items()}}
        reward = sum(terms.values())
        if not abs(reward) * self.num_turns <= LARGEST_RETURN:
            raise InvalidValueError(
                f"the reward of {place_of(context)} is {reward!r}, the sum of {terms!r}: returns are float32, so it must"
                f" not be above {LARGEST_RETURN:.3g} in {self.num_turns} turns"
            )
        return reward, terms

    def _say(self, context: TurnContext) -> str:
        try:
            text = self._feedback(context)
        except Exception as error:  # whatever a user's code raises
            raise error_of("feedback", self._feedback, context, error) from error
        if not isinstance(text, str):
            raise InvalidValueError(
                f"feedback must return a text; {name_of(self._feedback)} returned {text!r} for {place_of(context)}"
            )
        return text

    def _shown(self, problem: Problem) -> Problem:
        """The problem with the text that the policy is shown."""
        if self.prompt_template is None:
            return problem
        # Written out and not formatted: problems and templates are full of braces.
        shown = self.prompt_template.replace(_PLACEHOLDER, problem.prompt)
        return Problem(problem.id, shown, problem.gold, problem.hints, problem.false_hints, problem.metadata)

    def _rerendered(self, context: TurnContext, text: str) -> tuple[Ids, bool]:
        """The observation after a turn where the dialogue re-renders history, and whether that changed earlier ids."""
        exchanges = [(context.earlier_ids(k), turn.feedback) for k, turn in enumerate(context.earlier)]
        dialogue: Any = self.dialogue  # `TurnDialogue` requires `history_ids` only of dialogues that re-render
        observation: Ids = dialogue.history_ids(self._shown(context.problem), [*exchanges, (context.ids, text)])
        played = np.concatenate([context.context_ids, context.ids])
        return observation, not np.array_equal(observation[: played.shape[0]], played)

    def _feedback_start(self, observation: Ids, context: TurnContext, text: str) -> int:
        """Finds the feedback in a re-rendered observation: its longest end that equals the end of the feedback ids."""
        feedback = self.dialogue.feedback_ids(text, context.turn, context.ids)
        size = min(feedback.shape[0], observation.shape[0])
        same = observation[observation.shape[0] - size :] == feedback[feedback.shape[0] - size :]
        return int(observation.shape[0] - (size if same.all() else same[::-1].argmin()))

    def _offsets(self, last: TurnRecord | None) -> tuple[int, int, int]:
        """`new_ids_start`, `feedback_start` and `segment` of `StepInfo` after the turn `last`."""
        if last is None:
            return 0, 0, 0
        if last.segment == len(self._segments):
            return last.start, last.end, last.segment
        ids = self._segments[last.segment][last.start : last.end]
        context = TurnContext(self.problem, len(self._turns) - 1, self.num_turns, last.response, ids=ids)
        return 0, self._feedback_start(self._observation(), context, last.feedback), len(self._segments)

    def _begin(
        self, problem: Problem, ids: Ids, turns: list[TurnRecord], stop: StopReason | None, *, ended: bool
    ) -> None:
        self._problem, self._turns, self._stop_reason, self._ended = problem, turns, stop, ended
        self._verifier_errors = sum(turn.verdict.is_verifier_error for turn in turns)
        self._judged_turns = sum(turn.verdict.is_judged for turn in turns)
        self._begun, self._segments = None, ()
        self._sampled, self._began_at = sum(turn.end - turn.start for turn in turns), time.monotonic()
        self._new_buffer(ids)

    def _new_buffer(self, ids: Ids) -> None:
        # Allocate a new buffer: records of earlier episodes hold views of the old one.
        self._buffer, self._length = np.empty(max(1024, 2 * ids.shape[0]), np.int64), 0
        self._append(ids)

    def _append(self, ids: Ids) -> None:
        end = self._length + ids.shape[0]
        if end > self._buffer.shape[0]:
            grown = np.empty(max(end, 2 * self._buffer.shape[0]), np.int64)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : end] = ids
        self._length = end

    def _observation(self) -> Ids:
        return self._buffer[: self._length].copy()

    def _budget(self, length: int, sampled: int) -> int:
        """The most tokens that a completion can use after a context of `length`, and `sampled` tokens of the episode."""
        left = self.max_completion_tokens if self.max_episode_tokens is None else self.max_episode_tokens - sampled
        return max(0, min(self.max_completion_tokens, self.max_context_tokens - length, left))

    def _info(
        self,
        problem: Problem,
        last: TurnRecord | None,
        turns: int,
        stop: StopReason | None,
        length: int,
        *,
        offsets: tuple[int, int, int] = (0, 0, 0),
        errors: int = 0,
        judged: int = 0,
        sampled: int = 0,
    ) -> dict[str, Any]:
        """The info after `turns` turns, the last of which is `last`, of a context of `length`."""
        new_ids_start, feedback_start, segment = offsets
        verdict = None if last is None else last.verdict
        if verdict is not None and (verdict.gold is not None or verdict.seconds):
            verdict = _without_gold(verdict)
        info = StepInfo(
            problem_id=problem.id,
            prompt=problem.prompt if self.prompt_template is None else self._shown(problem).prompt,
            metadata={k: v if type(v) in _PLAIN else copy.deepcopy(v) for k, v in problem.metadata.items()},
            turn=turns,
            turns_left=0 if stop is not None else self.num_turns - turns,
            verdict=verdict,
            response="" if last is None else last.response,
            feedback="" if last is None else last.feedback,
            new_ids_start=new_ids_start,
            feedback_start=feedback_start,
            segment=segment,
            completion_budget=0 if stop is not None else self._budget(length, sampled),
            context_left=max(0, self.max_context_tokens - length),
            stop_reason=None if stop is None else stop.value,
            verifier_errors=errors,
            judged_turns=judged,
        )
        if self.gold_in_info:
            info["gold"] = problem.gold
        if last is not None and last.reward_terms is not None:
            info["reward_terms"] = dict(last.reward_terms)
        if verdict is not None and self._noise is not None:
            found = self._noise.verdicts(self._episode_seed, turns - 1, verdict)
            info["reward_verdict"], info["feedback_verdict"] = found
        return dict(info)

    def _print_new(self) -> None:
        """Prints what came with the last call (mode "human")."""
        from mathturn_gym.base.render import print_new

        print_new(self._shown(self.problem), self._turns, self._stop_reason, system_prompt=self.dialogue.system_prompt)


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _without_gold(verdict: Verdict) -> Verdict:
    """The verdict as `info` may show it: without the gold answer, and without a clock."""
    # Not by `dataclasses.replace`, which takes several times as long, once per step.
    kept = verdict.status, verdict.reason, verdict.score, verdict.answer, verdict.span
    return Verdict(*kept, gold=None, tier=verdict.tier, rule=verdict.rule)
