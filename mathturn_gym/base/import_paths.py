"""Python objects by their import path, `module:name`: how a config, a TOML file and a command line name a user's code."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_import_path(text: str) -> bool:
    """True where a text has the form `module:name`.

    >>> is_import_path("my_package.verifiers:Strict"), is_import_path("hint")
    (True, False)
    """
    return _PATH.fullmatch(text) is not None


def module_exists(path: str) -> bool:
    """True where the package that an import path begins with can be found; nothing is imported.

    >>> module_exists("math:sqrt"), module_exists("vlm:folder")
    (True, False)
    """
    _see_current_folder()
    return importlib.util.find_spec(path.partition(":")[0].partition(".")[0]) is not None


def import_object(field: str, path: str) -> Any:
    """The object that an import path names. Modules of the current folder are found, as with `python -m`.

    Args:
        field: What the path was given for; named in errors.
        path: `module:name`; the name may have dots (`module:Class.method`).

    Raises:
        InvalidValueError: not of this form, or nothing can be imported there.

    >>> import_object("verifier", "math:sqrt")(9.0)
    3.0
    """
    if not is_import_path(path):
        raise InvalidValueError(f"{field} must be an import path 'module:name', got {path!r}")
    module, _, names = path.partition(":")
    _see_current_folder()
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        hint = " (it was defined in a script: put it into a module of its own, and import it from there)"
        raise InvalidValueError(
            f"{field} {path!r} cannot be imported: AttributeError: {error}{hint if module == '__main__' else ''}"
        ) from error
    except Exception as error:  # whatever a user's module does when it is loaded; the cause stays attached
        raise InvalidValueError(f"{field} {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    return found


def import_path_of(value: object) -> str | None:
    """The import path that leads to this very object; None where there is none (a lambda, an object made by hand).

    >>> import os.path
    >>> import_path_of(os.path.basename)
    'posixpath:basename'
    >>> import_path_of(lambda text: text) is None
    True
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else None


def _see_current_folder() -> None:
    """A console script does not look for modules in the folder that it is started in; `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
