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
        homes: For each module the names that it defines, separated by spaces. A module is a submodule of the package, or a
            full name that begins with the root package's.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}
    root = package.partition(".")[0] + "."

    def load(name: str) -> Any:
        if name in modules:
            home = modules[name] if modules[name].startswith(root) else f"{package}.{modules[name]}"
            return getattr(import_module(home), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*modules, *sys.modules[package].__all__})

    return load, names
