r"""The verifier as the reward function of other trainers, and as the metric of other evaluations: one line each.

    TRL          GRPOTrainer(reward_funcs=trl_reward, ...)
    verl         custom_reward_function.path=pkg://mathturn_gym.verifier.rewards custom_reward_function.name=verl_reward
    AReaL        RLVRWorkflow(reward_fn="mathturn_gym.verifier.rewards.areal_reward", ...)
    slime        --custom-rm-path mathturn_gym.verifier.rewards.slime_reward
    verifiers    task.rewards: {math: {fn: "mathturn_gym.verifier.rewards:verifiers_reward"}}
    Inspect      Task(scorer=inspect_scorer(), ...)
    lm-eval      process_results: !function utils.lm_eval_results    (utils.py imports the name from here)
    lighteval    LightevalTaskConfig(metrics=[lighteval_metric()], ...)

Rewards for training take the defaults of `Verifier` (`form="evaluated"`, `extract="marked"`); the three metrics of
evaluations judge mathematical equality and find the answer leniently. Others come from `MathReward(...)`, whose methods have the
same names: `GRPOTrainer(reward_funcs=MathReward(extract="boxed").trl_reward)`.

All of them may be called from any thread, event loop, forked process or Ray actor: there are no signals, no process pools,
and nothing to close. None of these packages is imported before it is asked for.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, check_float, install_extra
from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier._verifier import AnswerForm, Verifier, explain
from mathturn_gym.verifier.reading._extraction import ExtractionPolicy, extract

__all__ = [
    "GOLD_COLUMNS",
    "MathReward",
    "accepted_answers",
    "areal_reward",
    "inspect_scorer",
    "lighteval_metric",
    "lm_eval_results",
    "response_text",
    "slime_reward",
    "trl_reward",
    "verifiers_reward",
    "verl_reward",
]

GOLD_COLUMNS = ("gold", "answer", "ground_truth", "target", "label", "solution")
"""Where a data set's accepted answers are looked for, in this order."""


class _SlimeSample(Protocol):
    """What is read of slime's `Sample`."""

    response: str
    label: Any


def response_text(response: Any) -> str:
    """The text of what a model wrote: a text, a message, or a conversation, of which the last message of the assistant counts.

    Raises:
        InvalidValueError: none of these.

    >>> response_text([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}])
    '2'
    """
    if isinstance(response, str):
        return response
    if isinstance(response, Mapping):
        content = response.get("content")
        if content is None:
            return ""  # nothing but tool calls
        if isinstance(content, str):
            return content
        if isinstance(content, Sequence):
            return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    elif isinstance(response, Sequence):
        said = [part for part in response if not isinstance(part, Mapping) or part.get("role") == "assistant"]
        return response_text(said[-1]) if said else ""
    raise InvalidValueError(f"a response must be a text, a message or a list of messages, got {response!r:.200}")


def accepted_answers(gold: Any) -> tuple[str, ...]:
    r"""The accepted answers in what a data set gives: a text, a number, a solution that marks its answer, or several of these.

    Args:
        gold: A text is taken as it is, unless it holds a box, answer tags or `####`: then it is a solution, and what they mark
            is the answer (MATH, GSM8K).

    Raises:
        InvalidValueError: nothing in it is an answer.

    >>> accepted_answers("6*7=42 eggs\n#### 42"), accepted_answers(["\\boxed{x^2}", 3])
    (('42',), ('x^2', '3'))
    """
    answers = () if isinstance(gold, bool) else _answers_in(gold)
    if not answers or not all(answers):
        raise InvalidValueError(f"a gold answer must be a text, a number or several of them, got {gold!r:.200}")
    return answers


def _answers_in(gold: Any) -> tuple[str, ...]:
    if isinstance(gold, str):
        found = extract(gold, "marked")
        marked = found is not None and found.rule in ("box", "tag", "hash")
        return (found.text if found is not None and marked else gold.strip(),)
    if isinstance(gold, numbers.Real):
        return (str(gold),)
    if hasattr(gold, "tolist"):
        return accepted_answers(gold.tolist())
    if isinstance(gold, Sequence) and not isinstance(gold, bytes):
        return tuple(answer for item in gold for answer in accepted_answers(item))
    return ()


@functools.lru_cache(maxsize=64)
def _verifier(form: AnswerForm, timeout: float, memory_mb: int, workers: int, rest: tuple[Any, ...]) -> Verifier:
    """One verifier for all rewards with the same settings: what it remembers and its workers are shared."""
    policy, rel_tol, decimals = rest
    return Verifier(form, timeout, memory_mb, workers, extract=policy, rel_tol=rel_tol, decimals=decimals)


