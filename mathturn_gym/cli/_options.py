"""Options that several commands share: those of the environment, of the engine, and how `--help` groups them.

    @with_env_options
    @grouped({"Budget": ("tokens", "episodes")})
    def command(env: EnvOptions, ...) -> None:
        config = env.config(EnvConfig(problems="lins"))

The command has `--problems`, `--num-turns`, `--feedback` and the other keywords of `EnvConfig` in place of `env`. `env`
holds only what the user gave, so that a run's or a task's own values hold for the rest.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_args, get_type_hints

import typer

from mathturn_gym.base.files import parse_json
from mathturn_gym.env.config import EnvConfig, env_keywords
from mathturn_gym.errors import InvalidValueError, raise_unknown_name

if TYPE_CHECKING:
    from mathturn_gym.baselines.session import Engine
    from mathturn_gym.neighbors.engines.ray_settings import RaySettings
    from mathturn_gym.problems import ProblemSource

PROBLEMS_HELP: Final = env_keywords()["problems"].text

TASKS: Final = ", ".join(
    sorted(
        one.name.removesuffix(".toml")
        for one in (files("mathturn_gym") / "baselines" / "tasks").iterdir()
        if one.name.endswith(".toml")
    )
)
"""The package's tasks, for help texts: read off their folder, so that `--help` does not load what trains on them."""

_QUESTION: Final = "Column that holds the question, where it is not recognized."
_ANSWER: Final = "Column that holds the accepted answer (or a list of them)."
_SKIP: Final = "Leave broken rows of a file or data set out, and say which."
QuestionColumn = Annotated[str | None, typer.Option(help=_QUESTION)]
AnswerColumn = Annotated[str | None, typer.Option(help=_ANSWER)]
SkipBadRows = Annotated[bool, typer.Option(help=_SKIP)]


def load_source(
    problems: str, question_column: str | None, answer_column: str | None, *, skip_bad_rows: bool = False
) -> ProblemSource:
    """The source that the options name."""
    from mathturn_gym.problems import load_problems

    fields = fields_of(question_column, answer_column)
    return load_problems(problems, fields=fields, skip_bad_rows=skip_bad_rows)


def fields_of(question_column: str | None, answer_column: str | None) -> dict[str, str] | None:
    """The two columns as `load_problems` takes them; None where neither was given. One alone is an error."""
    if question_column is None and answer_column is None:
        return None
    if question_column is None or answer_column is None:
        given, other = ("question", "answer") if answer_column is None else ("answer", "question")
        raise InvalidValueError(f"--{given}-column needs --{other}-column: say which columns both are")
    return {"prompt": question_column, "gold": answer_column}


# ---- environment


NOT_OFFERED: Final = ("render_mode", "gold_in_info")
"""Keywords that a command decides itself."""

# Type and spellings of options that are not `--NAME-OF-THE-KEYWORD` of the keyword's type.
_SPELLINGS: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "problems": (str, ("--problems", "--data")),
    "reward_terms": (list[str], ("--reward-term",)),
}

OPTIONS: Final[Mapping[str, tuple[Any, str, tuple[str, ...]]]] = {
    "id": (str, "Environment id.", ("--env",)),
    **{
        name: (kind, keyword.text, spellings)
        for name, keyword in env_keywords().items()
        for kind, spellings in [_SPELLINGS.get(name, (keyword.kind, ()))]
        if name not in NOT_OFFERED
    },
    "question_column": (str, _QUESTION, ()),
    "answer_column": (str, _ANSWER, ()),
    "skip_bad_rows": (bool, _SKIP, ("--skip-bad-rows",)),
}
"""Type, help text and other spellings, by the keyword of `EnvConfig` (the columns make up its `fields`)."""

PANELS: Final[Mapping[str, tuple[str, ...]]] = {
    "Problems": ("id", "problems", "question_column", "answer_column", "skip_bad_rows"),
    "Turns": ("num_turns", "stop_on_success"),
    "Prompt, feedback and verdicts": (
        "feedback",
        "verifier",
        "reward_terms",
        "system_prompt",
        "prompt_template",
        "history",
    ),
}
"""Under which title `--help` shows an option; all others are under "Environment"."""
RARE: Final = ("tokenizer", "dialogue", "max_episode_seconds", "reward_scaling", "reward_bias", "chat_template_kwargs")
"""Options that work as all others do, and that `--help` leaves to `--env-set`."""

_ENV_SET_HELP: Final = (
    "FIELD=VALUE of any keyword of the environment, e.g. reward_bias=0.5, tokenizer=FOLDER; the rarer ones are "
    f"{', '.join(RARE)}; repeatable."
)


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """What the user said about the environment."""

    given: Mapping[str, Any]  # keywords of `EnvConfig`, those that were given

    def config(self, base: EnvConfig) -> EnvConfig:
        """An environment with what the user said, and everything else as it is."""
        return base.replace(**self.given)

    def settings(self) -> dict[str, Any]:
        """The same as settings of a run, "env.NAME"."""
        return {f"env.{name}": value for name, value in self.given.items()}


