"""Every metric as a numerator and a denominator per episode or per problem."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from mathturn_gym.episodes.metrics.intervals import Bounds, Floats, cluster_sums
from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.types import Episode, Status, StopReason
from mathturn_gym.verifier import answer_key

MEANING: Final[dict[str, str]] = {
    "acc@k": "share of episodes solved within the first k turns",
    "right@k": "share of episodes whose answer after turn k is right (an answer stands once its episode has ended)",
    "delta_1_2": "right@2 minus right@1",
    "wrong_to_right": "share of the turns that were not right after which the next turn is right",
    "right_to_wrong": "share of the right turns after which the next turn is not right",
    "corrected": "share of episodes with a wrong first turn that are solved later",
    "turns": "turns per episode",
    "turns_to_success": "turns up to the first right one, mean over solved episodes",
    "tokens": "tokens that the policy sampled, per episode",
    "tokens_to_success": "tokens sampled up to the end of the first right turn, mean over solved episodes",
    "tokens_per_solved": "sampled tokens per solved episode",
    "return": "discounted return of the first turn (the sum of rewards where an episode carries no returns)",
    "no_answer": "share of turns in which no answer was found",
    "undecided": "share of turns that the verifier could not decide",
    "judged": "share of turns that a judge decided, because the verifier could not",
    "verifier_errors": "share of turns for which a user's verifier raised an error (also undecided)",
    "cut_off": "share of turns that ended because their token budget was used up",
    "repeated_answer": "share of the answers after a wrong turn that repeat an earlier wrong answer",
    "distinct_answers": "different answers per episode, mean over episodes with any answer",
    "right_if_answered": "share of the first turns with an answer that are right",
    "siblings_if_answered": "first-turn accuracy of the other answering episodes of the problem, where this one answered",
    "siblings_if_silent": "the same where this episode's first turn gave no answer (lower: silence is informed)",
    "pass@k": "share of problems with at least one right answer in k first turns (unbiased)",
    "majority@k": "share of problems on which the most frequent answer of k first turns is right (unbiased)",
    "retry_gain@k": "acc@k minus pass@k: what k turns gain over k independent samples",
}
"""Every metric in words; `@k` stands for `@1`, `@2` and so on."""

QUESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "How often is it right?": ("acc@k", "right@k", "right_if_answered"),
    "Does it use the feedback?": (
        "corrected",
        "delta_1_2",
        "wrong_to_right",
        "right_to_wrong",
        "repeated_answer",
        "distinct_answers",
    ),
    "Are turns worth more than independent samples?": ("pass@k", "majority@k", "retry_gain@k"),
    "What does it earn, and what does it cost?": (
        "return",
        "turns",
        "turns_to_success",
        "tokens",
        "tokens_to_success",
        "tokens_per_solved",
    ),
    "What goes wrong?": ("no_answer", "undecided", "judged", "verifier_errors", "cut_off"),
    "Is it silent where it does not know?": ("siblings_if_answered", "siblings_if_silent"),
}
"""The metrics by the question that they answer, in the order of reports."""


RATE: Final[Bounds] = (0.0, 1.0)
SIGNED: Final[Bounds] = (-1.0, 1.0)
POSITIVE: Final[Bounds] = (0.0, None)
ANY: Final[Bounds] = (None, None)


class Column(NamedTuple):
    """A figure as a ratio of sums: `top.sum() / bottom.sum()`, rows being episodes or problems.

    Attributes:
        name: Of the figure.
        top: float64, the numerator by row.
        bottom: float64, the denominator by row.
        bounds: Of the figure.
        units: Observations that the figure is made of; None for as many as `bottom` counts.
    """

    name: str
    top: Floats
    bottom: Floats
    bounds: Bounds = RATE
    units: float | None = None


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What the figures need of an episode; `right`, `statuses`, `answers` and `tokens` have an entry for each turn.

    Answers are written as `answer_key` writes them. `cut_off`, `judged` and `verifier_errors` count turns. A `settled`
    episode ended by being solved: its last answer stands. `value` is its return.
    """

    problem_id: str
    right: tuple[bool, ...]
    statuses: tuple[Status, ...]
    answers: tuple[str | None, ...]
    tokens: tuple[int, ...]
    cut_off: int
    judged: int
    verifier_errors: int
    settled: bool
    value: float

    @property
    def first_success(self) -> int | None:
        """Index of the first right turn, or None."""
        return self.right.index(True) if any(self.right) else None

    def right_after(self, turn: int) -> bool:
        """The answer that stands after turn `turn` (from 1) is right."""
        if turn <= len(self.right):
            return self.right[turn - 1]
        return self.settled and self.right[-1]


