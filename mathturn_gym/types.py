"""The data that flows through the package: frozen, validated, NumPy only.

    Problem ─► prompt ids ─► Completion ─► TurnContext ─► Verdict ─► TurnRecord … ─► Episode of Turns

Shape suffixes: A ids of one completion, T ids of an episode, K turns of an episode. An `Episode` keeps ids, loss
mask, log-probs and versions side by side, one entry per id, so that they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.display import displayed
from mathturn_gym.base.text import shorten
from mathturn_gym.errors import EpisodeStateError, InvalidEpisodeError, InvalidValueError

__all__ = [
    "NO_VERSION",
    "Completion",
    "Episode",
    "Gold",
    "Ids",
    "Number",
    "Policy",
    "Problem",
    "Status",
    "StopReason",
    "Turn",
    "TurnContext",
    "TurnRecord",
    "Verdict",
]

Ids: TypeAlias = npt.NDArray[np.int64]
"""Token ids, shape (L,), int64."""

Number: TypeAlias = int | float | Decimal | Fraction
"""A number that a gold answer may be given as; NumPy's numbers count."""

Gold: TypeAlias = str | Sequence[str]
"""The accepted answer of a problem, or several, as a verifier takes them."""

NO_VERSION = -1
"""The version of an id that no policy sampled (prompt and feedback)."""


