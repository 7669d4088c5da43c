"""Episodes as Inspect's logs (`.eval`), and back.

    prompt ─► user message        completion k ─► assistant message, ModelEvent (with log-probs), ScoreEvent
                                  feedback k   ─► user message

What Inspect has no field for travels in metadata: a message's ids, versions and log-probs in the message's, the rest of
the episode in the sample's. `from_inspect` reads only those, so that a round trip keeps every bit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mathturn_gym.base.text import TokenTexts
from mathturn_gym.episodes.trajectories.records import (
    SCHEMA,
    SCHEMA_VERSION,
    build_episode,
    episode_to_record,
    facts_to_record,
    token_arrays,
)
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, MissingDependencyError, install_extra
from mathturn_gym.types import Episode, Turn, Verdict

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage, ModelOutput
    from inspect_ai.scorer import Score

_KEY: Final = "mathturn_gym"
# Where an episode stood: Inspect gives samples back in another order.
_PLACE: Final = "mathturn_gym.place"
_SCORER: Final = "mathturn"
_PER_TOKEN: Final = ("ids", "logprobs", "versions")


def to_inspect(
    episodes: Sequence[Episode],
    path: str | os.PathLike[str] | None = None,
    *,
    model: str = "mathturn_gym/policy",
    task: str = "mathturn_gym",
    tokenizer: Any = None,
) -> EvalLog:
    """Episodes as a log that `inspect view` opens: one sample per episode.

    Turns are messages, each with a `ModelEvent` that has its log-probs and an intermediate `ScoreEvent`; the sample's
    score is 1 where some turn was right. Episodes on one problem are epochs of one sample.

    Args:
        episodes: Any number.
        path: Write the log there too; it must end in `.eval` (or `.json`, larger and slower).
        model: What the log calls the policy.
        task: What it calls the task.
        tokenizer: A Hugging Face tokenizer that says what the ids mean where log-probs are shown; None shows the ids.

    Raises:
        MissingDependencyError: inspect_ai is not installed.
        InvalidEpisodeError: metadata that JSON would change.
        InvalidValueError: another suffix.
    """
    _require()
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
        write_eval_log,
    )

    target = None if path is None else _checked(path)
    texts = TokenTexts(tokenizer)
    seen: Counter[str] = Counter()
    samples: list[EvalSample] = []
    for episode in episodes:
        # Inspect calls repetitions of one sample epochs, and wants them numbered.
        seen[episode.problem_id] += 1
        sample = _sample(episode, seen[episode.problem_id], model, texts)
        sample.metadata[_PLACE] = len(samples)
        samples.append(sample)
    now = datetime.now(UTC).isoformat()
    solved = sum(episode.solved for episode in episodes)
    metrics = {"accuracy": EvalMetric(name="accuracy", value=solved / len(episodes))} if episodes else {}
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=now,
            task=task,
            task_id=task,
            model=model,
            dataset=EvalDataset(name=task, samples=len(seen), sample_ids=list(seen)),
            config=EvalConfig(epochs=max(seen.values(), default=1)),
            metadata={_KEY: {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}},
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[EvalScore(name=_SCORER, scorer=_SCORER, metrics=metrics)],
        ),
        stats=EvalStats(started_at=now, completed_at=now),
        samples=samples,
    )
    if target is not None:
        write_eval_log(log, str(target))
    return log


def from_inspect(log: EvalLog | str | os.PathLike[str]) -> list[Episode]:
    """The episodes of a log that `to_inspect` made.

    Args:
        log: The log, or its file.

    Raises:
        MissingDependencyError: inspect_ai is not installed.
        InvalidValueError: no log of Inspect, or one that `to_inspect` did not make.
        InvalidEpisodeError: a sample that is no longer an episode; it is named.
    """
    _require()
    from inspect_ai.log import EvalLog

    found: Any = log
    who = str(log)
    if isinstance(log, EvalLog):  # of which there is no more to say than its task
        who = f"the log of task {found.eval.task!r}"
    else:
        found = read_log(log)
    made = (found.eval.metadata or {}).get(_KEY)
    if made != {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}:
        raise InvalidValueError(
            f"{who} was not made by to_inspect (or by another version): its ids are not known; `mathturn view` shows any"
            " log of Inspect"
        )
    samples = [(_place(sample, who), sample) for sample in found.samples or []]
    return [_episode(sample, who) for _, sample in sorted(samples, key=lambda one: one[0])]


def read_log(path: str | os.PathLike[str]) -> EvalLog:
    """A log of Inspect, as its own package reads it.

    Raises:
        MissingDependencyError: inspect_ai is not installed.
        InvalidValueError: the file is no such log.
    """
    _require()
    from inspect_ai.log import read_eval_log

    try:
        return read_eval_log(str(path), resolve_attachments=True)
    except Exception as error:  # archives, compression, JSON and pydantic have classes of their own
        raise InvalidValueError(f"{path} is no log of Inspect: {type(error).__name__}: {error}") from error


def _place(sample: EvalSample, who: str) -> int:
    """Where an episode stood among the others."""
    place = sample.metadata.get(_PLACE, 0)
    if not isinstance(place, int):
        raise InvalidEpisodeError(f"{who}, sample {sample.id!r}: its {_PLACE} must be a whole number, got {place!r}")
    return place


def _sample(episode: Episode, epoch: int, model: str, texts: TokenTexts) -> EvalSample:
    from inspect_ai.event import Event, ModelEvent, ScoreEvent
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageUser, GenerateConfig, ModelOutput
    from inspect_ai.scorer import Score

    record = episode_to_record(episode)
    gold = list(episode.gold)
    messages: list[ChatMessage] = [
        ChatMessageUser(content=episode.prompt, source="input", metadata=_part(record, 0, episode.prompt_length))
    ]
    events: list[Event] = []
    # An episode whose prompt did not fit has no turn, and Inspect wants an output.
    output = ModelOutput(model=model)
    ends = [*episode.turn_spans[1:, 0].tolist(), len(episode.ids)]
    for turn, (start, end), follows in zip(episode.turns, episode.turn_spans.tolist(), ends, strict=False):
        output = _output(turn, model, texts, _part(record, start, end))
        # As `inspect view` shows it: what the completion could have had.
        config = GenerateConfig(max_tokens=turn.budget, logprobs=True)
        events.append(
            ModelEvent(model=model, input=list(messages), tools=[], tool_choice="none", config=config, output=output)
        )
        events.append(ScoreEvent(score=_score(turn), target=gold, intermediate=True, scorer=_SCORER))
        messages.append(output.choices[0].message)
        # Ids behind the last completion belong to somebody: without a message they would be lost.
        if turn.feedback or follows > end:
            messages.append(ChatMessageUser(content=turn.feedback, metadata=_part(record, end, follows)))
    reward = float(episode.rewards.sum())
    return EvalSample(
        id=episode.problem_id,
        epoch=epoch,
        input=episode.prompt,
        target=gold,
        messages=messages,
        events=events,
        output=output,
        model_usage={model: output.usage} if output.usage is not None else {},
        scores={_SCORER: Score(value=float(episode.solved), answer=_answer(episode), metadata={"reward": reward})},
        metadata={_KEY: facts_to_record(episode)},
    )


def _answer(episode: Episode) -> str | None:
    """The answer of the last turn."""
    return episode.verdicts[-1].answer if episode.num_turns else None


def _part(record: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """A message's share of the episode's tokens."""
    return {name: record[name][start:end] for name in _PER_TOKEN}


def _output(turn: Turn, model: str, texts: TokenTexts, part: dict[str, Any]) -> ModelOutput:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        Logprob,
        Logprobs,
        ModelOutput,
        ModelUsage,
    )

    message = ChatMessageAssistant(content=turn.response or "", source="generate", model=model, metadata=part)
    known = [
        Logprob(token=_said(texts, token), logprob=logprob)
        for token, logprob in zip(turn.ids.tolist(), turn.logprobs.tolist(), strict=True)
        if logprob == logprob
    ]
    # Log-probs are one per token or none at all: a reader counts on it.
    logprobs = Logprobs(content=known) if known and len(known) == len(turn.ids) else None
    choice = ChatCompletionChoice(
        message=message, stop_reason="max_tokens" if turn.truncated else "stop", logprobs=logprobs
    )
    read, written = len(turn.context), len(turn.ids)
    usage = ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
    return ModelOutput(model=model, choices=[choice], usage=usage)


def _said(texts: TokenTexts, token: int) -> str:
    text = texts(token)
    return f"⟨{token}⟩" if text is None else text


def _score(turn: Turn) -> Score:
    from inspect_ai.scorer import Score

    verdict: Verdict = turn.verdict
    return Score(
        value=verdict.value,
        answer=verdict.answer,
        explanation=f"{verdict.status.value}: {verdict.reason}" if verdict.reason else verdict.status.value,
        metadata={"turn": turn.index, "reward": turn.reward, "tier": verdict.tier},
    )


def _episode(sample: EvalSample, log: str) -> Episode:
    who = f"{log}, sample {sample.id!r}, epoch {sample.epoch}"
    facts = sample.metadata.get(_KEY)
    if not isinstance(facts, dict):
        raise InvalidEpisodeError(f"{who}: its metadata has no {_KEY!r}")
    columns: dict[str, list[Any]] = {name: [] for name in _PER_TOKEN}
    for message in sample.messages:
        for name, column in columns.items():
            column += _own(message, name, who)
    # Messages do not say whose their ids are: the spans of the turns do.
    mask = np.zeros(len(columns["ids"]), np.int64)
    try:
        for start, end in facts["turn_spans"]:
            mask[start:end] = 1
        return build_episode(facts, **token_arrays({**columns, "loss_mask": mask.tolist()}))
    except (InvalidEpisodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidEpisodeError(f"{who}: {error}") from error


def _own(message: ChatMessage, name: str, who: str) -> list[Any]:
    values = (message.metadata or {}).get(name)
    if not isinstance(values, list):
        raise InvalidEpisodeError(f"{who}: a message's metadata has no {name}")
    return values


def _checked(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix not in (".eval", ".json"):
        raise InvalidValueError(f"path must end in .eval or .json, got {target.name!r}")
    return target


def _require() -> None:
    try:
        import inspect_ai.log  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"Inspect's logs need inspect_ai: {install_extra('inspect')}") from error
