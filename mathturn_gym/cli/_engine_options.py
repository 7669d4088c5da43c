"""`--engine`: who plays and computes; the same options for training and evaluation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from mathturn_gym.errors import InvalidValueError, raise_unknown_name

if TYPE_CHECKING:
    from mathturn_gym.baselines._session import Engine
    from mathturn_gym.engines._ray_settings import RaySettings

__all__ = ["ENGINE", "ENGINE_SETTINGS", "ray_settings", "speaks_for_nobody", "training_engine"]

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
    """The workers of an evaluation; None where it plays in this process.

    Args:
        engine: What was given as `--engine`.
        texts: What was given as `--engine-set`.

    Raises:
        InvalidValueError: an engine that evaluates nothing, or a setting that it does not have.
    """
    settings = _settings(engine, texts)
    if engine == "local":
        return None
    if engine == "distributed":
        raise InvalidValueError("--engine distributed trains; an evaluation plays with --engine ray")
    return _ray(settings)


def training_engine(engine: str, texts: Sequence[str] | None) -> Engine | None:
    """The engine of a training run; None where it is this process.

    Args:
        engine: What was given as `--engine`.
        texts: What was given as `--engine-set`.

    Raises:
        InvalidValueError: an unknown engine, or a setting that it does not have.
        MissingDependencyError: Ray is not installed.
    """
    settings = _settings(engine, texts)
    if engine == "ray":
        from mathturn_gym.engines.ray import RayTraining

        own = {name: settings.pop(name) for name in ("max_staleness",) if name in settings}
        return RayTraining(settings=_ray(settings, "max_staleness"), **own)
    if engine == "distributed":
        from mathturn_gym.engines.distributed import DistributedTraining

        _check_known(settings, [one.name for one in dataclasses.fields(DistributedTraining)])
        return DistributedTraining(**settings)
    return None


def speaks_for_nobody(engine: str) -> bool:
    """True on the ranks that are not the first: what they would print, the first one prints."""
    return engine == "distributed" and os.environ.get("RANK", "0") != "0"


def _settings(engine: str, texts: Sequence[str] | None) -> dict[str, Any]:
    from mathturn_gym.baselines._changes import parse_settings

    if engine not in _ENGINES:
        raise_unknown_name("engine", engine, _ENGINES)
    settings = parse_settings(texts or [], "--engine-set")
    if settings and engine == "local":
        raise InvalidValueError("--engine-set is for the engines ray and distributed: --engine local has no settings")
    return settings


def _ray(settings: Mapping[str, Any], *more: str) -> RaySettings:
    from mathturn_gym.engines._ray_settings import RaySettings

    _check_known(settings, [*(one.name for one in dataclasses.fields(RaySettings)), *more])
    return RaySettings(**settings)


def _check_known(settings: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in settings:
        if name not in known:
            raise_unknown_name("engine setting", name, known)