def facts(episode: Episode) -> EpisodeFacts:
    """The facts of one episode."""
    returns = episode.returns
    value = float(episode.rewards.sum()) if returns is None or not len(returns) else float(returns[0])
    return EpisodeFacts(
        problem_id=episode.problem_id,
        right=tuple(verdict.correct for verdict in episode.verdicts),
        statuses=tuple(verdict.status for verdict in episode.verdicts),
        answers=tuple(None if v.answer is None else answer_key(v.answer) for v in episode.verdicts),
        tokens=tuple((episode.turn_spans[:, 1] - episode.turn_spans[:, 0]).tolist()),
        cut_off=sum(episode.turn_truncated),
        judged=sum(verdict.is_judged for verdict in episode.verdicts),
        verifier_errors=sum(verdict.is_verifier_error for verdict in episode.verdicts),
        settled=episode.stop_reason is StopReason.SOLVED,
        value=value,
    )


def episode_columns(episodes: Sequence[EpisodeFacts], turns: int) -> Iterator[Column]:
    """The figures that are sums over episodes; `turns` is T, the most turns that any has."""
    one = np.ones(len(episodes))
    first = [e.first_success for e in episodes]
    solved = _floats([f is not None for f in first])
    for k in range(1, turns + 1):
        yield Column(f"acc@{k}", _floats([f is not None and f < k for f in first]), one)
    for k in range(1, turns + 1):
        yield Column(f"right@{k}", _floats([e.right_after(k) for e in episodes]), one)
    if turns > 1:
        delta = [float(e.right_after(2)) - float(e.right_after(1)) for e in episodes]
        yield Column("delta_1_2", _floats(delta), one, SIGNED)
        yield from _transitions(episodes)
        missed = _floats([bool(e.right) and not e.right[0] for e in episodes])
        yield Column("corrected", missed * solved, missed)
    # An episode whose prompt did not fit has no turn.
    fewest = float(min((len(e.right) for e in episodes), default=0) > 0)
    yield Column("turns", _floats([len(e.right) for e in episodes]), one, _between(fewest, turns))
    to_success = _floats([0 if f is None else f + 1 for f in first])
    yield Column("turns_to_success", to_success, solved, _between(1.0, turns))
    tokens = _floats([sum(e.tokens) for e in episodes])
    until = [0 if f is None else sum(e.tokens[: f + 1]) for e, f in zip(episodes, first, strict=True)]
    yield Column("tokens", tokens, one, POSITIVE)
    yield Column("tokens_to_success", _floats(until), solved, POSITIVE)
    yield Column("tokens_per_solved", tokens, solved, POSITIVE)
    yield Column("return", _floats([e.value for e in episodes]), one, ANY)
    yield from _answers(episodes, turns)


def _between(low: float, turns: int) -> Bounds:
    """Bounds of what counts turns; one turn leaves nothing to vary."""
    return (low, float(turns)) if turns > low else POSITIVE


def _transitions(episodes: Sequence[EpisodeFacts]) -> Iterator[Column]:
    pairs = [list(zip(e.right[:-1], e.right[1:], strict=True)) for e in episodes]
    for name, before in (("wrong_to_right", False), ("right_to_wrong", True)):
        top = [sum(a is before and b is not before for a, b in row) for row in pairs]
        yield Column(name, _floats(top), _floats([sum(a is before for a, _ in row) for row in pairs]))


def _answers(episodes: Sequence[EpisodeFacts], most: int) -> Iterator[Column]:
    turns = _floats([len(e.right) for e in episodes])
    for name, status in (("no_answer", Status.NO_ANSWER), ("undecided", Status.UNDECIDED)):
        yield Column(name, _floats([e.statuses.count(status) for e in episodes]), turns)
    yield Column("judged", _floats([e.judged for e in episodes]), turns)
    yield Column("verifier_errors", _floats([e.verifier_errors for e in episodes]), turns)
    yield Column("cut_off", _floats([e.cut_off for e in episodes]), turns)
    repeats, retries = zip(*(_repeats(e) for e in episodes), strict=True) if episodes else ((), ())
    yield Column("repeated_answer", _floats(repeats), _floats(retries))
    distinct = _floats([len(set(e.answers) - {None}) for e in episodes])
    yield Column("distinct_answers", distinct, (distinct > 0).astype(np.float64), _between(1.0, most))
    answered = _floats([bool(e.answers) and e.answers[0] is not None for e in episodes])
    right = _floats([bool(e.right) and e.right[0] for e in episodes])
    yield Column("right_if_answered", answered * right, answered)
    yield from _silence(episodes, answered, answered * right)


