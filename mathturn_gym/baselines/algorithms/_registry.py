"""Algorithms by name: the decorator that registers them, and how a name, an import path or a table becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, TypeVar

from mathturn_gym.base.import_paths import import_object
from mathturn_gym.baselines.algorithms._base import BaseAlgorithm
from mathturn_gym.errors import InvalidValueError, raise_unknown_name

# Where the algorithms of the package are: a file each in the first, those of stable-baselines3 in the second.
_HOMES: Final = ("mathturn_gym.baselines.algorithms", "mathturn_gym.baselines.classic.algorithms")

_Class = TypeVar("_Class", bound=type[BaseAlgorithm])
_registered: dict[str, type[BaseAlgorithm]] = {}


def register(name: str, *, title: str, source: str) -> Callable[[_Class], _Class]:
    """Makes an algorithm known by a name; a decorator of its dataclass.

    Args:
        name: What the command line and `load_task` call it.
        title: What figures and tables call it.
        source: Where it was published, or what it varies.

    Raises:
        InvalidValueError: the name belongs to another algorithm.
    """

    def decorate(kind: _Class) -> _Class:
        before = _registered.get(name)
        # A notebook's cell that is run again defines the same class again.
        if before is not None and before.__module__ != kind.__module__:
            raise InvalidValueError(f"algorithm {name!r} is {before.__module__}:{before.__qualname__} already")
        kind.name, kind.title, kind.source = name, title, source
        _registered[name] = kind
        return kind

    return decorate


def registered() -> Mapping[str, type[BaseAlgorithm]]:
    """Every registered algorithm by name, those of the package first."""
    _load_all()
    return dict(_registered)


def algorithm_named(name: str) -> type[BaseAlgorithm]:
    """The class of an algorithm."""
    _load_all()
    if name in _registered:
        return _registered[name]
    if not isinstance(name, str) or ":" not in name:
        raise_unknown_name("algorithm", name, [*_registered, "module:Class"])
    found = import_object("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, BaseAlgorithm)):
        raise InvalidValueError(
            f"algorithm {name!r} must be a subclass of mathturn_gym.baselines.Algorithm, got {found!r}"
        )
    return found


def algorithm_from_json(data: Mapping[str, Any]) -> BaseAlgorithm:
    """The algorithm of a table `{"name": NAME, OPTION: VALUE, …}`."""
    options = dict(data)
    name = options.pop("name", None)
    if name is None:
        raise InvalidValueError("algorithm: a name must be given, as in { name = 'grpo', group_size = 8 }")
    return algorithm_named(name).from_options(options)


@lru_cache(maxsize=1)
def _load_all() -> None:
    """Imports every module that registers algorithms; none of them loads torch."""
    for home in _HOMES:
        package = import_module(home)
        for module in iter_modules(getattr(package, "__path__", ())):
            if not module.name.startswith("_"):
                import_module(f"{home}.{module.name}")
