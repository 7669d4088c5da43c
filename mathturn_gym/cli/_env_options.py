"""Options of every command that has an environment, declared once: the keywords of `EnvConfig`.

    @with_env_options
    def command(env: EnvOptions, ...) -> None:
        config = env.config(EnvConfig(problems="lins"))

The command has `--problems`, `--num-turns`, `--feedback` and all others in place of `env`; what the user gave of them is in
it, and nothing else, so that a run's or a task's own values hold for the rest.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_type_hints

import typer

from mathturn_gym._json import parse_json
from mathturn_gym.cli._problem_options import PROBLEMS_HELP, fields_of
from mathturn_gym.config import EnvConfig
from mathturn_gym.errors import InvalidValueError

__all__ = ["NOT_OFFERED", "OPTIONS", "EnvOptions", "with_env_options"]

_CALLABLE: Final = "or my_module:name of your own"

OPTIONS: Final[Mapping[str, tuple[Any, str, tuple[str, ...]]]] = {
    "id": (str, "Environment id.", ("--env",)),
    "problems": (str, PROBLEMS_HELP, ("--problems", "--data")),
    "question_column": (str, "Column that holds the question, where it is not recognized.", ()),
    "answer_column": (str, "Column that holds the accepted answer (or a list of them).", ()),
    "skip_bad_rows": (bool, "Leave broken rows of a file or data set out, and say which.", ("--skip-bad-rows",)),
    "tokenizer": (str, "Folder or hub name; by default the policy's own.", ()),
    "dialogue": (str, "my_module:name of a dialogue of your own.", ()),
    "num_turns": (int, "Turns of an episode.", ()),
    "max_completion_tokens": (int, "The most tokens of one answer.", ()),
    "max_context_tokens": (int, "Budget for the whole context, in tokens.", ()),
    "max_episode_tokens": (int, "Budget of sampled tokens for all turns of an episode.", ()),
    "max_episode_seconds": (float, "Budget of wall-clock time for an episode.", ()),
    "stop_on_success": (bool, "End an episode at its first right answer.", ()),
    "feedback": (str, f"Feedback mode, {_CALLABLE}.", ()),
    "verifier": (str, f"Where answers are looked for: boxed, marked or lenient; {_CALLABLE}.", ()),
    "reward_scaling": (float, "What rewards are multiplied with.", ()),
    "reward_bias": (float, "What is taken off rewards.", ()),
    "reward_terms": (
        list[str],
        "NAME=WEIGHT of a term added to the reward, or NAME=my_module:name of your own; repeatable.",
        ("--reward-term",),
    ),
    "system_prompt": (str, "Text of a system message.", ()),
    "prompt_template": (str, "What the first message says, with {problem} where the problem's text goes.", ()),
    "chat_template_kwargs": (str, """Variables of the chat template as JSON: '{"enable_thinking": false}'.""", ()),
    "history": (str, "What later turns see of earlier ones: keep, strip-thinking or template.", ()),
}
"""Type, help text and other spellings, by the keyword of `EnvConfig` (the columns make up its `fields`)."""

NOT_OFFERED: Final = ("render_mode", "gold_in_info")
"""Keywords that a command decides itself."""


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """What the user said about the environment.

    Args:
        given: Keywords of `EnvConfig`, those that were given.
    """

    given: Mapping[str, Any]

    def config(self, base: EnvConfig) -> EnvConfig:
        """An environment with what the user said, and everything else as it is.

        Args:
            base: A run's, a task's, or a command's default.
        """
        return base.replace(**self.given)

    def settings(self) -> dict[str, Any]:
        """The same as settings of a run, "env.NAME"."""
        return {f"env.{name}": value for name, value in self.given.items()}


def with_env_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `env: EnvOptions` is spelled out as options.

    Args:
        command: With one such parameter.
    """
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    options = [_parameter(name, *OPTIONS[name]) for name in OPTIONS]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        own = parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += options if parameter.name == "env" else [own]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in OPTIONS}
        command(env=EnvOptions(_keywords(given)), **arguments)

    run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, kind: Any, help_text: str, spellings: tuple[str, ...]) -> inspect.Parameter:
    option = typer.Option(*spellings, help=help_text, rich_help_panel="Environment")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as keywords of `EnvConfig`, without those that were not given."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    fields = fields_of(given.pop("question_column", None), given.pop("answer_column", None))
    if fields is not None:
        given["fields"] = fields
    if "reward_terms" in given:
        given["reward_terms"] = dict(map(_term, given["reward_terms"]))
    if "chat_template_kwargs" in given:
        given["chat_template_kwargs"] = _json_object("--chat-template-kwargs", given["chat_template_kwargs"])
    return given


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidValueError(f"""{option} must be a JSON object, as '{{"enable_thinking": false}}', got {text!r}""")
    return found


def _term(text: str) -> tuple[str, Any]:
    """`overlong=1.0`, or `mine=my_module:my_term`."""
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise InvalidValueError(f"--reward-term must be NAME=WEIGHT or NAME=module:name, got {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value