def with_env_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `env: EnvOptions` is spelled out as options."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    options = [_parameter(name, *OPTIONS[name]) for name in OPTIONS]
    options.append(_parameter("env_set", list[str], _ENV_SET_HELP, ("--env-set",)))
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        # Keyword-only, so that options with defaults may stand before arguments without.
        own = parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += options if parameter.name == "env" else [own]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        from mathturn_gym.baselines.overrides import parse_settings

        given = {name: arguments.pop(name) for name in OPTIONS}
        more = parse_settings(arguments.pop("env_set") or [], "--env-set")
        command(env=EnvOptions({**_keywords(given), **more}), **arguments)

    # Typer reads the options off signature and annotations: the command's own, with `env` spelled out.
    run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, kind: Any, help_text: str, spellings: tuple[str, ...]) -> inspect.Parameter:
    panel = next((title for title, names in PANELS.items() if name in names), "Environment")
    # A rare option works when it is typed; `--help` leaves it to --env-set, so that it fits one screen.
    option = typer.Option(*spellings, help=help_text, rich_help_panel=panel, hidden=name in RARE)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as keywords of `EnvConfig`, without those that were not given."""
    # Typer gives None or [] for what was not typed: there the value of the run or the task holds.
    given = {name: value for name, value in options.items() if value not in (None, [])}
    fields = fields_of(given.pop("question_column", None), given.pop("answer_column", None))
    if fields is not None:
        given["fields"] = fields
    if "reward_terms" in given:
        given["reward_terms"] = dict(map(_term, given["reward_terms"]))
    for name in ("chat_template_kwargs", "verdict_noise"):
        if name in given:
            given[name] = _json_object(f"--{name.replace('_', '-')}", given[name])
    return given


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError:
        found = None  # the same message as for JSON of another kind
    if not isinstance(found, dict):
        raise InvalidValueError(f"""{option} must be a JSON object, as '{{"enable_thinking": false}}', got {text!r}""")
    return found


def _term(text: str) -> tuple[str, Any]:
    """`overlong=1.0`, or `mine=my_module:my_term`."""
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        example = f", as {text}=1.0" if text.isidentifier() else ""
        raise InvalidValueError(f"--reward-term must be NAME=WEIGHT{example}, or NAME=module:name; got {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        # No number: an import path, which making the environment resolves.
        return name, value


# ---- groups


def grouped(panels: Mapping[str, Sequence[str]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Shows options of a command under titles of their own in its `--help`; the others stay under "Options".

    A table has one width for all its names. Panels keep one long name from cutting the others off at 80 columns.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        for title, names in panels.items():
            for name in names:
                kind, option = get_args(hints[name])[:2]
                option = copy.copy(option)  # an alias such as ENGINE belongs to several commands
                option.rich_help_panel = title
                hints[name] = Annotated[kind, option]
        command.__annotations__ = hints
        return command

    return decorate


# ---- engine: what plays and computes; the same options for training and evaluation


ENGINE: TypeAlias = Annotated[
    str, typer.Option(help="local; ray (a cluster, or this machine's cores); distributed (training, under torchrun).")
]
ENGINE_SETTINGS: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-set",
        help="FIELD=VALUE of the engine, e.g. rollout_actors=8, policy_actors=2, gpus=1, max_staleness=1; repeatable.",
    ),
]
_ENGINES: Final = ("local", "ray", "distributed")


def ray_settings(engine: str, texts: Sequence[str] | None) -> RaySettings | None:
    """The workers of an evaluation; None where it plays in this process."""
    settings = _settings(engine, texts)
    if engine == "local":
        return None
    if engine == "distributed":
        raise InvalidValueError("--engine distributed trains; an evaluation plays with --engine ray")
    return _ray(settings)


def training_engine(engine: str, texts: Sequence[str] | None) -> Engine | None:
    """The engine of a training run; None where it is this process."""
    settings = _settings(engine, texts)
    if engine == "ray":
        from mathturn_gym.neighbors.engines.ray import RayTraining

        # A setting of the training; all others are of the workers.
        own = {name: settings.pop(name) for name in ("max_staleness",) if name in settings}
        return RayTraining(settings=_ray(settings, "max_staleness"), **own)
    if engine == "distributed":
        from mathturn_gym.neighbors.engines.distributed import DistributedTraining

        # Checked here: the dataclass would raise a TypeError, and name no nearest setting.
        _check_known(settings, [one.name for one in dataclasses.fields(DistributedTraining)])
        return DistributedTraining(**settings)
    return None


def is_silent_rank(engine: str) -> bool:
    """True on the ranks that are not the first: what they would print, the first one prints."""
    return engine == "distributed" and os.environ.get("RANK", "0") != "0"


def _settings(engine: str, texts: Sequence[str] | None) -> dict[str, Any]:
    from mathturn_gym.baselines.overrides import parse_settings

    if engine not in _ENGINES:
        raise_unknown_name("engine", engine, _ENGINES)
    settings = parse_settings(texts or [], "--engine-set")
    if settings and engine == "local":
        raise InvalidValueError("--engine-set is for the engines ray and distributed: --engine local has no settings")
    return settings


def _ray(settings: Mapping[str, Any], *more: str) -> RaySettings:
    from mathturn_gym.neighbors.engines.ray_settings import RaySettings

    _check_known(settings, [*(one.name for one in dataclasses.fields(RaySettings)), *more])
    return RaySettings(**settings)


def _check_known(settings: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in settings:
        if name not in known:
            raise_unknown_name("engine setting", name, known)