def _repeats(episode: EpisodeFacts) -> tuple[int, int]:
    """(answers that repeat one that was not right, answers given after a turn that was not right)."""
    failed: set[str] = set()
    repeats = retries = 0
    for k, answer in enumerate(episode.answers):
        if answer is not None and k and not episode.right[k - 1]:
            retries += 1
            repeats += answer in failed
        if answer is not None and not episode.right[k]:
            failed.add(answer)
    return repeats, retries


def _silence(episodes: Sequence[EpisodeFacts], answered: Floats, right: Floats) -> Iterator[Column]:
    """How well the problem's other episodes do, by whether this one answered."""
    ids = np.unique([e.problem_id for e in episodes], return_inverse=True)[1] if episodes else np.zeros(0, np.int64)
    others = np.bincount(ids, weights=answered)[ids] - answered if len(ids) else np.zeros(0)
    others_right = np.bincount(ids, weights=right)[ids] - right if len(ids) else np.zeros(0)
    # Of the problem's other episodes, leaving this one out: it would tell of itself otherwise.
    accuracy = np.divide(others_right, others, out=np.zeros(len(ids)), where=others > 0)
    for name, asked in (("siblings_if_answered", answered), ("siblings_if_silent", 1 - answered)):
        usable = asked * (others > 0)
        yield Column(name, usable * accuracy, usable)


