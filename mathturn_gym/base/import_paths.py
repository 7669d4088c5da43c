"""Python objects by their import path, `module:name`: how a config, a TOML file and a command line name a user's code.

`parse_import_path` is the only parser of import paths, and `names_code` the only question that decides whether a text from
a stranger's file would run code. They must agree: whatever the first one accepts, the second one calls code (issue 31).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_PATH: Final = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME}(?:\.{_NAME})*)")
_URL: Final = re.compile(r"https?://", re.IGNORECASE)


def parse_import_path(text: str) -> tuple[str, list[str]] | None:
    """Module and attribute names of an import path, or None where a text is none.

    Names are ASCII identifiers: empty parts, digits at the start and letters that Python would normalise are refused,
    so that no reader can see another module in a text than this one.

    >>> parse_import_path("my_package.verifiers:Strict.check"), parse_import_path("a..b:c")
    (('my_package.verifiers', ['Strict', 'check']), None)
    """
    found = _PATH.fullmatch(text)
    return None if found is None else (found[1], found[2].split("."))


def is_import_path(text: str) -> bool:
    """True where a text has the form `module:name`.

    >>> is_import_path("my_package.verifiers:Strict"), is_import_path("hint")
    (True, False)
    """
    return parse_import_path(text) is not None


def names_code(text: object, schemes: Collection[str] = ()) -> bool:
    """True where a text could lead to code: it has a colon, is no URL, and does not begin with a known scheme.

    The answer errs on the safe side: a text that is no import path, but looks like one, counts as code. A gate that asked
    for well-formed paths would let through whatever a laxer reader behind it accepts.

    Args:
        text: A value out of a file; what is no text names no code.
        schemes: Words that may stand before a colon in this place.

    >>> [names_code(text, ("hf",)) for text in ("this.:x", "hf:org/name", "https://host:80/v1", "builtin")]
    [True, False, False, False]
    """
    if not isinstance(text, str) or ":" not in text or _URL.match(text):
        return False
    return text.partition(":")[0] not in schemes


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
    parts = parse_import_path(path)
    if parts is None:
        raise InvalidValueError(f"{field} must be an import path 'module:name', got {path!r}")
    module, names = parts
    _see_current_folder()
    try:
        found: Any = importlib.import_module(module)
        for name in names:
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
    """Returns the import path that leads to this object, or None if there is none (a lambda, an instance).

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
    """Adds the current folder to `sys.path`: `python -m` searches it, a console script does not."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
