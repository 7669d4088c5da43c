"""Names that load their module when they are first asked for, so that importing a package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    Define them under `if not TYPE_CHECKING`: a type checker that sees a `__getattr__` believes every name.

    Args:
        package: Its full name.
        homes: For each name the module that defines it: a submodule, or a full name that begins with the root package's.
    """
    root = package.partition(".")[0] + "."

    def load(name: str) -> Any:
        if name in homes:
            home = homes[name] if homes[name].startswith(root) else f"{package}.{homes[name]}"
            return getattr(import_module(home), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, names
