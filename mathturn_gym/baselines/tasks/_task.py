"""Reads and checks task files, and has the two verifiers that tasks of small chat models name."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from mathturn_gym.baselines.algorithms import BaseAlgorithm
from mathturn_gym.baselines.algorithms._registry import algorithm_named
from mathturn_gym.baselines.overrides import merged, nested
from mathturn_gym.baselines.settings import PARTS, RunConfig, part_from_json
from mathturn_gym.env.config import DEFAULT_ENV, EnvConfig
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.types import Status, TurnContext, Verdict

_NUMBER: Final = re.compile(r"-?\d{1,20}")
_SAYS: Final = re.compile(r"(?:[=:≈]|\b(?:is|are))$")
_OPERATORS: Final = tuple("+-*/×÷·^(")


def last_number(response: str, gold: str | Sequence[str]) -> Verdict:
    """Judges the last whole number of a response.

    The built-in verifier takes the equation `4 + 1 = 5` for unfinished work. A small chat model answers sums in this form;
    here the last number is taken for its result.

    Args:
        response: What the model wrote.
        gold: The accepted answer, or several; whole numbers.

    Returns:
        The verdict, with the number as its answer, so that repeated answers can be measured.

    >>> last_number("4 + 1 = 5", "5").answer, last_number("It is 4+1.", "5").status.value, last_number("No idea", "5").reason
    ('5', 'wrong', 'no number')
    """
    numbers = list(_NUMBER.finditer(response))
    if not numbers:
        return Verdict(Status.NO_ANSWER, "no number")
    value = int(numbers[-1][0])
    accepted = [one for one in ((gold,) if isinstance(gold, str) else gold) if _NUMBER.fullmatch(one)]
    match = next((one for one in accepted if int(one) == value), None)
    return Verdict(
        Status.WRONG if match is None else Status.RIGHT,
        "different" if match is None else "equal",
        answer=str(value),
        span=numbers[-1].span(),
        gold=match or (accepted[-1] if accepted else None),
        tier="custom",
        rule="number",
    )


def ended_number(context: TurnContext) -> Verdict:
    """Judges the last number of a turn if the turn was not cut off and says that the number is the result.

    This closes two loopholes that training found. With a small budget, "To solve the equation 7x+8 = 15, we need" is cut off
    at "7x+8 = 1", whose last number is the answer: the policy learned to copy equations. If texts must end, it learned to end
    them at "7x + 8", which is right whenever the answer is 8. So the number must follow "=", ":" or "is", or be the only
    one, and must not be part of a longer formula.

    Args:
        context: The turn. If it used its whole budget, it counts as cut off. If it is judged without tokens (`max_tokens` is
            0), it never does.

    >>> from dataclasses import replace
    >>> import numpy as np
    >>> from mathturn_gym.types import Problem
    >>> turn = TurnContext(Problem("p/1", "Solve 7x+8=15 for x.", "1"), 0, 4, "x = 1", ids=np.arange(4), max_tokens=12)
    >>> ended_number(turn).status.value, ended_number(replace(turn, max_tokens=4)).reason
    ('right', 'cut off')
    >>> ended_number(replace(turn, response="7x + 1")).reason
    'not said to be the result'
    """
    if 0 < context.max_tokens <= len(context.ids):
        return Verdict(Status.NO_ANSWER, "cut off")
    found = last_number(context.response, context.problem.gold)
    if found.span is not None and not _is_said(context.response, *found.span):
        return Verdict(Status.NO_ANSWER, "not said to be the result")
    return found


def _is_said(text: str, start: int, end: int) -> bool:
    """Whether the text around a number says that it is the result."""
    before = text[:start].rstrip(" *$")
    # "7x" and "x +7": a coefficient or an operand is no result.
    if text[end : end + 1].isalpha() or before.endswith(_OPERATORS):
        return False
    return _SAYS.search(before) is not None or len(_NUMBER.findall(text)) == 1


_FOLDER: Final = Path(str(files("mathturn_gym.baselines.tasks")))
_LOG = logging.getLogger(__name__)
_DEFAULT_MODEL: Final = PolicyConfig().model
# By part, the fields that a task's file tunes for its own policy.
_TUNED: Final = {
    "optimization": ("learning_rate", "final_learning_rate"),
    "algorithm": ("entropy_weight", "critic_learning_rate"),
}
_FIGURE: Final = re.compile(r"acc@[1-9]\d*")
_TABLES: Final = ("env", "policy", "budget", "optimization", "evaluation", "sampling")
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "samples")
_KEYS: Final = ("about", "base", "algorithm", "algorithms", "scale", "threads", "save_every", "keep", *_TABLES)


@dataclass(frozen=True, slots=True)
class Task:
    """A task, as read from its file.

    Args:
        name: Name of the package's task, or the stem of the user's file.
        path: The file.
        about: A description in a line or two.
        algorithm: Name of the default algorithm.
        tables: The tables of a run by the part's name, and fields of the run itself.
        algorithms: Settings that were tuned for an algorithm, by its name (or "classic", for all of that kind).
        sampling: Fields of `PolicyConfig` for evaluations, whichever policy is evaluated.
        samples: Episodes per problem of an evaluation.
        scale: By metric ("acc@1"), the value of blind guessing and that of the best possible policy. Comparisons over
            several tasks rescale the metric to 0 and 1 between them.
    """

    name: str
    path: Path
    about: str
    algorithm: str
    tables: Mapping[str, Any]
    algorithms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def env(self) -> EnvConfig:
        """Returns environment and splits."""
        env: EnvConfig = part_from_json("env", self.tables["env"])
        return env

    @property
    def policy(self) -> PolicyConfig:
        """Returns the default policy; if each seed has its own, that of seed 0."""
        policy: PolicyConfig = part_from_json("policy", _of_seed(self.tables, 0).get("policy", {}))
        return policy

    @property
    def trains(self) -> bool:
        """True if the file has a budget; without one, the task is for evaluations and training needs a budget."""
        return "budget" in self.tables

    def config(
        self,
        algorithm: str | BaseAlgorithm | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        budget: Mapping[str, Any] | None = None,
    ) -> RunConfig:
        """Builds the run of an algorithm on this task; "{seed}" in `policy.model` stands for the run's seed.

        Args:
            algorithm: A name, the import path of a class of your own, or an algorithm with its options; None is the
                task's own. A name brings what was tuned for it here; an object has its options already.
            settings: Values by "FIELD" or "PART.FIELD"; they win over the file's.
            budget: Fields of `Budget`, in place of the file's budget; settings of the budget are added to them.

        Raises:
            InvalidValueError: an unknown name or setting (the nearest is suggested), a value outside its range, or no
                budget, neither in the file nor here.

        >>> load_task("lins").config("grpo", {"clip": 0.1}, budget={"tokens": 1000}).algorithm.to_json()["clip"]
        0.1
        """
        if budget is None and not self.trains:
            raise InvalidValueError(
                f"task {self.name!r} is for evaluations, its file has no [budget]: give one to train on it, as --episodes"
            )
        chosen = self.algorithm if algorithm is None else algorithm
        kind = type(chosen) if isinstance(chosen, BaseAlgorithm) else algorithm_named(chosen)
        tables = {**self.tables, "seed": self.tables.get("seed", 0), "task": self.name}
        # Such an algorithm refuses the table, which the file has for the others.
        if not kind.reads_optimization:
            tables.pop("optimization", None)
        if isinstance(chosen, BaseAlgorithm):
            tables["algorithm"] = {name: getattr(chosen, name) for name in kind.option_names()}
        else:
            for table in (self.algorithms.get(kind.kind, {}), self.algorithms.get(chosen, {})):
                tables = merged(tables, _of_algorithm(table))
        given = nested(settings or {}, kind, tables["env"].get("id", DEFAULT_ENV))
        # What the user gives comes last: also a learning rate for another policy.
        tables = merged(self._without_tuned(tables, given), given)
        if budget is not None:
            tables["budget"] = {**budget, **given.get("budget", {})}
        return RunConfig.from_json(
            _of_seed(tables, tables["seed"]), algorithm=kind.from_options(tables.get("algorithm", {}))
        )

    def _without_tuned(self, tables: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Removes what was tuned for the task's own policy if another policy is trained.

        A learning rate or an entropy bonus for a hundred thousand parameters breaks a model of a hundred million.
        """
        own = tables.get("policy", {}).get("model", _DEFAULT_MODEL)
        model = given.get("policy", {}).get("model", own)
        if model == own:
            return tables
        _LOG.info(
            "learning rates and entropy bonus of task %s were tuned for %r: defaults for %r", self.name, own, model
        )
        return {
            **tables,
            **{
                part: {name: value for name, value in tables[part].items() if name not in tuned}
                for part, tuned in _TUNED.items()
                if part in tables
            },
        }