class Status(StrEnum):
    """The four outcomes of verification. Only `RIGHT` is right; undecided is not a guess in either direction."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    UNDECIDED = "undecided"


class StopReason(StrEnum):
    """The reason why an episode ended.

    `SOLVED` and `TURNS` terminate it. The others truncate it: `CONTEXT` (the next feedback would not have fitted in the
    context budget, or the prompt itself did not), `TOKENS` and `TIME` (`max_episode_tokens` are sampled,
    `max_episode_seconds` are over).
    """

    SOLVED = "solved"
    TURNS = "turns"
    CONTEXT = "context"
    TOKENS = "tokens"
    TIME = "time"

    @property
    def truncates(self) -> bool:
        """True where the episode could have gone on."""
        return self not in (StopReason.SOLVED, StopReason.TURNS)


@dataclass(frozen=True, slots=True, init=False)
class Problem:
    """A problem, its accepted answers, and what is known of it.

    Args:
        id: Unique within its source; `source.by_id(id)` gives the same problem back.
        prompt: The text of the user's first message.
        gold: Accepted answers, at least one. A single one is put in a tuple, and a number becomes its text: an integer its
            digits, a `Fraction` "a/b", a float or `Decimal` the shortest decimal that is read back as it, without an
            exponent (0.5 is "0.5", 3.0 is "3", 1e-7 is "0.0000001").
        hints: What feedback may reveal after turn 1, 2, … (feedback mode `"hint"`; the last one is repeated).
        false_hints: The same for a counterfactual: hints that lie (feedback mode `"hint-flipped"`).
        metadata: Anything else, of JSON types: family, level, subject, split.

    Raises:
        InvalidValueError: an empty id, prompt or gold answer; a gold answer that is neither a text nor a finite number
            (True and False are neither: write the text that the answer should be).

    >>> Problem("p/1", "1+1=?", "2").gold
    ('2',)
    >>> Problem("p/2", "1/2 as a decimal?", [0.5, "1/2"]).gold
    ('0.5', '1/2')
    """

    id: str
    prompt: str
    gold: tuple[str, ...]
    hints: tuple[str, ...]
    false_hints: tuple[str, ...]
    metadata: Mapping[str, Any]

    # Written out, so that a type checker lets a problem be made of more than what its readers meet.
    def __init__(
        self,
        id: str,  # noqa: A002 - the field's name
        prompt: str,
        gold: str | Number | Sequence[str | Number],
        hints: Sequence[str] = (),
        false_hints: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("id", id), ("prompt", prompt)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidValueError(f"Problem.{name} must be a non-empty text, got {value!r}")
            object.__setattr__(self, name, value)
        several = isinstance(gold, (Sequence, np.ndarray)) and not isinstance(gold, (str, bytes))
        many: Sequence[Any] = list(gold) if several else [gold]  # type: ignore[arg-type]  # several: it is one
        if not many:
            raise InvalidValueError(f"Problem.gold must hold one or more texts or numbers, got {gold!r}")
        object.__setattr__(self, "gold", tuple(_gold_text(one) for one in many))
        object.__setattr__(self, "hints", tuple(hints))
        object.__setattr__(self, "false_hints", tuple(false_hints))
        object.__setattr__(self, "metadata", {} if metadata is None else metadata)

    def __repr__(self) -> str:
        """`Problem('p/1', '1+1=?', gold '2')`, long texts shortened."""
        gold = " or ".join(map(shorten, self.gold))
        return f"Problem({shorten(self.id)}, {shorten(self.prompt)}, gold {gold})"

    def _repr_html_(self) -> str:
        return displayed("problem", self)


def _gold_text(value: Any) -> str:
    """An accepted answer as text."""
    if isinstance(value, str) and value.strip():
        return value
    text = ""
    if not isinstance(value, (str, bool, np.bool_)):
        try:
            if isinstance(value, (int, np.integer, Fraction)):
                text = str(value)
            elif isinstance(value, (float, np.floating)) and np.isfinite(value):
                text = np.format_float_positional(value, trim="-")
            elif isinstance(value, Decimal) and value.is_finite():
                text = f"{value:f}"
        except ValueError as error:  # more digits than Python turns into a text
            raise InvalidValueError(f"Problem.gold holds a number that is too long to write: {error}") from error
    if not text:
        raise InvalidValueError(
            f"Problem.gold must hold non-empty texts or finite numbers, got {value!r}"
            + ("; write the text that is the answer" if isinstance(value, (bool, np.bool_)) else "")
        )
    return text


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's judgement of one response, and its reason.

    Args:
        status: right, wrong, no_answer or undecided.
        reason: One word or a short phrase for logs (`"equal"`, `"different"`, `"timeout"`, `"unevaluated"` …).
        score: In [0, 1]; None gives 1.0 for right and 0.0 otherwise. A custom verifier may give partial credit.
        answer: The text that was taken as the answer, or None.
        span: Its place in the response, `response[start:end]`, or None.
        gold: The accepted answer it was compared with last, or None.
        tier: Which part of the verifier decided (`"exact"`, `"rational"`, `"symbolic"` …; `"judge"`: a judge that was asked
            where they could not, see `mathturn_gym.verifier.judge`; `"custom"`: a function of the user's; `"error"`: none,
            the user's verifier raised), or None.
        rule: What found the answer in the response (`"box"`, `"tag"`, `"hash"`, `"phrase"`, `"whole"`, `"formula"`, `"line"`,
            `"number"`; `"answer"` where the text was given as one), or None.
        seconds: Time it took; not part of equality, so that a verdict is reproducible.
    """

    status: Status
    reason: str = ""
    score: float | None = None
    answer: str | None = None
    span: tuple[int, int] | None = None
    gold: str | None = None
    tier: str | None = None
    rule: str | None = None
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        """Fills in the score and checks it."""
        # A verdict is made for every answer of a run: what needs no conversion gets none.
        if type(self.status) is not Status:
            object.__setattr__(self, "status", Status(self.status))
        if self.score is None:
            object.__setattr__(self, "score", 1.0 if self.status is Status.RIGHT else 0.0)
            return
        score = float(self.score)
        if not 0.0 <= score <= 1.0:
            raise InvalidValueError(f"Verdict.score must be in [0, 1], got {self.score!r}")
        object.__setattr__(self, "score", score)

    @property
    def correct(self) -> bool:
        """True where the status is right; never for undecided."""
        return self.status is Status.RIGHT

    @property
    def is_verifier_error(self) -> bool:
        """True where a verifier of the user's raised on this turn: nothing is known of the answer."""
        return self.tier == "error"

    @property
    def is_judged(self) -> bool:
        """True where a judge decided, and not the verifier itself."""
        return self.tier == "judge"

    @property
    def value(self) -> float:
        """The score as a plain float (what rewards are made of)."""
        assert self.score is not None
        return self.score

    def __repr__(self) -> str:
        """`Verdict(wrong: different, answer '41')`; the score where it is not the status's own."""
        reason = f": {self.reason}" if self.reason else ""
        answer = "" if self.answer is None else f", answer {shorten(self.answer)}"
        score = "" if self.value == float(self.correct) else f", score {self.value:g}"
        return f"Verdict({self.status.value}{reason}{answer}{score})"

    def _repr_html_(self) -> str:
        return displayed("verdict", self)


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """A policy's answer to one context: ids and their log-probs.

    Args:
        ids: int64 (A,); the ids it sampled, its own end-of-turn id included where it wrote one.
        logprobs: float32 (A,), natural log, under the distribution that was really sampled from; None where the
            policy has none (a person, a script): NaN is stored, and such episodes cannot be trained on by ratios.
        truncated: True where the budget ended it, not the policy.
        version_start: Version of the weights at its first id.
        version_end: Version at its last id.
        versions: int32 (A,), the version of each id; None means `version_start` for all.
        raw_logprobs: float32 (A,), under the model's untouched logits (temperature 1, nothing cut off), where asked for.
        entropies: float32 (A,), nats, of the distribution that each id was sampled from, where asked for.
        support: int32 (A, S), the ids that could be drawn in the place of each, then -1 to fill the row, where sampling cut
            others off and it was asked for.
        routed_experts: The experts that each id of context and completion went through, exactly as the server gave them
            (vLLM: a .npy file in base64); for a trainer that replays them. Episodes do not keep them.

    Raises:
        InvalidEpisodeError: lengths that differ, a positive or infinite log-prob, versions running backwards.
    """

    ids: Ids
    # None stands for "not given"; `__post_init__` replaces it, so that readers never see it.
    logprobs: npt.NDArray[np.float32] = None  # type: ignore[assignment]
    truncated: bool = False
    version_start: int = 0
    version_end: int = None  # type: ignore[assignment]
    versions: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    raw_logprobs: npt.NDArray[np.float32] | None = None
    entropies: npt.NDArray[np.float32] | None = None
    support: npt.NDArray[np.int32] | None = None
    routed_experts: Any = None

    def __post_init__(self) -> None:
        """Normalizes dtypes and checks the lengths."""
        ids = _int_array("Completion.ids", self.ids, np.int64)
        size = ids.shape[0]
        given: tuple[Any, Any, Any] = self.logprobs, self.version_end, self.versions
        if given[0] is None:
            logprobs = np.full(size, np.nan, np.float32)
        else:
            logprobs = np.ascontiguousarray(given[0], dtype=np.float32)
            check_logprobs("Completion.logprobs", logprobs, size)
        start = int(self.version_start)
        end = start if given[1] is None else int(given[1])
        if given[2] is None:
            versions = np.full(size, start, np.int32)
        else:
            versions = _int_array("Completion.versions", given[2], np.int32)
            if versions.shape[0] != size:
                raise InvalidEpisodeError(f"Completion.versions has {versions.shape[0]} entries for {size} ids")
        for name in ("raw_logprobs", "entropies"):
            values = getattr(self, name)
            if values is not None and np.shape(values) != (size,):
                raise InvalidEpisodeError(f"Completion.{name} has shape {np.shape(values)} for {size} ids")
        _check_support("Completion", self.support, ids)
        if end < start or bool(np.any(np.diff(versions) < 0)):
            raise InvalidEpisodeError(f"Completion versions run backwards: {start} to {end}, {versions.tolist()}")
        for name, value in (("ids", ids), ("logprobs", logprobs), ("versions", versions)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "version_start", start)
        object.__setattr__(self, "version_end", end)

    def __len__(self) -> int:
        """Number of ids."""
        return int(self.ids.shape[0])

    def __repr__(self) -> str:
        """`Completion(12 tokens, mean log-prob -0.41)`."""
        known = self.logprobs[~np.isnan(self.logprobs)]
        sure = f", mean log-prob {known.mean():.3f}" if known.size else ""
        return f"Completion({len(self)} tokens{sure}{', truncated' if self.truncated else ''})"


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn as the environment keeps it.

    Args:
        response: The completion as text, up to its end of turn.
        verdict: The verdict, gold answer included.
        feedback: The feedback as text, "" where there was none.
        reward: The reward.
        start: Where its action begins in its segment (the observation that the policy was shown).
        end: Where its action ends in its segment.
        reward_terms: What the reward is the sum of, where terms were asked for.
        segment: Number of its segment; 0 unless observations are re-rendered between turns (see `Dialogue.history`).
    """

    response: str
    verdict: Verdict
    feedback: str
    reward: float
    start: int
    end: int
    reward_terms: Mapping[str, float] | None = None
    segment: int = 0

    def __repr__(self) -> str:
        r"""`TurnRecord('\\boxed{3}', wrong, reward -1)`."""
        return f"TurnRecord({shorten(self.response)}, {self.verdict.status.value}, reward {self.reward:g})"


@dataclass(frozen=True, slots=True, eq=False)
class TurnContext:
    """A turn as verifiers, feedback and reward terms see it.

    Args:
        problem: The problem, gold answer included: the function that reads it decides what to reveal.
        turn: The turn's index, from 0.
        num_turns: Turns of the whole episode.
        response: The text that is verified.
        context_ids: int64 (L,), read-only; the observation before the action.
        ids: int64 (A,), read-only; the action.
        max_tokens: The most tokens that the action could have had.
        earlier: The turns before this one; `earlier_ids(k)` are the ids of turn k.
        verdict: The turn's verdict; None while it is being judged.
        segments: The finished segments of the episode, int64 (L,) each, with the turns that were played in them.
        episode_seed: Decides whatever is random in the episode's feedback and verdicts (`derive_seed(it, "name", turn)`):
            the same for a repetition of the episode, another one for other episodes on its problem.
    """

    problem: Problem
    turn: int
    num_turns: int
    response: str
    context_ids: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    max_tokens: int = 0
    earlier: tuple[TurnRecord, ...] = ()
    verdict: Verdict | None = None
    segments: tuple[Ids, ...] = ()
    episode_seed: int = 0

    def __repr__(self) -> str:
        r"""`TurnContext(turn 1 of 4 on 'p/1', 57 tokens, '\\boxed{3}')`; the turn counts from 0."""
        where = f"turn {self.turn} of {self.num_turns} on {shorten(self.problem.id)}"
        return f"TurnContext({where}, {len(self.context_ids)} tokens, {shorten(self.response)})"

    def earlier_ids(self, turn: int) -> Ids:
        """The action of an earlier turn, int64 (A,)."""
        record = self.earlier[turn]
        return (*self.segments, self.context_ids)[record.segment][record.start : record.end]

    def with_verdict(self, verdict: Verdict) -> TurnContext:
        """The turn after it was judged."""
        # Called for every turn: `dataclasses.replace` takes five times as long.
        return TurnContext(
            self.problem,
            self.turn,
            self.num_turns,
            self.response,
            self.context_ids,
            self.ids,
            self.max_tokens,
            self.earlier,
            verdict,
            self.segments,
            self.episode_seed,
        )

    @property
    def judged(self) -> Verdict:
        """The verdict, for what runs after the judging: feedback and reward terms.

        Raises:
            EpisodeStateError: the turn is still being judged (a verifier asks for its own verdict).
        """
        if self.verdict is None:
            raise EpisodeStateError(f"turn {self.turn} of problem {self.problem.id!r} is still being judged")
        return self.verdict


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One action and what the environment made of it; a view into an `Episode`.

    Args:
        index: From 0.
        context: int64 (L,); everything the policy saw before it answered.
        ids: int64 (A,); the completion.
        feedback_ids: int64 (F,); what followed in the same segment (empty after the last turn, and before a
            re-rendering).
        logprobs: float32 (A,).
        versions: int32 (A,).
        truncated: The completion was cut off by its budget.
        feedback: The feedback as text (empty after the last turn).
        verdict: The verdict.
        reward: The reward.
        response: The text that was verified; None where the episode was kept without its texts.
        budget: The most tokens that the completion could have; None where it is not known.
    """

    index: int
    context: Ids
    ids: Ids
    feedback_ids: Ids
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    truncated: bool
    feedback: str
    verdict: Verdict
    reward: float
    response: str | None = None
    budget: int | None = None

    def __repr__(self) -> str:
        """`Turn(0, 12 tokens, wrong, reward -1)`."""
        return f"Turn({self.index}, {len(self.ids)} tokens, {self.verdict.status.value}, reward {self.reward:g})"


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """All turns on one problem: exactly the ids that the policy saw and said, and the same as text.

    The ids are what counts: texts are only derived from them, for readers. `print(episode)` is the dialogue.

    Where the context was re-rendered between turns (`history` of the environment), the episode has several *segments*, end
    to end in `ids`. Each is a sequence that the policy saw and continued; within each, context[k+1] = context[k] ++
    completion[k] ++ feedback[k]. Ids of earlier answers that are repeated in a later segment are context there.

    Args:
        problem_id: The problem's id.
        ids: int64 (T,): prompt ++ completion[0] ++ feedback[0] ++ completion[1] …
        loss_mask: bool (T,); True on the policy's own ids, nowhere else.
        logprobs: float32 (T,); behavior log-probs, 0 off the mask, NaN where the policy gave none.
        versions: int32 (T,); version of the weights, `NO_VERSION` off the mask.
        turn_spans: int64 (K, 2); completion k is `ids[start:end]`.
        rewards: float64 (K,).
        verdicts: K verdicts.
        feedbacks: K texts ("" where none was given).
        turn_truncated: K flags: the completion was cut off by its budget.
        terminated: Solved, or the last turn used.
        truncated: Context budget used up.
        stop_reason: Why it ended, None where it was cut short by its user.
        returns: float32 (K,), discounted returns-to-go, or None where they were not computed.
        discount: The discount of `returns`.
        index: The episode's number in its collection; with `seed` it determines the episode.
        seed: The collection's seed.
        group: Episodes on one problem that were sampled together share it.
        metadata: The problem's metadata.
        prompt: The problem's text, "" where it was not kept.
        responses: K texts, those that were verified; empty where they were not kept.
        gold: The accepted answers, where the environment was asked to give them (`gold_in_info=True`).
        budgets: The most tokens that each completion could have; K numbers, or empty where they are not known.
        token_values: Other numbers of each id by name, float32 (T,), NaN where an id has none: "entropy", "raw_logprob"
            (of the policy, where asked for), "advantage" (of a trainer).
        segment_starts: int64 (S,); where each segment begins in `ids`, the first at 0. A segment ends with its last
            completion, where another one follows.
        support: int32 (M, S) for the M ids on the loss mask; the ids that could be drawn in the place of each, then -1 to
            fill the row, S being the most of any. None where nothing was sampled or cut off, or it was not kept.

    Raises:
        InvalidEpisodeError: a law is broken; the message names the field and the turn.
    """

    problem_id: str
    ids: Ids
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    turn_spans: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    verdicts: tuple[Verdict, ...]
    feedbacks: tuple[str, ...]
    turn_truncated: tuple[bool, ...]
    terminated: bool
    truncated: bool
    stop_reason: StopReason | None
    returns: npt.NDArray[np.float32] | None = None
    discount: float | None = None
    index: int = 0
    seed: int | None = None
    group: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    responses: tuple[str, ...] = ()
    gold: tuple[str, ...] = ()
    budgets: tuple[int, ...] = ()
    token_values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    segment_starts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    support: npt.NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        """Checks every law that can be checked without the environment."""
        check_episode(self)

    @property
    def num_turns(self) -> int:
        """Number of turns, K."""
        return int(self.turn_spans.shape[0])

    @property
    def num_segments(self) -> int:
        """Number of segments, S; 1 where the context only grew."""
        return int(self.segment_starts.shape[0])

    @property
    def segments(self) -> tuple[Ids, ...]:
        """The segments as views, int64 (L,) each: the sequences that the policy saw."""
        ends = [*self.segment_starts[1:].tolist(), len(self.ids)]
        return tuple(self.ids[start:end] for start, end in zip(self.segment_starts.tolist(), ends, strict=True))

    @property
    def turn_segments(self) -> npt.NDArray[np.int64]:
        """The segment of each turn, int64 (K,)."""
        # A completion without an id may lie where its segment ends: it belongs to that one, because segments begin with
        # a context.
        return np.maximum(np.searchsorted(self.segment_starts, self.turn_spans[:, 0]) - 1, 0).astype(np.int64)

    @property
    def prompt_length(self) -> int:
        """Ids before the first completion (all of them where there was no turn)."""
        return int(self.turn_spans[0, 0]) if self.num_turns else int(self.ids.shape[0])

    @property
    def prompt_ids(self) -> Ids:
        """The first observation."""
        return self.ids[: self.prompt_length]

    @property
    def solved(self) -> bool:
        """True where some turn was right."""
        return any(verdict.correct for verdict in self.verdicts)

    def __repr__(self) -> str:
        """`Episode(3 on 'p/1': wrong → right, reward 0, 57 tokens)`."""
        said = " → ".join(verdict.status.value for verdict in self.verdicts) or "no turn"
        tokens = f"{len(self.ids)} tokens" + (f" in {self.num_segments} segments" if self.num_segments > 1 else "")
        return f"Episode({self.index} on {shorten(self.problem_id)}: {said}, reward {self.rewards.sum():g}, {tokens})"

    def __str__(self) -> str:
        """The dialogue with verdicts and rewards, colored where it is printed in a terminal."""
        return displayed("episode as text", self)

    def _repr_html_(self) -> str:
        return displayed("episode", self)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns as views (no id is copied)."""
        spans, segments = self.turn_spans.tolist(), self.turn_segments.tolist()
        begins = self.segment_starts.tolist()
        closes = [*begins[1:], len(self.ids)]
        goes_on = [following == segment for segment, following in pairwise([*segments, None])]
        ends = [spans[k + 1][0] if goes_on[k] else closes[segment] for k, segment in enumerate(segments)]
        return tuple(
            Turn(
                index=k,
                context=self.ids[begins[segments[k]] : start],
                ids=self.ids[start:end],
                feedback_ids=self.ids[end : ends[k]],
                logprobs=self.logprobs[start:end],
                versions=self.versions[start:end],
                truncated=self.turn_truncated[k],
                feedback=self.feedbacks[k],
                verdict=self.verdicts[k],
                reward=float(self.rewards[k]),
                response=self.responses[k] if self.responses else None,
                budget=self.budgets[k] if self.budgets else None,
            )
            for k, (start, end) in enumerate(spans)
        )


@runtime_checkable
class Policy(Protocol):
    """Anything that continues contexts of ids.

    A policy may declare how `collect` should ask it: a class attribute `scheduler` of "batched" (the default where
    there is none), "streaming" or "async" (see `mathturn_gym.episodes.rollout`).

    `complete` gets B contexts of any lengths and returns B completions in the same order. `max_tokens[b]` is the most tokens
    that row b may have (0 asks for an empty completion). `seeds[b]` determines row b's sample, whatever the other rows are
    (as far as floating point allows); None leaves sampling to the policy's own state.
    """

    def complete(
        self,
        contexts: Sequence[Ids],
        *,
        max_tokens: Sequence[int],
        seeds: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Continues each context.

        Args:
            contexts: B arrays, int64 (L_b,).
            max_tokens: B budgets, >= 0.
            seeds: B non-negative ints, or None.

        Returns:
            B completions, in order.
        """
        ...


