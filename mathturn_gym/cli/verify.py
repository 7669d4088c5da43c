"""`mathturn verify`: judge one answer, a file of answers, or a verifier."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from mathturn_gym.base.files import parse_json, read_text, storage_errors, write_atomically
from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.cli._options import grouped
from mathturn_gym.cli._rescore import Answer, changes_table, compared_with, is_log, judged, read_answers, verdicts_of
from mathturn_gym.cli.report import counting
from mathturn_gym.errors import InvalidValueError, ProblemFileError

if TYPE_CHECKING:
    from mathturn_gym.types import Verdict
    from mathturn_gym.verifier import Verifier
    from mathturn_gym.verifier.audit import AuditReport, Case
    from mathturn_gym.verifier.judge import JudgedVerifier


_CHUNK = 256  # rows of one call: enough to keep the workers busy, few enough to show progress
_AUDIT_PAGES: Final = (".json", ".html", ".md")


@grouped(
    {
        "One answer": ("gold", "kind", "as_json"),
        "A file of answers, or of episodes": ("file", "against", "show_changed", "out"),
        "Audit: verifiers on labeled cases": ("audit", "suite", "verifier", "cases", "limit", "show_wrong"),
        "The verifier": ("form", "extract", "rel_tol", "decimals", "tolerance", "timeout", "memory_mb", "workers"),
        "Judge: decides where the verifier cannot": (
            "judge",
            "judge_model",
            "judge_key_env",
            "judge_budget",
            "judge_cache",
            "judge_against",
        ),
    }
)
def verify(
    response: Annotated[str | None, typer.Argument(help="What the model wrote.")] = None,
    gold: Annotated[list[str] | None, typer.Option(help="An accepted answer; may be given several times.")] = None,
    kind: Annotated[str, typer.Option(help="response: find the answer in the text; answer: the text is it.")] = (
        "response"
    ),
    form: Annotated[
        str | None, typer.Option(help="evaluated (the default) or equivalent (the default of --audit).")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds of symbolic work that a case may take.")] = 1.0,
    memory_mb: Annotated[int, typer.Option(help="Address space of a symbolic worker, MiB.")] = 1024,
    workers: Annotated[int, typer.Option(help="Symbolic workers.")] = 2,
    extract: Annotated[str, typer.Option(help="Where the answer may stand: boxed, marked or lenient.")] = "marked",
    rel_tol: Annotated[float, typer.Option(help="Relative difference at which numbers count as equal.")] = 0.0,
    decimals: Annotated[int | None, typer.Option(help="Compare numbers rounded to this many places.")] = None,
    tolerance: Annotated[
        str, typer.Option(help="exact; or rounded: a decimal counts that is the other value correctly rounded.")
    ] = "exact",
    file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines with response, gold and perhaps kind; or episodes, or a trainer's or evaluation's log."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="With --file: what changes between this and the verifier asked for: recorded, boxed, marked, lenient, "
            "evaluated, equivalent, math-verify, trl or package.module:function. Logs: recorded."
        ),
    ] = None,
    show_changed: Annotated[int, typer.Option(help="With --against: number of changed verdicts to print.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Where verdicts (JSON lines) or an audit (.json, .md, .html) go.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Run labeled cases through verifiers.")] = False,
    suite: Annotated[
        str, typer.Option(help="With --audit: suite, or classes: answers that say more, or less, than their value.")
    ] = "suite",
    verifier: Annotated[
        list[str] | None,
        typer.Option(
            help="With --audit: mathturn, mathturn-boxed, mathturn-lenient, math-verify, trl, verifiers, inspect, lighteval, or "
            "package.module:function; several times; all that are installed by default."
        ),
    ] = None,
    cases: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --audit: a file of labeled cases beside the suite of the package; --file: instead of it."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="With --audit: number of cases to use, spread over the file.")
    ] = None,
    show_wrong: Annotated[int, typer.Option(help="With --audit: number of misjudged cases to print per verifier.")] = 0,
    judge: Annotated[
        str | None,
        typer.Option(
            help="What decides where the verifier cannot: the http(s) URL of an OpenAI-compatible server (with "
            "--judge-model), or package.module:function. None by default."
        ),
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="The judge's name on its server.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds its API key.")] = None,
    judge_budget: Annotated[int, typer.Option(help="The most questions that it is asked.")] = 1000,
    judge_cache: Annotated[Path | None, typer.Option(help="A file in which its answers are remembered.")] = None,
    judge_against: Annotated[
        str | None,
        typer.Option(
            help="Ask it also where this verifier says otherwise: a policy, a form, math-verify, trl or "
            "package.module:function."
        ),
    ] = None,
) -> None:
    r"""Judge an answer, a file of answers, or a verifier.

    Examples: `mathturn verify 'So it is \boxed{0.5}.' --gold 1/2`, `mathturn verify --file answers.jsonl --out
    verdicts.jsonl`, `mathturn verify --file runs/demo/episodes.jsonl --extract lenient --against recorded`,
    `mathturn verify --audit --verifier mathturn --verifier math-verify`.
    """
    if audit:
        if response is not None:
            raise InvalidValueError("--audit takes its cases from the package or from --file, not from RESPONSE")
        _audit(suite, cases or [], file, verifier or [], form or "equivalent", limit, out, show_wrong)
        return
    from mathturn_gym.verifier import Verifier

    plain = Verifier(
        form or "evaluated",  # type: ignore[arg-type]  # checked there
        timeout,
        memory_mb,
        workers,
        extract=extract,  # type: ignore[arg-type]  # checked there
        rel_tol=rel_tol,
        decimals=decimals,
        tolerance=tolerance,  # type: ignore[arg-type]
    )
    options = {"model": judge_model, "key_env": judge_key_env, "cache": judge_cache, "against": judge_against}
    with _with_judge(plain, judge, judge_budget, **options) as chosen:
        if file is not None:
            if response is not None or gold:
                raise InvalidValueError("give either RESPONSE with --gold, or --file")
            log = is_log(file)
            if log or against is not None:
                _rescore(chosen, file, log, against or "recorded", out, kind, show_changed)
            else:
                _judge_file(chosen, file, out, kind)
            _tell_share(chosen)
            return
        if against is not None:
            raise InvalidValueError("--against needs --file")
        if response is None or not gold:
            raise InvalidValueError("RESPONSE and --gold are needed (or --file, or --audit)")
        verdict = chosen.verify(response, gold, kind=kind)  # type: ignore[arg-type]  # checked there
    _print_verdict(verdict, as_json)
    _tell_share(chosen)


def _with_judge(verifier: Verifier, judge: str | None, budget: int, **options: Any) -> Verifier | JudgedVerifier:
    """The verifier, with the judge that the command line names."""
    given = [f"--judge-{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if judge is None:
        if given:
            raise InvalidValueError(f"{', '.join(given)} needs --judge")
        return verifier
    from mathturn_gym.verifier.judge import JudgedVerifier, ServerJudge

    asked: ServerJudge | str = judge
    if judge.startswith(("http://", "https://")):
        if options["model"] is None:
            raise InvalidValueError("--judge with a URL needs --judge-model, the model's name on that server")
        asked = ServerJudge(judge, options["model"], api_key_env=options["key_env"])
    # A function knows its own model and key: options that nothing reads are refused.
    elif options["model"] is not None or options["key_env"] is not None:
        raise InvalidValueError("--judge-model and --judge-key-env are for a --judge that is a server's URL")
    against = None if options["against"] is None else _Against(options["against"], verifier)
    return JudgedVerifier(asked, verifier, against=against, budget=budget, cache=options["cache"])


class _Against:
    """The other verifier of `--judge-against`, called with many answers at once."""

    def __init__(self, name: str, verifier: Verifier) -> None:
        self._judge = compared_with(name, verifier)

    def verify_batch(self, responses: Sequence[str], golds: Sequence[str | Sequence[str]]) -> list[bool]:
        answers = [
            Answer(str(place), response, (gold,) if isinstance(gold, str) else tuple(gold))
            for place, (response, gold) in enumerate(zip(responses, golds, strict=True))
        ]
        return [verdict["status"] == "right" for verdict in self._judge(answers)]


def _tell_share(verifier: Verifier | JudgedVerifier) -> None:
    """What a judge decided, to standard error; nothing where none was named."""
    from mathturn_gym.verifier.judge import JudgedVerifier

    if isinstance(verifier, JudgedVerifier):
        say(terminal(stderr=True), f"judge {verifier.judge_name} {verifier.counts}")


def _record(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON types."""
    return {
        "status": verdict.status.value,
        "correct": verdict.correct,
        "reason": verdict.reason,
        "answer": verdict.answer,
        "span": verdict.span,
        "gold": verdict.gold,
        "tier": verdict.tier,
        "rule": verdict.rule,
        "score": verdict.score,
        "seconds": round(verdict.seconds, 6),
    }


