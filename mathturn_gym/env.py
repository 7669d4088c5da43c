"""The environment: a model is shown a problem in ids, answers in ids, is verified, is told, and tries again.

    obs[k+1] = obs[k] ++ action[k] ++ feedback[k]

One class behind three ids, which differ only in the defaults of their keywords.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np

from mathturn_gym.dialogue import Dialogue, Tokenizer
from mathturn_gym.dialogue_areal import AREAL_FEEDBACK, ArealDialogue
from mathturn_gym.errors import (
    EpisodeStateError,
    InvalidActionError,
    InvalidValueError,
    PromptTooLongError,
    check_float,
    check_int,
    raise_unknown_name,
)
from mathturn_gym.feedback import Feedback, FeedbackContext, get_feedback
from mathturn_gym.info import StepInfo
from mathturn_gym.judging import VerifierLike, get_verifier
from mathturn_gym.problems import ProblemsLike, load_problems
from mathturn_gym.problems.base import FiniteSource
from mathturn_gym.render import TurnRecord, render_dialogue
from mathturn_gym.rewards import RewardContext, RewardTerms, get_terms, turn_reward
from mathturn_gym.spaces import TokenIds
from mathturn_gym.types import Ids, Problem, StopReason, Verdict

__all__ = ["EpisodeState", "MathMultiTurnEnv", "StepInfo"]

_OPTIONS: Final = ("problem_id", "index", "family", "level")
_FEEDBACK_ROOM: Final = 256
_PROMPT_ROOM: Final = 2048
_PROBED: Final = 16


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
    """

    problem: Problem
    ids: Ids
    turns: tuple[TurnRecord, ...]
    stop_reason: StopReason | None
    ended: bool
    stream: int
    next_index: int
    rng_state: Mapping[str, Any] | None