def check_logprobs(name: str, logprobs: npt.NDArray[np.float32], size: int) -> None:
    """Raises `InvalidEpisodeError` unless `logprobs` are `size` numbers that can be log-probs (NaN: none given)."""
    if logprobs.shape != (size,):
        raise InvalidEpisodeError(f"{name} has shape {logprobs.shape} for {size} ids")
    bad = _bad_logprobs(logprobs)
    if bad.size:
        at = int(bad[0])
        raise InvalidEpisodeError(f"{name}[{at}] must be a finite number <= 0, got {float(logprobs[at])!r}")


def check_episode(episode: Episode) -> None:
    """Raises `InvalidEpisodeError` where an episode breaks a law; the message names the episode, field and turn."""
    who = f"episode {episode.index} on {episode.problem_id!r}"
    size, spans = episode.ids.shape[0], episode.turn_spans
    for name, dtype in _EPISODE_DTYPES.items():
        array = getattr(episode, name)
        if array.dtype != dtype or (name not in ("turn_spans", "rewards") and array.shape != (size,)):
            raise InvalidEpisodeError(
                f"{who}: {name} must be {dtype} of shape ({size},), got {array.dtype} {array.shape}"
            )
    turns = spans.shape[0]
    if spans.shape != (turns, 2) or episode.rewards.shape != (turns,):
        raise InvalidEpisodeError(f"{who}: turn_spans {spans.shape} and rewards {episode.rewards.shape} differ")
    for name in ("verdicts", "feedbacks", "turn_truncated"):
        if len(getattr(episode, name)) != turns:
            raise InvalidEpisodeError(f"{who}: {name} has {len(getattr(episode, name))} entries for {turns} turns")
    for name in ("responses", "budgets"):
        if len(getattr(episode, name)) not in (0, turns):
            raise InvalidEpisodeError(
                f"{who}: {name} has {len(getattr(episode, name))} entries for {turns} turns (none at all is allowed)"
            )
    for name, values in episode.token_values.items():
        if values.dtype != np.float32 or values.shape != (size,):
            raise InvalidEpisodeError(
                f"{who}: token_values[{name!r}] must be float32 of shape ({size},), got {values.dtype} {values.shape}"
            )
    if episode.returns is not None and (episode.returns.shape != (turns,) or episode.returns.dtype != np.float32):
        raise InvalidEpisodeError(f"{who}: returns must be float32 ({turns},), got {episode.returns.dtype}")
    for name in ("rewards", "returns"):
        values = getattr(episode, name)
        if values is not None and not np.all(np.isfinite(values)):
            raise InvalidEpisodeError(f"{who}: {name} must be finite, got {values.tolist()}")
    _check_segments(episode, who)
    mask = np.zeros(size, np.bool_)
    end_before = 0
    for k, (start, end) in enumerate(spans.tolist()):
        if not end_before <= start <= end <= size:
            raise InvalidEpisodeError(f"{who}: turn {k} spans [{start}, {end}) after {end_before}, of {size} ids")
        mask[start:end] = True
        end_before = end
    if not np.array_equal(mask, episode.loss_mask):
        raise InvalidEpisodeError(f"{who}: loss_mask is not True exactly on turn_spans")
    if np.any(episode.logprobs[~mask] != 0) or np.any(episode.versions[~mask] != NO_VERSION):
        raise InvalidEpisodeError(f"{who}: log-probs must be 0 and versions {NO_VERSION} off the loss mask")
    _check_support(who, episode.support, episode.ids[mask])
    if episode.support is not None and (episode.support[:, -1:] < 0).all():
        raise InvalidEpisodeError(f"{who}: support must be None where it holds no id, and no wider than it needs to be")
    bad = _bad_logprobs(episode.logprobs)
    if bad.size:
        check_logprobs(f"{who}, turn {_turn_at(spans, bad[0])}: logprobs", episode.logprobs, size)
    own = episode.versions[mask]
    backwards = np.flatnonzero(np.diff(own, prepend=np.int32(0)) < 0)
    if backwards.size:
        turn = _turn_at(spans, np.flatnonzero(mask)[backwards[0]])
        raise InvalidEpisodeError(f"{who}, turn {turn}: versions run backwards or are negative: {own.tolist()}")


