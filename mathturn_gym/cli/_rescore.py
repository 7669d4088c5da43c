"""`mathturn verify --file` on episodes and evaluation logs: every answer judged again, and what that changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from mathturn_gym.base.files import check_not_sparse
from mathturn_gym.errors import InvalidValueError, ProblemFileError

if TYPE_CHECKING:
    from mathturn_gym.types import Verdict
    from mathturn_gym.verifier import Verifier
    from mathturn_gym.verifier.judge import JudgedVerifier


_STATUSES: Final = ("right", "wrong", "no_answer", "undecided", "unknown")  # the order of rows and columns
Judge = Callable[[Sequence["Answer"]], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a file, and what was said of it."""

    id: str  # what tells it apart in its file
    response: str  # the text
    gold: tuple[str, ...]  # the accepted answers
    kind: str = "response"  # `response`, or `answer` where the text is the answer
    # What the file says of it: `status`, and perhaps `answer` and `reason`; None where it says nothing.
    recorded: dict[str, Any] | None = None
    prompt: str = ""  # the problem's text, "" where the file has none; a judge is shown it


def is_log(path: Path) -> bool:
    """Whether a file or folder holds episodes or an evaluation's log rather than rows with `response` and `gold`."""
    from mathturn_gym.show.view.sources import holds_episodes

    # JSON lines may be episodes, a trainer's log or plain rows: only their first line tells.
    if path.name.endswith(".jsonl") and path.is_file():
        try:
            check_not_sparse(path)
            return holds_episodes(path)
        except OSError as error:
            raise ProblemFileError(f"{path} cannot be read: {error}") from error
    return path.is_dir() or path.name.endswith((".jsonl.gz", ".parquet", ".eval", ".json"))


def read_answers(path: Path) -> tuple[list[Answer], list[str]]:
    """The answers in a file or folder of episodes or of another trainer's log, and a line for each one left out."""
    from mathturn_gym.show.view.sources import read_sets

    answers: list[Answer] = []
    left_out: list[str] = []
    for one in read_sets(path, path.name):
        left_out += one.left_out
        for number, episode in enumerate(one.episodes):
            name = f"{episode.problem_id}#{number if episode.index is None else episode.index}"
            asked = next((message.text or "" for message in episode.messages if message.role == "user"), "")
            said = [message for message in episode.messages if message.role == "assistant"]
            for turn, message in enumerate(said):
                verdict = message.verdict
                # Without gold_in_info, the verdicts of an episode may still have its accepted answer.
                gold = episode.gold or (() if verdict is None or not verdict.gold else (verdict.gold,))
                if message.text is None or not gold:
                    what = "no accepted answer" if message.text is not None else "token ids alone, and no text"
                    left_out.append(f"{name}, turn {turn}: {what}")
                    continue
                # What a log says of single turns comes before what it says of the episode.
                recorded = None
                if verdict is not None:
                    recorded = {"status": verdict.status.value, "answer": verdict.answer, "reason": verdict.reason}
                # Of several turns, nothing says which one was right.
                elif len(said) == 1 and episode.solved is not None:
                    recorded = {"status": "right" if episode.solved else "wrong"}
                answers.append(Answer(f"{name}/{turn}", message.text, tuple(gold), recorded=recorded, prompt=asked))
    if not answers:
        raise ProblemFileError(
            f"{path} holds no answer that can be judged again"
            + (f": {left_out[0]} (and {len(left_out) - 1} more)" if left_out else "")
            + "; episodes keep the accepted answer with gold_in_info=True"
        )
    return answers, left_out


def compared_with(name: str, verifier: Verifier) -> Judge:
    """What is compared with: `recorded`, a policy, a form, or another verifier.

    `recorded` is what the file says; other names are where an answer may stand, forms, and verifiers that `--audit`
    knows.
    """
    from mathturn_gym.verifier import Verifier
    from mathturn_gym.verifier.audit import check_verifier_name

    if name == "recorded":
        return _recorded
    # One setting differs from the verifier that is asked for, so that each change is due to it.
    settings: dict[str, Any] = {"form": verifier.form, "extract": verifier.extract}
    if name in ("boxed", "marked", "lenient"):
        settings["extract"] = name
    elif name in ("evaluated", "equivalent"):
        settings["form"] = name
    else:
        check_verifier_name(name)
        return lambda answers: _other(name, answers, verifier.form)
    other = Verifier(timeout=verifier.timeout, memory_mb=verifier.memory_mb, workers=verifier.workers, **settings)
    return lambda answers: judged(other, answers)


def judged(verifier: Verifier | JudgedVerifier, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """What a verifier of ours says, in the order of the answers."""
    return [
        {"status": one.status.value, "answer": one.answer, "reason": one.reason, "rule": one.rule}
        for one in verdicts_of(verifier, answers)
    ]


def verdicts_of(verifier: Verifier | JudgedVerifier, answers: Sequence[Answer]) -> list[Verdict]:
    """Verdicts of answers of both kinds, in their order."""
    from mathturn_gym.verifier import Verifier

    found: dict[int, Verdict] = {}
    # A file may mix both kinds; `verify_batch` takes one at a time.
    for kind in ("response", "answer"):
        places = [index for index, one in enumerate(answers) if one.kind == kind]
        texts, golds = [answers[i].response for i in places], [answers[i].gold for i in places]
        if isinstance(verifier, Verifier):
            verdicts = verifier.verify_batch(texts, golds, kind=kind)
        else:
            prompts = [answers[i].prompt for i in places]
            verdicts = verifier.verify_batch(texts, golds, kind=kind, prompts=prompts)
        found.update(zip(places, verdicts, strict=True))
    return [found[place] for place in range(len(answers))]


def _recorded(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [one.recorded or {"status": "unknown"} for one in answers]


def _other(name: str, answers: Sequence[Answer], form: str) -> list[dict[str, Any]]:
    """What a verifier of somebody else says; it knows right and wrong, and sometimes hangs."""
    from mathturn_gym.verifier.audit import Case, run_audit

    # In a process of its own: somebody else's verifier may hang, or end it.
    report = run_audit(name, [Case(one.gold[0], one.response, True, one.kind) for one in answers], form=form)
    says = {True: "right", False: "wrong", None: "undecided"}
    found = [{"status": says[value]} for value in report.found]
    # Several accepted answers are asked for one by one.
    for place in (i for i, one in enumerate(answers) if len(one.gold) > 1 and found[i]["status"] != "right"):
        one = answers[place]
        again = _other(name, [replace(one, gold=(gold,)) for gold in one.gold[1:]], form)
        if any(verdict["status"] == "right" for verdict in again):
            found[place] = {"status": "right"}
    return found


def changes_table(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], names: tuple[str, str]) -> Table:
    """How often a status became another: a row for each before, a column for each after."""
    if len(before) != len(after):
        raise InvalidValueError(f"before and after must be as many: {len(before)} and {len(after)}")
    counts = Counter((one["status"], other["status"]) for one, other in zip(before, after, strict=True))
    rows = [status for status in _STATUSES if any(one == status for one, _ in counts)]
    columns = [status for status in _STATUSES if any(other == status for _, other in counts)]
    table = Table(title=f"{names[0]} (rows) and {names[1]} (columns)")
    table.add_column("")
    for status in columns:
        table.add_column(status, justify="right")
    for status in rows:
        table.add_row(status, *(str(counts[status, other]) for other in columns))
    return table
