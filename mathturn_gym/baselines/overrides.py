"""Overrides of a run's settings: from `FIELD=VALUE` texts to the nested form that a run is built from.

    texts, tables, keywords ─► {PART: {FIELD: VALUE}, FIELD: VALUE} ─► merged over a task's tables ─► RunConfig.from_json

Names are only placed here; each part checks its own fields and values when the run is built, once.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mathturn_gym.base.files import parse_json
from mathturn_gym.baselines.algorithms import BaseAlgorithm
from mathturn_gym.baselines.settings import PARTS, RunConfig
from mathturn_gym.env.config import DEFAULT_ENV, OWN_FIELDS, env_parameters
from mathturn_gym.errors import InvalidValueError, raise_unknown_name, shown

# Fields of a run that belong to no part.
_OF_RUN: Final = tuple(
    one.name for one in dataclasses.fields(RunConfig) if one.name not in PARTS and one.name != "task"
)
_SUGGESTED: Final = 5  # names that a message suggests for an unknown one: a run has about ninety


def parse_settings(texts: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """Parses `FIELD=VALUE` texts; a value that is not JSON is a text.

    >>> parse_settings(["discount=0.5", "env.feedback=hint", "betas=[0.9, 0.99]"])
    {'discount': 0.5, 'env.feedback': 'hint', 'betas': [0.9, 0.99]}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidValueError(f"{option} must be FIELD=VALUE or PART.FIELD=VALUE, got {text!r}")
        try:
            found[name] = parse_json(re.sub(r"^(-?)\.(?=\d)", r"\g<1>0.", value))  # ".8" is a number to who types it
        # feedback=hint needs no quotes.
        except ValueError:
            found[name] = value
    return found


def nested(settings: Mapping[str, Any], algorithm: type[BaseAlgorithm], env_id: str = DEFAULT_ENV) -> dict[str, Any]:
    """Settings in any form as one nested mapping, {PART: {FIELD: VALUE}} beside the fields of the run itself.

    Args:
        settings: Values by "FIELD" (where only one part has such a field), by "PART.FIELD", or as {PART: {FIELD: …}}; of
            two values for one field the later one wins.
        algorithm: The run's; it decides which options there are.
        env_id: The run's environment, unless the settings name another; it decides which keywords there are.

    >>> from mathturn_gym.baselines import GRPO
    >>> nested({"clip": 0.1, "evaluation.every": 5, "seed": 3}, GRPO)
    {'algorithm': {'clip': 0.1}, 'evaluation': {'every': 5}, 'seed': 3}
    """
    found: dict[str, Any] = {}
    # Made only for a bare name: the fields of a classic algorithm load its library.
    fields: Mapping[str, tuple[str, ...]] | None = None
    for name, value in settings.items():
        part, dot, field = name.partition(".")
        if dot and part not in PARTS:
            raise_unknown_name("part of a run", part, PARTS)
        if not dot and name not in PARTS:
            if name in _OF_RUN:
                found[name] = value
                continue
            if fields is None:
                fields = _fields(algorithm, _env_id(settings, env_id))
            part, field = _part_of(name, fields, algorithm), name
        table = _table(name, value) if not field else {field: value}
        # a learning rate that nothing reads would be tuned in vain.
        if part == "optimization" and not algorithm.reads_optimization:
            own = ", ".join(algorithm.option_names())
            raise InvalidValueError(
                f"{algorithm.name} does not read optimization.{next(iter(table), '')}; its options: {own}"
            )
        found[part] = {**found.get(part, {}), **table}
    return found


def merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a run with some fields replaced, both in the form that `nested` gives."""
    parts = {name: {**tables.get(name, {}), **table} for name, table in changes.items() if name in PARTS}
    return {**tables, **changes, **parts}


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{PART: {FIELD: VALUE}} as {"PART.FIELD": VALUE}, the form in which a comparison's cell keeps its settings.

    >>> dotted({"clip": 0.1, "evaluation": {"every": 5}})
    {'clip': 0.1, 'evaluation.every': 5}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= (
            {f"{name}.{field}": one for field, one in _table(name, value).items()} if name in PARTS else {name: value}
        )
    return found


def _table(part: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{part} is a part of a run: set its fields, as in {part}.FIELD, got {shown(value)}")
    return value


def _env_id(settings: Mapping[str, Any], default: str) -> str:
    """The environment id that the settings name, in whichever form, or the default."""
    env = settings.get("env")
    inner = env.get("id", default) if isinstance(env, Mapping) else default
    found = settings.get("env.id", settings.get("id", inner))
    return found if isinstance(found, str) else default  # building the environment refuses anything else


def _fields(algorithm: type[BaseAlgorithm], env_id: str) -> dict[str, tuple[str, ...]]:
    """The names of the fields of each part."""
    found = {
        name: tuple(one.name for one in dataclasses.fields(kind))
        for name, kind in PARTS.items()
        if name not in ("env", "algorithm")
    }
    found["policy"] = tuple(name for name in found["policy"] if name != "seed")  # the run's own seed decides
    if not algorithm.reads_optimization:
        found["optimization"] = ()
    return {**found, "env": (*OWN_FIELDS, *env_parameters(env_id)), "algorithm": algorithm.option_names()}


def _part_of(name: str, fields: Mapping[str, tuple[str, ...]], algorithm: type[BaseAlgorithm]) -> str:
    """The one part that has a field of this name."""
    having = [part for part in PARTS if name in fields[part]]
    if len(having) > 1:
        raise InvalidValueError(
            f"{name} is a field of {' and of '.join(having)}: say {' or '.join(f'{part}.{name}' for part in having)}"
        )
    if not having:
        known = {field: f"{part}.{field}" for part in PARTS for field in fields[part]} | {one: one for one in _OF_RUN}
        near = difflib.get_close_matches(name[:100], known, n=_SUGGESTED, cutoff=0.5)
        hint = f": did you mean {near[0]!r}? (nearest: {', '.join(known[one] for one in near)})" if near else ""
        own = ", ".join(fields["algorithm"])
        raise InvalidValueError(f"unknown setting {shown(name)}{hint}; options of {algorithm.name}: {own}")
    return having[0]