def _check_support(who: str, support: npt.NDArray[np.int32] | None, ids: Ids) -> None:
    """Raises unless each id is among those that could be drawn in its place."""
    if support is None:
        return
    if support.dtype != np.int32 or support.ndim != 2 or len(support) != len(ids):
        raise InvalidEpisodeError(
            f"{who}: support must be int32 of shape ({len(ids)}, S), got {support.dtype} {support.shape}"
        )
    missing = np.flatnonzero(~(support == ids[:, None]).any(axis=1))
    if missing.size:
        raise InvalidEpisodeError(
            f"{who}: sampled id {int(missing[0])} is {int(ids[missing[0]])}, which is not in its support"
        )


def _check_segments(episode: Episode, who: str) -> None:
    """Raises unless segments follow one another, each but the last ends with a completion, and no completion crosses."""
    starts, spans = episode.segment_starts, episode.turn_spans
    if starts.dtype != np.int64 or starts.ndim != 1 or not starts.size or starts[0] != 0:
        raise InvalidEpisodeError(f"{who}: segment_starts must be int64 numbers from 0 on, got {starts!r}")
    if starts.size == 1:
        return
    if np.any(np.diff(starts) <= 0) or starts[-1] >= episode.ids.shape[0]:
        raise InvalidEpisodeError(f"{who}: segment_starts must increase and lie before the end, got {starts.tolist()}")
    for segment, start in enumerate(starts[1:].tolist(), 1):
        crossing = np.flatnonzero((spans[:, 0] < start) & (start < spans[:, 1]))
        if crossing.size:
            raise InvalidEpisodeError(
                f"{who}: turn {int(crossing[0])} crosses into segment {segment}, which begins at {start}"
            )
        if start not in spans[:, 1]:
            raise InvalidEpisodeError(f"{who}: segment {segment - 1} must end with a completion, at {start}")


def _turn_at(spans: npt.NDArray[np.int64], at: np.intp) -> int:
    """The turn whose completion holds the id at `at`."""
    return int(np.flatnonzero((spans[:, 0] <= at) & (at < spans[:, 1]))[0])


def _bad_logprobs(logprobs: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """Indices of values that are no log-probs. A float32 softmax may end slightly above 0; more is an error of units."""
    return np.flatnonzero((logprobs > 1e-5) | np.isinf(logprobs))


_EPISODE_DTYPES: dict[str, Any] = {
    "ids": np.dtype(np.int64),
    "loss_mask": np.dtype(np.bool_),
    "logprobs": np.dtype(np.float32),
    "versions": np.dtype(np.int32),
    "turn_spans": np.dtype(np.int64),
    "rewards": np.dtype(np.float64),
}


def _int_array(name: str, value: Any, dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """A 1-D integer array of `dtype`, or an error: floats are never rounded to ids."""
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(dtype)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidEpisodeError(f"{name} must be a 1-D array of integers, got {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, dtype=dtype)