def _print_verdict(verdict: Verdict, as_json: bool) -> None:
    from mathturn_gym.verifier import explain

    if as_json:
        typer.echo(json.dumps(_record(verdict)))
        return
    color = {"right": "green", "wrong": "red"}.get(verdict.status.value, "yellow")
    terminal().print(explain(verdict), style=color, markup=False, highlight=False, soft_wrap=True)


def _rows(file: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of a file, each with `response`, `gold` and `kind`."""
    try:
        # Not `splitlines`: a response may hold U+2028, which ends no line of JSON.
        lines = read_text(file).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemFileError(f"{file} cannot be read: {error}") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise ProblemFileError(f"{file}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("response"), str):
            raise ProblemFileError(f"{file}, line {number}: response must be a text")
        gold = row.get("gold")
        listed = [gold] if isinstance(gold, str) else gold
        if not isinstance(listed, list) or not listed or not all(isinstance(g, str) and g.strip() for g in listed):
            raise ProblemFileError(f"{file}, line {number}: gold must be a text or several, got {gold!r}")
        if row.setdefault("kind", kind) not in ("response", "answer"):
            raise ProblemFileError(f"{file}, line {number}: kind must be 'response' or 'answer', got {row['kind']!r}")
        rows.append(row)
    return rows


def _judge_file(judge: Verifier | JudgedVerifier, file: Path, out: Path | None, kind: str) -> None:
    """Verdicts of a file's rows, in their order, to `out` or to standard output as they come."""
    rows = _rows(file, kind)
    console = terminal(stderr=True)
    counts: dict[str, int] = {}
    # Opened before anything is judged: a folder that is not there must not cost hours of work.
    with storage_errors(out or file):
        stream = out.open("w", encoding="utf-8") if out is not None else None
    try:
        with counting(console) as progress:
            task = progress.add_task("verify", total=len(rows))
            for start in range(0, len(rows), _CHUNK):
                chunk = rows[start : start + _CHUNK]
                answers = [_answer(start + at, row) for at, row in enumerate(chunk, 1)]
                for row, verdict in zip(chunk, verdicts_of(judge, answers), strict=True):
                    record = {key: row[key] for key in ("id",) if key in row} | _record(verdict)
                    line = json.dumps(record)
                    # Line by line, so that a reader of standard output sees verdicts as they come.
                    typer.echo(line) if stream is None else stream.write(line + "\n")
                    counts[verdict.status.value] = counts.get(verdict.status.value, 0) + 1
                progress.advance(task, len(chunk))
    finally:
        if stream is not None:
            stream.close()
    console.print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "no rows")