@dataclass(frozen=True)
class MathReward:
    r"""The verifier with its settings, in the shapes that other trainers and evaluations call.

    An instance can be pickled, and used from any thread, event loop or forked process.

    Args:
        form: As for `Verifier`.
        extract: As for `Verifier`.
        timeout: As for `Verifier`.
        memory_mb: As for `Verifier`.
        workers: As for `Verifier`.
        rel_tol: As for `Verifier`.
        decimals: As for `Verifier`.
        gold: Names of the columns that may hold the accepted answer; the first that a data set has counts.
        right: What a right answer is worth.
        wrong: What anything else is worth, undecided included.

    Raises:
        InvalidValueError: an argument outside what is allowed.

    >>> MathReward(extract="boxed", wrong=-1.0).trl_reward(completions=["\\boxed{7}", "It is 7."], answer=["7", "7"])
    [1.0, -1.0]
    """

    form: AnswerForm = "evaluated"
    extract: ExtractionPolicy = "marked"
    timeout: float = 1.0
    memory_mb: int = 1024
    workers: int = 2
    rel_tol: float = 0.0
    decimals: int | None = None
    gold: str | Sequence[str] = GOLD_COLUMNS
    right: float = 1.0
    wrong: float = 0.0

    def __post_init__(self) -> None:
        """Checks the settings now, in the process that was given them."""
        for name in ("right", "wrong"):
            check_float(name, getattr(self, name), low=-1e9, high=1e9)
        self.verifier  # noqa: B018

    @property
    def verifier(self) -> Verifier:
        """The verifier with these settings, which all rewards of this process with the same settings share."""
        rest = (self.extract, self.rel_tol, self.decimals)
        return _verifier(self.form, self.timeout, self.memory_mb, self.workers, rest)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in which the accepted answer is looked for."""
        return (self.gold,) if isinstance(self.gold, str) else tuple(self.gold)

    def score(self, verdict: Verdict) -> float:
        """What a verdict is worth."""
        return self.right if verdict.correct else self.wrong

    def gold_of(self, row: Mapping[str, Any]) -> Any:
        """The accepted answer of a row (or of a batch's columns).

        Raises:
            InvalidValueError: the row has none of the columns of `gold`.
        """
        for name in self.columns:
            if row.get(name) is not None:
                return row[name]
        raise InvalidValueError(
            f"no accepted answer: the row has {', '.join(map(str, row)) or 'no columns'}, and none of them is "
            f"{', '.join(self.columns)}; name yours with MathReward(gold=...)"
        )

    def trl_reward(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        *,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """TRL's `reward_funcs`: rewards of completions, None for rows whose gold is None (TRL leaves them out).

        Args:
            prompts: Not used.
            completions: Texts, or lists of messages.
            log_extra: TRL's; gets the answer that was found and the reason, for the table of completions.
            log_metric: TRL's; gets the share of answers that stayed undecided.
            columns: The data set's columns, one entry a completion.

        Raises:
            InvalidValueError: no column holds the accepted answers, or one entry is no answer.
        """
        golds = self.gold_of(columns)
        places = [index for index, gold in enumerate(golds) if gold is not None]
        verdicts = self.verifier.verify_batch(
            [response_text(completions[index]) for index in places],
            [accepted_answers(golds[index]) for index in places],
        )
        rewards: list[float | None] = [None] * len(completions)
        rows: list[Verdict | None] = [None] * len(completions)
        for index, verdict in zip(places, verdicts, strict=True):
            rewards[index], rows[index] = self.score(verdict), verdict
        if log_extra is not None:
            log_extra("answer", [None if row is None else row.answer for row in rows])
            log_extra("verdict", [None if row is None else f"{row.status.value}: {row.reason}" for row in rows])
        if log_metric is not None and verdicts:
            undecided = sum(verdict.status is Status.UNDECIDED for verdict in verdicts)
            log_metric("verifier/undecided", undecided / len(verdicts))
        return rewards

    def verl_reward(
        self,
        data_source: str | None = None,
        solution_str: str = "",
        ground_truth: Any = None,
        extra_info: Any = None,
        **_: Any,
    ) -> dict[str, float | str]:
        """Verl's `compute_score`: `score` and `acc`, and for its logs `undecided` (0 or 1), `pred` and `reason`."""
        verdict = self.verifier.verify(solution_str, accepted_answers(ground_truth))
        return {
            "score": self.score(verdict),
            "acc": float(verdict.correct),
            "undecided": float(verdict.status is Status.UNDECIDED),
            "pred": verdict.answer or "",
            "reason": verdict.reason,
        }

    def areal_reward(
        self,
        prompt: Any = None,
        completions: Any = "",
        prompt_ids: Any = None,
        completion_ids: Any = None,
        **columns: Any,
    ) -> float:
        """AReaL's `reward_fn`; it runs in AReaL's own process pool."""
        gold = accepted_answers(self.gold_of(columns))
        return self.score(self.verifier.verify(response_text(completions), gold))

    async def slime_reward(
        self, args: Any, sample: _SlimeSample | Sequence[_SlimeSample], **_: Any
    ) -> float | list[float]:
        """Slime's `--custom-rm-path`: the reward of a sample, or those of a group with `--group-rm`."""
        if isinstance(sample, Sequence):
            return [await self._slime(one) for one in sample]
        return await self._slime(sample)

    async def _slime(self, sample: _SlimeSample) -> float:
        return self.score(await self.verifier.averify(sample.response, accepted_answers(sample.label)))

    async def verifiers_reward(self, task: Any, trace: Any) -> float:
        """Verifiers' reward function (v1): the last reply of the trace against the answer in the task's data."""
        data = task.data
        row = {name: getattr(data, name, None) for name in self.columns}
        return self.score(await self.verifier.averify(trace.last_reply, accepted_answers(self.gold_of(row))))

    def lm_eval_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        """lm-eval's `process_results`: `exact_match`, as its own mathematics tasks call it, of the first result."""
        first = results[0]
        text = first if isinstance(first, str) else first[0]
        return {"exact_match": self.score(self.verifier.verify(text, accepted_answers(self.gold_of(doc))))}

    def inspect_scorer(self) -> Any:
        """A scorer for Inspect: correct, incorrect or no answer, with the answer, the explanation and the verdict's fields.

        Raises:
            MissingDependencyError: inspect_ai is not installed.
        """
        try:
            from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, Score, accuracy, scorer, stderr
        except ImportError as error:
            raise MissingDependencyError(f"inspect_scorer needs inspect_ai: {install_extra('inspect')}") from error
        values = {Status.RIGHT: CORRECT, Status.NO_ANSWER: NOANSWER}

        @scorer(metrics=[accuracy(), stderr()], name="mathturn")  # type: ignore[untyped-decorator]
        def mathturn() -> Any:
            async def score(state: Any, target: Any) -> Any:
                verdict = await self.verifier.averify(state.output.completion, accepted_answers(list(target)))
                return Score(
                    value=values.get(verdict.status, INCORRECT),
                    answer=verdict.answer,
                    explanation=explain(verdict),
                    metadata={name: getattr(verdict, name) for name in ("reason", "tier", "rule")}
                    | {"status": verdict.status.value},
                )

            return score

        return mathturn()

    def lighteval_metric(self, name: str = "mathturn") -> Any:
        """A metric for lighteval: the share of a document's generations that are right.

        Raises:
            MissingDependencyError: lighteval is not installed.
        """
        try:
            from lighteval.metrics.metrics_sample import SampleLevelComputation
            from lighteval.metrics.utils.metric_utils import SampleLevelMetric
            from lighteval.tasks.requests import SamplingMethod
        except ImportError as error:
            raise MissingDependencyError("lighteval_metric needs lighteval: pip install lighteval") from error
        reward = self

        class Computation(SampleLevelComputation):  # type: ignore[misc]  # no types
            def compute(self, doc: Any, model_response: Any, **_: Any) -> float:
                gold = accepted_answers(doc.get_golds())
                texts = list(model_response.final_text)
                verdicts = reward.verifier.verify_batch(texts, [gold] * len(texts))
                return sum(map(reward.score, verdicts)) / len(verdicts)

        return SampleLevelMetric(
            metric_name=name,
            higher_is_better=True,
            category=SamplingMethod.GENERATIVE,
            sample_level_fn=Computation(),
            corpus_level_fn=_mean,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_TRAINING = MathReward()
_EVALUATION = MathReward(form="equivalent", extract="lenient")

trl_reward = _TRAINING.trl_reward
verl_reward = _TRAINING.verl_reward
areal_reward = _TRAINING.areal_reward
slime_reward = _TRAINING.slime_reward
verifiers_reward = _TRAINING.verifiers_reward
lm_eval_results = _EVALUATION.lm_eval_results
inspect_scorer = _EVALUATION.inspect_scorer
lighteval_metric = _EVALUATION.lighteval_metric