class MathMultiTurnEnv(gym.Env[Ids, Ids]):
    """A token-level, multi-turn mathematics environment.

    Observations are all ids so far, actions are completions (ids); both in `TokenIds`. An action may have any ids of
    the vocabulary, none at all, or more than the context has room for: it is verified, rewarded and appended as it is.

    Args:
        problems: A name ("lins", "add1", "guess8", with ":test" and the like for a split), a `.jsonl` file in the
            schema of GSM8K or MATH, `Problem` objects, or a `ProblemSource`.
        tokenizer: "builtin", a folder or hub name, or a Hugging Face tokenizer with a chat template.
        num_turns: Turns of an episode, >= 1 (0 with feedback "areal-v0.3", which the original took).
        max_completion_tokens: The most ids of one action, >= 1.
        max_context_tokens: Budget for the whole context. An episode whose next feedback would leave no room for a
            single id ends truncated, without that feedback. None makes room for every turn at full length: 2,048 for
            the prompt, and per turn `max_completion_tokens` + 256 for feedback.
        stop_on_success: End at the first right answer.
        feedback: A name of `feedback.FEEDBACK` ("plain", "hint", "reason", "graded" …; "areal-v0.3" is the original
            agent's texts, ids and answers, see `docs/areal.md`), or a callable `FeedbackContext -> str`.
        verifier: None for the built-in `Verifier()`, another `Verifier`, anything with `verify(response, gold)`, or a
            callable `(response, gold) -> Verdict | bool | float`.
        reward_scaling: See `rewards.turn_reward`.
        reward_bias: See `rewards.turn_reward`.
        reward_terms: Terms added to that reward, `{"overlong": 1.0, "turn_cost": 0.05}`: weights of `rewards.TERMS`, or
            callables `RewardContext -> float` under other names. Each is reported in `info["reward_terms"]`.
        system_prompt: Text of a system message, or None.
        render_mode: "human" (prints as it goes), "ansi" (`render()` returns the dialogue), or None.
        gold_in_info: Put the accepted answers into `info["gold"]`.

    Raises:
        InvalidValueError: an argument is outside what is allowed, or no problem fits into `max_context_tokens`.
        ChatTemplateError: the tokenizer has no usable chat template.
        ProblemFileError: a problem file is missing or broken.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's own form
    action_space: TokenIds  # type: ignore[assignment]  # Gymnasium's Sequence has no element type
    observation_space: TokenIds  # type: ignore[assignment]

    def __init__(
        self,
        problems: ProblemsLike = "lins",
        tokenizer: str | Tokenizer = "builtin",
        *,
        num_turns: int = 5,
        max_completion_tokens: int = 1024,
        max_context_tokens: int | None = None,
        stop_on_success: bool = False,
        feedback: str | Feedback = "plain",
        verifier: VerifierLike = None,
        reward_scaling: float = 1.0,
        reward_bias: float = 0.0,
        reward_terms: RewardTerms | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
        gold_in_info: bool = False,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise_unknown_name("render_mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        as_areal = feedback == AREAL_FEEDBACK
        self.num_turns = check_int("num_turns", num_turns, low=0 if as_areal else 1)
        self.max_completion_tokens = check_int("max_completion_tokens", max_completion_tokens, low=1)
        self.stop_on_success = _check_bool("stop_on_success", stop_on_success)
        self.gold_in_info = _check_bool("gold_in_info", gold_in_info)
        self.reward_scaling = check_float("reward_scaling", reward_scaling)
        self.reward_bias = check_float("reward_bias", reward_bias)
        self._terms = get_terms(reward_terms)
        self.source = load_problems(problems)
        self.dialogue = (ArealDialogue if as_areal else Dialogue)(tokenizer, system_prompt)
        self.verifier = get_verifier(verifier)
        self._feedback = get_feedback(feedback)
        if max_context_tokens is None:
            max_context_tokens = _PROMPT_ROOM + self.num_turns * (self.max_completion_tokens + _FEEDBACK_ROOM)
        self.max_context_tokens = check_int("max_context_tokens", max_context_tokens, low=1)
        self._check_prompt_fits()
        self.action_space = TokenIds(self.dialogue.vocab_size, self.max_completion_tokens)
        # An action may overrun the budget it was told of, so an observation can be longer than the context budget.
        self.observation_space = TokenIds(
            self.dialogue.vocab_size, self.max_context_tokens + self.max_completion_tokens
        )
        self._problem: Problem | None = None
        self._turns: list[TurnRecord] = []
        self._buffer: Ids = np.empty(1024, np.int64)
        self._length = 0
        self._pending: tuple[Ids, str] | None = None
        self._stop_reason: StopReason | None = None
        self._ended = False
        self._stream: int | None = None
        self._next_index = 0

    # ---- Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Ids, dict[str, Any]]:
        """Begins an episode.

        The first `reset(seed=s)` shows problem 0 of stream s, each `reset()` after it the next one.

        Args:
            seed: Begins stream `seed` again.
            options: `{"problem_id": id}` for one certain problem, `{"index": i}` for problem i of the stream;
                `{"family": name}` and `{"level": n}` take it from that part of the problems.

        Returns:
            The prompt, int64 (L0,), and the info (see `StepInfo`).

        Raises:
            InvalidValueError: unknown option, or no such problem.
            PromptTooLongError: the prompt is longer than any observation can be. A prompt that fits into an observation
                but leaves no room for an answer gives an episode that its first `step` truncates, without a turn.
        """
        super().reset(seed=seed)
        if seed is not None or self._stream is None:
            self._stream, self._next_index = self.np_random_seed % 2**32 if seed is None else seed, 0
        self._problem = self._choose(dict(options or {}))
        prompt = self.dialogue.problem_ids(self._problem)
        if prompt.shape[0] > self.observation_space.max_length:
            length, self._problem = prompt.shape[0], None
            raise PromptTooLongError(
                f"the prompt of this problem has {length} ids, max_context_tokens is {self.max_context_tokens}:"
                " make it larger, or leave the problem out"
            )
        self._turns, self._length, self._pending, self._ended = [], 0, None, False
        self._append(prompt)
        self._stop_reason = None if self._completion_budget() else StopReason.CONTEXT
        if not self.num_turns:
            self._stop_reason = StopReason.TURNS
        if self.render_mode == "human":
            self._print_new()
        return self._observation(), self._info(new_ids_start=0, feedback_start=0)

    def step(self, action: Ids) -> tuple[Ids, float, bool, bool, dict[str, Any]]:
        """Plays one turn: verifies the completion, rewards it, and appends it and the feedback.

        Args:
            action: int64 (A,), 0 <= A <= max_completion_tokens.

        Returns:
            observation int64 (L,), reward, terminated (solved where that ends it, or last turn used), truncated (the
            context budget is used up), info (see `StepInfo`).

        Raises:
            InvalidActionError: the action is not in the action space; the message says why.
            EpisodeStateError: there is no episode, or it has ended.
        """
        response = self.begin_turn(action)
        return self.finish_turn(None if response is None else self.verifier.verify(response, self.problem.gold))

    def render(self) -> str | None:
        """The dialogue so far with its verdicts: returned in mode "ansi", printed already in mode "human"."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode: gym.make(id, render_mode='ansi')")
            return None
        if self._problem is None:
            raise EpisodeStateError("render() before reset(): there is no episode yet")
        if self.render_mode == "human":
            return None
        return render_dialogue(self._problem, self._turns, self._stop_reason, system_prompt=self.dialogue.system_prompt)

    # ---- one turn in two halves, so that a vector environment can verify a whole batch in between

    def begin_turn(self, action: Ids) -> str | None:
        """Takes the action and returns the response to verify; None where there is no turn to play (see `reset`)."""
        if self._problem is None:
            raise EpisodeStateError("step() before reset(): call reset() to begin an episode")
        if self._ended:
            why = "" if self._stop_reason is None else f" (stop reason: {self._stop_reason.value})"
            raise EpisodeStateError(f"step() after the episode's end{why}: call reset() to begin another")
        reason = self.action_space.why_not(action)
        if reason is not None:
            raise InvalidActionError(
                f"action is not in {self.action_space}: {reason}; actions are int64 arrays of at most"
                f" {self.max_completion_tokens} ids in [0, {self.dialogue.vocab_size})"
            )
        if self._stop_reason is not None:
            return None
        ids = action.astype(np.int64)
        self._pending = ids, self.dialogue.response(self._buffer[: self._length], ids)
        return self._pending[1]

    def finish_turn(self, verdict: Verdict | None) -> tuple[Ids, float, bool, bool, dict[str, Any]]:
        """Rewards the turn that `begin_turn` began, answers it, and returns what `step` returns."""
        start = self._length
        if verdict is None:  # the prompt left no room, or there are no turns: nothing was played
            self._ended = True
            terminated = self._stop_reason is StopReason.TURNS
            return self._observation(), 0.0, terminated, not terminated, self._info(start, start)
        if self._pending is None:
            raise EpisodeStateError("finish_turn() without begin_turn(): there is no turn to finish")
        (action, response), self._pending = self._pending, None
        turn = len(self._turns)
        self._append(action)
        feedback_start = self._length
        terminated = (verdict.correct and self.stop_on_success) or turn + 1 == self.num_turns
        text = ""
        if terminated:
            solved = verdict.correct and self.stop_on_success
            self._stop_reason = StopReason.SOLVED if solved else StopReason.TURNS
        else:
            earlier = tuple(record.verdict for record in self._turns)
            text = self._feedback_text(FeedbackContext(self.problem, verdict, turn, self.num_turns, response, earlier))
            ids = self.dialogue.feedback_ids(text, turn, action)
            if self._length + ids.shape[0] < self.max_context_tokens:
                self._append(ids)
            else:
                text, self._stop_reason = "", StopReason.CONTEXT
        truncated = self._stop_reason is StopReason.CONTEXT
        self._ended = terminated or truncated
        reward = turn_reward(verdict.value, bias=self.reward_bias, scaling=self.reward_scaling)
        terms = self._reward_terms(verdict, reward, action.shape[0]) if self._terms else None
        if terms is not None:
            reward = sum(terms.values())
        self._turns.append(TurnRecord(response, verdict, text, reward, start, feedback_start, terms))
        if self.render_mode == "human":
            self._print_new()
        return self._observation(), reward, terminated, truncated, self._info(start, feedback_start)

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
            self._problem, ids, tuple(self._turns), self._stop_reason, self._ended, self._stream, self._next_index, rng
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
        self._problem, self._turns = state.problem, list(state.turns)
        self._length, self._pending = 0, None
        self._append(state.ids)
        self._stop_reason, self._ended = state.stop_reason, state.ended
        self._stream, self._next_index = state.stream, state.next_index
        if state.rng_state is not None:
            self.np_random.bit_generator.state = copy.deepcopy(dict(state.rng_state))
        last = self._turns[-1] if self._turns else None
        return self._observation(), self._info(last.start if last else 0, last.feedback_start if last else 0)

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

    def _choose(self, options: dict[str, Any]) -> Problem:
        for name in options:
            if name not in _OPTIONS:
                raise_unknown_name("reset option", name, _OPTIONS)
        if "problem_id" in options:
            return self.source.by_id(str(options["problem_id"]))
        if "index" in options:
            self._next_index = check_int("options['index']", options["index"], low=0)
        source = self.source
        if "family" in options or "level" in options:
            level = options.get("level")
            source = source.select(
                family=options.get("family"),
                level=None if level is None else check_int("options['level']", level, low=0),
            )
        assert self._stream is not None
        problem = source.get(self._stream, self._next_index)
        self._next_index += 1
        return problem

    def _check_prompt_fits(self) -> None:
        """Raises where none of the first problems fits: the budget is a mistake, not one long problem."""
        finite = self.source if isinstance(self.source, FiniteSource) else None
        count = min(_PROBED, len(finite)) if finite else 1
        problems = [finite[i] if finite else self.source.get(0, i) for i in range(count)]
        shortest = min(self.dialogue.problem_ids(problem).shape[0] for problem in problems)
        if shortest + 1 > self.max_context_tokens:
            raise InvalidValueError(
                f"max_context_tokens must hold a prompt and one id of an answer, got {self.max_context_tokens}: the"
                f" shortest of the first {count} prompts of {self.source.name!r} has {shortest} ids"
            )

    def _reward_terms(self, verdict: Verdict, reward: float, tokens: int) -> dict[str, float]:
        """The turn's reward by terms; they add up to it."""
        earlier = tuple(record.verdict for record in self._turns)
        context = RewardContext(verdict, earlier, tokens, self.max_completion_tokens)
        return {"verdict": reward, **{name: term(context) for name, term in self._terms.items()}}

    def _feedback_text(self, context: FeedbackContext) -> str:
        text = self._feedback(context)
        if not isinstance(text, str):
            raise InvalidValueError(f"feedback must return a text, got {text!r} for turn {context.turn}")
        return text

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

    def _completion_budget(self) -> int:
        return max(0, min(self.max_completion_tokens, self.max_context_tokens - self._length))

    def _info(self, new_ids_start: int, feedback_start: int) -> dict[str, Any]:
        last = self._turns[-1] if self._turns else None
        over = self._ended or self._stop_reason is not None
        verdict = None if last is None else last.verdict
        info = StepInfo(
            problem_id=self.problem.id,
            prompt=self.problem.prompt,
            metadata=copy.deepcopy(dict(self.problem.metadata)),
            turn=len(self._turns),
            turns_left=0 if over else self.num_turns - len(self._turns),
            verdict=verdict if verdict is None else _without_gold(verdict),
            response="" if last is None else last.response,
            feedback="" if last is None else last.feedback,
            new_ids_start=new_ids_start,
            feedback_start=feedback_start,
            completion_budget=0 if over else self._completion_budget(),
            context_left=max(0, self.max_context_tokens - self._length),
            stop_reason=None if self._stop_reason is None else self._stop_reason.value,
        )
        if self.gold_in_info:
            info["gold"] = tuple(self.problem.gold)
        if last is not None and last.reward_terms is not None:
            info["reward_terms"] = dict(last.reward_terms)
        return dict(info)

    def _print_new(self) -> None:
        """Prints what came with the last call (mode "human")."""
        from mathturn_gym.render import print_new

        print_new(self.problem, self._turns, self._stop_reason, system_prompt=self.dialogue.system_prompt)


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _without_gold(verdict: Verdict) -> Verdict:
    """The verdict as `info` may show it: without the gold answer, and without a clock."""
    return Verdict(
        verdict.status, verdict.reason, verdict.score, verdict.answer, verdict.span, gold=None, tier=verdict.tier
    )