def _rescore(
    judge: Verifier | JudgedVerifier, file: Path, log: bool, name: str, out: Path | None, kind: str, show_changed: int
) -> None:
    """Judges the answers of a file again, and says what changed against what was recorded or what another one says."""
    from mathturn_gym.verifier import Verifier

    plain = judge if isinstance(judge, Verifier) else judge.verifier
    before_of = compared_with(name, plain)
    if log:
        answers, left_out = read_answers(file)
    else:
        answers, left_out = [_answer(number, row) for number, row in enumerate(_rows(file, kind), 1)], []
    before, after = before_of(answers), judged(judge, answers)
    changed = [i for i, (one, other) in enumerate(zip(before, after, strict=True)) if one["status"] != other["status"]]
    if out is not None:
        rows = []
        for one, old, new in zip(answers, before, after, strict=True):
            differs = old["status"] != new["status"]
            rows.append({"id": one.id, "gold": list(one.gold), "before": old, "after": new, "changed": differs})
        write_atomically(out, "".join(json.dumps(row) + "\n" for row in rows))
    console = terminal(soft_wrap=True)
    console.print(changes_table(before, after, (name, f"{plain.extract}, {plain.form}")))
    console.print(f"{len(changed)} of {len(answers)} verdicts changed", highlight=False)
    for index in changed[:show_changed]:
        one, old, new = answers[index], before[index], after[index]
        gold = " or ".join(one.gold)
        say(console, f"{one.id}: {_told(old)} -> {_told(new)}; gold {gold!r:.80}; …{one.response[-120:]!r}")
    for reason in left_out[:3]:
        terminal(stderr=True).print(f"left out: {reason}", markup=False)
    if len(left_out) > 3:
        terminal(stderr=True).print(f"left out: {len(left_out) - 3} more")