def problem_columns(groups: Sequence[Sequence[EpisodeFacts]], turns: int) -> Iterator[Column]:
    """The figures of independent samples: the first turns of the episodes on a problem, by problem.

    A problem counts towards `@k` where it has k episodes or more.
    """
    samples = [[_first(e) for e in group] for group in groups]
    most = max((len(group) for group in samples), default=0)
    # Every turn, to compare retries with samples; powers of two beyond, as pass@k is plotted.
    for k in sorted({*range(1, turns + 1), *(2**i for i in range(12))}):
        # With one episode per problem pass@1 would only repeat acc@1.
        if k > most or most == 1:
            continue
        enough = [len(group) >= k for group in samples]
        passes = [
            pass_at_k(len(s), sum(r for _, r in s), k) if ok else 0.0 for s, ok in zip(samples, enough, strict=True)
        ]
        votes = [
            majority_at_k([a for a, _ in s], [r for _, r in s], k) if ok else 0.0
            for s, ok in zip(samples, enough, strict=True)
        ]
        drawn = float(sum(len(group) for group, ok in zip(samples, enough, strict=True) if ok))
        yield Column(f"pass@{k}", _floats(passes), _floats(enough), units=drawn)
        yield Column(f"majority@{k}", _floats(votes), _floats(enough), units=drawn)
        if 2 <= k <= turns:
            within = [sum(_solved_within(e, k) for e in group) / len(group) for group in groups]
            gain = (_floats(within) - _floats(passes)) * _floats(enough)
            yield Column(f"retry_gain@{k}", gain, _floats(enough), SIGNED)


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Every figure's numerator and denominator per problem.

    Args:
        problem_ids: C ids, in the order of their first episode.
        turns: T, the most turns that any episode has.
        names: F figures.
        bounds: F pairs; of each figure.
        units: F numbers; observations that each figure is made of.
        tops_CF: float64 (C, F).
        bottoms_CF: float64 (C, F).
    """

    problem_ids: tuple[str, ...]
    turns: int
    names: tuple[str, ...]
    bounds: tuple[Bounds, ...]
    units: tuple[float, ...]
    tops_CF: Floats  # noqa: N815 - arrays carry their shape
    bottoms_CF: Floats  # noqa: N815


def count_by_problem(known: Sequence[EpisodeFacts], turns: int | None = None) -> Counts:
    """Counts all figures; `turns` is the least T, None takes the most turns that any episode has."""
    # Problems are the sample: episodes on one problem are not independent.
    groups: dict[str, list[EpisodeFacts]] = defaultdict(list)
    for fact in known:
        groups[fact.problem_id].append(fact)
    turns = max([turns or 0, *(len(fact.right) for fact in known)])
    position = {problem_id: i for i, problem_id in enumerate(groups)}
    clusters = np.array([position[fact.problem_id] for fact in known], np.int64)
    by_episode, by_problem = list(episode_columns(known, turns)), list(problem_columns(list(groups.values()), turns))
    sums = [
        np.concatenate(
            [
                cluster_sums(clusters, _matrix([getattr(c, part) for c in by_episode], len(known)), len(groups)),
                _matrix([getattr(c, part) for c in by_problem], len(groups)),
            ],
            axis=1,
        )
        for part in ("top", "bottom")
    ]
    columns = by_episode + by_problem
    units = [float(sums[1][:, f].sum()) if c.units is None else c.units for f, c in enumerate(columns)]
    names, bounds = tuple(c.name for c in columns), tuple(c.bounds for c in columns)
    return Counts(tuple(groups), turns, names, bounds, tuple(units), *sums)


def _matrix(columns: Sequence[Floats], rows: int) -> Floats:
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))


def _first(episode: EpisodeFacts) -> tuple[str | None, bool]:
    return (episode.answers[0], episode.right[0]) if episode.right else (None, False)


def _solved_within(episode: EpisodeFacts, turns: int) -> bool:
    first = episode.first_success
    return first is not None and first < turns


def _floats(values: Sequence[float] | Floats) -> Floats:
    return np.asarray(values, np.float64)


# ---- of several independent samples


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right: 1 - C(n-c, k) / C(n, k).

    The estimator of Chen et al., *Evaluating Large Language Models Trained on Code* (2021), §2.1.

    Args:
        samples: Samples drawn, n.
        right: How many of them are right, c.
        k: In 1..n.

    Raises:
        InvalidValueError: k is not in 1..n, or c not in 0..n.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.5, 1.0)
    """
    samples = check_int("samples", samples, low=1)
    right = check_int("right", right, low=0, high=samples)
    k = check_int("k", k, low=1, high=samples)
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def majority_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """Unbiased estimate of the chance that the most frequent answer of k samples is right.

    The mean over all C(n, k) choices of k of the n samples (counted by polynomials, not listed). Samples without an
    answer do not vote, right answers are one candidate however they are written, a tie is broken by lot, and a choice
    without any vote is wrong.

    Args:
        answers: n answers, None for none.
        right: n flags.
        k: In 1..n.

    Raises:
        InvalidValueError: lengths that differ, or k is not in 1..n.

    >>> majority_at_k(["4", "4", "5"], [True, True, False], 3)
    1.0
    >>> majority_at_k(["4", "5"], [True, False], 2)
    0.5
    """
    if len(answers) != len(right):
        raise InvalidValueError(f"right must have one flag per answer: {len(right)} for {len(answers)}")
    k = check_int("k", k, low=1, high=max(1, len(answers)))
    if k > len(answers):
        raise InvalidValueError(f"k must be at most the number of samples, {len(answers)}, got {k}")
    # Right answers are one candidate: a majority is split by meaning, not by spelling.
    correct = sum(right)
    wrong = Counter(answer_key(a) for a, ok in zip(answers, right, strict=True) if not ok and a is not None)
    silent = sum(1 for a, ok in zip(answers, right, strict=True) if not ok and a is None)
    total = Fraction(0)
    for votes in range(1, min(correct, k) + 1):
        total += math.comb(correct, votes) * _others(list(wrong.values()), silent, k - votes, votes)
    return float(total / math.comb(len(answers), k))


def _others(counts: list[int], silent: int, size: int, votes: int) -> Fraction:
    """Choices of `size` samples of the others that give none more than `votes`; one tied t ways counts 1 / (t + 1)."""
    ways: dict[tuple[int, int], int] = {(0, 0): 1}  # (samples chosen, candidates that tie) -> choices
    for count in counts:
        grown: Counter[tuple[int, int]] = Counter()
        for (chosen, ties), number in ways.items():
            for more in range(min(count, votes, size - chosen) + 1):
                grown[chosen + more, ties + (more == votes)] += number * math.comb(count, more)
        ways = grown
    return sum(
        (
            Fraction(number * math.comb(silent, size - chosen), ties + 1)
            for (chosen, ties), number in ways.items()
            if size - chosen <= silent
        ),
        Fraction(0),
    )