def task_names() -> tuple[str, ...]:
    """The names of the package's tasks."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def load_task(task: str | Path) -> Task:
    """A task by its name or file.

    Args:
        task: A name of `task_names()`, or the path of a TOML file. With `base = "lins"` (or `base = "other.toml"`, a
            file beside it) a file has everything of that task, and says what differs.

    Raises:
        InvalidValueError: unknown name (the nearest is suggested); a file that cannot be read; an unknown key in it, or
            a value outside its range.
    """
    path = _path(task)
    data = _whole(path, task)
    if "env" not in data:
        raise InvalidValueError(f"task {str(task)!r} lacks the table [env]")
    for name in _TABLES:
        if not isinstance(data.get(name, {}), dict):
            raise InvalidValueError(f"task {str(task)!r}: {name} must be a table, as [{name}], got {data[name]!r}")
    about, algorithm, algorithms, scale = (
        data.pop(name, None) for name in ("about", "algorithm", "algorithms", "scale")
    )
    sampling = data.pop("sampling", {})
    for name in sampling:
        if name not in _SAMPLING:
            raise_unknown_name(f"key of [sampling] of task {str(task)!r}", name, _SAMPLING)
    samples = check_int("sampling.samples", sampling.pop("samples", 1), low=1)
    found = Task(
        name=path.stem,
        path=path,
        about=str(about or ""),
        algorithm=str(algorithm or "clipped_reinforce"),
        tables=data,
        algorithms=_tables(task, algorithms or {}),
        sampling=sampling,
        samples=samples,
        scale=_scale(task, scale or {}),
    )
    if path.parent != _FOLDER:  # the package's own files are checked by its tests
        try:  # a mistake in a file is found where the file is loaded
            PolicyConfig(**sampling)
            found.config(budget=None if found.trains else {"episodes": 1})
        except InvalidValueError as error:
            raise InvalidValueError(f"task {str(task)!r}: {error}") from error
    return found


def _of_algorithm(table: Mapping[str, Any]) -> dict[str, Any]:
    """Splits a file's table of an algorithm into its options and the tables of other parts, in nested form."""
    options = {name: value for name, value in table.items() if name not in PARTS}
    return {**{name: value for name, value in table.items() if name in PARTS}, "algorithm": options}