def _told(verdict: dict[str, Any]) -> str:
    answer = verdict.get("answer")
    return verdict["status"] if answer is None else f"{verdict['status']} ({answer!r:.60})"


def _answer(number: int, row: dict[str, Any]) -> Answer:
    """A row of a file as an answer, with what the row says of it."""
    gold = row["gold"]
    said = row.get("status")
    if said is None:
        correct = row.get("correct", row.get("label"))
        said = None if not isinstance(correct, bool) else "right" if correct else "wrong"
    golds = (gold,) if isinstance(gold, str) else tuple(gold)
    recorded = None if said is None else {"status": said, "answer": row.get("answer")}
    prompt = row["prompt"] if isinstance(row.get("prompt"), str) else ""
    return Answer(str(row.get("id", f"line {number}")), row["response"], golds, row["kind"], recorded, prompt)


def _audit(
    suite: str,
    files: Sequence[Path],
    alone: Path | None,
    verifiers: list[str],
    form: str,
    limit: int | None,
    out: Path | None,
    show_wrong: int,
) -> None:
    from mathturn_gym.errors import check_int, raise_unknown_name
    from mathturn_gym.verifier.audit import audit_rows, check_verifier_name, installed_verifiers, run_audit

    if form not in ("evaluated", "equivalent"):
        raise_unknown_name("form", form, ["evaluated", "equivalent"])
    # Before the first verifier has run for minutes, not after it.
    for name in verifiers:
        check_verifier_name(name)
    if out is not None and out.suffix not in _AUDIT_PAGES:
        raise InvalidValueError(f"--out of an audit must end in {', '.join(_AUDIT_PAGES)}, got {str(out)!r}")
    cases = _audit_cases(suite, files, alone)
    if limit is not None and limit < len(cases):
        # Spread over the whole file, whose parts hold different kinds of answers.
        step = len(cases) / check_int("limit", limit, low=1)
        cases = [cases[int(index * step)] for index in range(limit)]
    reports: list[AuditReport] = []
    with counting(terminal(stderr=True)) as progress:
        for name in verifiers or installed_verifiers():
            task = progress.add_task(name, total=len(cases))
            reports.append(run_audit(name, cases, form=form, progress=functools.partial(progress.advance, task)))
    table = Table(title="verifiers on labeled cases (shares with 95 % intervals)")
    table.add_column("")
    for report in reports:
        table.add_column(report.verifier, justify="right")
    for row in audit_rows(reports):
        table.add_row(*row)
    terminal().print(table)
    for report in reports:
        for case in report.wrong()[:show_wrong]:
            terminal().print(
                f"{report.verifier}: label {case.label}, gold {case.gold!r}, {case.response[-200:]!r}", markup=False
            )
    if out is not None:
        with storage_errors(out.parent):
            out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, _audit_page(reports, out.suffix))


def _audit_cases(suite: str, files: Sequence[Path], alone: Path | None) -> list[Case]:
    """A suite of the package (`classes`: each class of its own) and the user's files, each case under the source that it names, or its file."""
    from mathturn_gym.verifier.audit import load_cases

    cases = [] if alone is not None else load_cases(suite=suite)
    if suite == "suite":
        # One column for the suite; of `classes`, each class has its own.
        cases = [replace(case, group=suite) for case in cases]
    for file in [alone, *files] if alone is not None else files:
        cases += [replace(case, group=case.group.partition(":")[0] or file.stem) for case in load_cases(file)]
    return cases


def _audit_page(reports: Sequence[AuditReport], suffix: str) -> str:
    """An audit as a file of this kind; JSON has the figures all in all and by source."""
    from mathturn_gym.verifier.audit import audit_html, audit_markdown

    if suffix != ".json":
        return audit_html(reports) if suffix == ".html" else audit_markdown(reports)
    rows = [
        report.summary() | {"sources": {group: part.summary() for group, part in report.by_group().items()}}
        for report in reports
    ]
    return json.dumps(rows, indent=1) + "\n"
