"""Settings by name: `FIELD=VALUE` or `PART.FIELD=VALUE`, over all parts of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mathturn_gym.base.files import parse_json
from mathturn_gym.baselines.algorithms import BaseAlgorithm, algorithm_named
from mathturn_gym.baselines.settings import PARTS, RunConfig
from mathturn_gym.env.config import DEFAULT_ENV, OWN_FIELDS, env_parameters
from mathturn_gym.errors import InvalidValueError, raise_unknown_name

_RUN: Final = tuple(
    one.name for one in dataclasses.fields(RunConfig) if one.name not in PARTS and one.name not in ("task",)
)
"""Fields of a run that are no part of it."""


def setting_names(parts: Mapping[str, Any], algorithm: type[BaseAlgorithm]) -> dict[str, tuple[str, ...]]:
    """The fields of each part, by the part's name; those of the run itself under "".

    Args:
        parts: Tables as `RunConfig.to_json` gives them; the environment's id decides what it takes.
        algorithm: Decides which options there are.
    """
    names = {
        name: tuple(one.name for one in dataclasses.fields(kind))
        for name, kind in PARTS.items()
        if name not in ("env", "algorithm")
    }
    env = env_parameters(parts["env"].get("id", DEFAULT_ENV))
    return {
        "": _RUN,
        "env": (*OWN_FIELDS, *env),
        "policy": tuple(name for name in names["policy"] if name != "seed"),  # the run's own decides
        "algorithm": algorithm.option_names(),
        "budget": names["budget"],
        "optimization": names["optimization"] if algorithm.reads_optimization else (),
        "evaluation": names["evaluation"],
    }


def changed(
    parts: Mapping[str, Any], settings: Mapping[str, Any], algorithm: type[BaseAlgorithm] | None = None
) -> dict[str, Any]:
    """Tables of a run with some settings changed.

    Args:
        parts: Tables as `RunConfig.to_json` gives them.
        settings: Values by "FIELD" (where one part alone has such a field), by "PART.FIELD", or as {PART: {FIELD: …}}.
        algorithm: The run's; None finds it by the name in its table.

    Raises:
        InvalidValueError: no part has such a field (the nearest is suggested), or several have.

    >>> changed({"env": {}, "algorithm": {"name": "grpo"}}, {"clip": 0.1, "evaluation.every": 5})["evaluation"]
    {'every': 5}
    """
    result = {name: dict(value) if name in PARTS else value for name, value in parts.items()}
    kind = algorithm_named(parts["algorithm"]["name"]) if algorithm is None else algorithm
    for name, value in dotted(settings).items():
        part, field = _place(name, setting_names(result, kind), kind.name)
        if part:
            result.setdefault(part, {})[field] = value
        else:
            result[field] = value
    return result


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{PART: {FIELD: VALUE}} as {"PART.FIELD": VALUE}; the environment's id first, which decides what fields there are.

    Raises:
        InvalidValueError: a part's name without a field.

    >>> dotted({"clip": 0.1, "evaluation": {"every": 5}})
    {'clip': 0.1, 'evaluation.every': 5}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in PARTS:
            if not isinstance(value, Mapping):
                raise InvalidValueError(f"{name} is a part of a run: set its fields, as in {name}.FIELD, got {value!r}")
            found |= {f"{name}.{field}": one for field, one in value.items()}
        else:
            found[name] = value
    return dict(sorted(found.items(), key=lambda item: item[0] not in ("id", "env.id")))


def parse_settings(texts: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """`FIELD=VALUE` texts as a dictionary; a value is JSON where it is, else a text.

    Args:
        texts: As they were typed.
        option: Of which option, for the message.

    Raises:
        InvalidValueError: a text without "=".

    >>> parse_settings(["discount=0.5", "env.feedback=hint", "betas=[0.9, 0.99]"])
    {'discount': 0.5, 'env.feedback': 'hint', 'betas': [0.9, 0.99]}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidValueError(f"{option} must be FIELD=VALUE or PART.FIELD=VALUE, got {text!r}")
        try:
            found[name] = parse_json(value)
        except ValueError:
            found[name] = value
    return found


def _place(name: str, known: Mapping[str, tuple[str, ...]], algorithm: str) -> tuple[str, str]:
    """Part and field of a setting's name."""
    part, dot, field = name.partition(".")
    if dot:
        if part not in PARTS:
            raise_unknown_name("part of a run", part, PARTS)
        if part == "optimization" and not known[part]:
            raise InvalidValueError(f"{algorithm} does not read {name}; its options: {', '.join(known['algorithm'])}")
        if field not in known[part]:
            of = f"{algorithm} option" if part == "algorithm" else f"{part} field"
            raise_unknown_name(of, field, known[part])
        return part, field
    if name in known[""]:
        return "", name
    having = [part for part in PARTS if name in known[part]]
    if len(having) > 1:
        raise InvalidValueError(
            f"{name} is a field of {' and of '.join(having)}: say {' or '.join(f'{part}.{name}' for part in having)}"
        )
    if not having:
        allowed = {field for fields in known.values() for field in fields}
        _raise_unknown(name, algorithm, allowed, known["algorithm"])
    return having[0], name


def _raise_unknown(name: str, algorithm: str, allowed: set[str], own: tuple[str, ...]) -> None:
    try:
        raise_unknown_name("setting", name, allowed)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}; options of {algorithm}: {', '.join(own)}") from None