def _of_seed(parts: Mapping[str, Any], seed: object) -> dict[str, Any]:
    """Fills in the seed's policy. If each seed has a warm start of its own, intervals over seeds include its variance."""
    policy = parts.get("policy", {})
    if not isinstance(policy, Mapping) or not isinstance(policy.get("model"), str):
        return dict(parts)
    return {**parts, "policy": {**policy, "model": policy["model"].replace("{seed}", str(seed))}}


def _path(task: str | Path) -> Path:
    if isinstance(task, Path) or str(task).endswith(".toml"):
        return Path(task)
    if task not in task_names():
        raise_unknown_name("task", task, [*task_names(), "FILE.toml"])
    return _FOLDER / f"{task}.toml"


def _whole(path: Path, task: str | Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Reads a file and its base (a task of the package or another file); `above` has the files that led to it."""
    data = _read(path)
    for name in data:
        if name not in _KEYS:
            raise_unknown_name(f"key of task {str(task)!r}", name, _KEYS)
    base = data.pop("base", None)
    if base is None:
        return data
    if isinstance(base, str) and base.endswith(".toml"):
        below = path.parent / base
        if below.resolve() in (seen := (*above, path.resolve())):
            raise InvalidValueError(f"task {str(task)!r} has itself for a base, by {str(path)!r}")
        return _merged(_whole(below, below, seen), data)
    if base not in task_names():
        raise_unknown_name(f"base of task {str(task)!r}", base, [*task_names(), "FILE.toml"])
    return _merged(_read(_path(base)), data)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges nested tables; other values of `above` replace those of `below`."""
    both = {
        name
        for name in below.keys() & above.keys()
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping)
    }
    return {**below, **above, **{name: _merged(below[name], above[name]) for name in both}}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"task {str(path)!r} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # integers of too many digits and endless nesting are no TOML errors
        raise InvalidValueError(f"task {str(path)!r} is no TOML: {error}") from error


def _tables(task: str | Path, algorithms: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(algorithms, Mapping) or not all(isinstance(one, Mapping) for one in algorithms.values()):
        raise InvalidValueError(f"task {str(task)!r}: algorithms must be tables, as [algorithms.grpo]")
    for name, table in algorithms.items():
        for part in PARTS.keys() & table.keys():
            if not isinstance(table[part], Mapping):
                raise InvalidValueError(
                    f"task {str(task)!r}: {part} must be a table, as [algorithms.{name}.{part}], got {table[part]!r}"
                )
    return algorithms


def _scale(task: str | Path, scale: Any) -> Mapping[str, tuple[float, float]]:
    if not isinstance(scale, Mapping):
        raise InvalidValueError(f"task {str(task)!r}: scale must be a table, as [scale], got {scale!r}")
    found = {}
    for figure, ends in scale.items():
        if not _FIGURE.fullmatch(figure) or not isinstance(ends, list) or len(ends) != 2:
            raise InvalidValueError(
                f'task {str(task)!r}: scale must have lines as "acc@1" = [FLOOR, CEILING], got {figure!r} = {ends!r}'
            )
        low, high = (check_float(f"task {str(task)!r}: scale {figure}", end, low=0.0, high=1.0) for end in ends)
        if low > high:
            raise InvalidValueError(f"task {str(task)!r}: scale {figure} has a floor above its ceiling, got {ends!r}")
        found[figure] = (low, high)
    return found
