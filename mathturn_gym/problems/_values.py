"""Values out of other people's files: shown shortly, and as JSON types of bounded depth."""

from __future__ import annotations

import math
import numbers
import re
import reprlib
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

MAX_DEPTH: Final = 32
"""How deep lists and objects of a row may be nested."""

_SHOWN: Final = 80
MAX_BYTES: Final = 2**28
"""How many bytes a row may take in memory."""

_AS_TEXT: Final = (date, datetime, time, timedelta, Decimal, Fraction)
_SURROGATES: Final = re.compile(r"[\ud800-\udfff]")
_MOST_BITS: Final = 14_000  # str() and JSON refuse integers of more than 4,300 digits
_DROPPED: Final = object()

# reprlib writes the beginning only: repr() of a row of 256 MiB takes seconds, for a message of 80 characters.
_repr = reprlib.Repr()  # takes keywords from Python 3.12 on
_repr.maxstring = _repr.maxother = 70
_repr.maxlevel = 3


def short(value: object) -> str:
    r"""A value for a message: at most 80 characters, in ASCII, and never an exception.

    >>> short("x" * 200), short("\x1b[2J")
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'", "'\\x1b[2J'")
    """
    try:
        text = _repr.repr(value)
    except Exception:  # some objects cannot be shown: integers above 4,300 digits, other people's classes
        return f"a {type(value).__name__}"
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def measure(value: object) -> tuple[int, int]:
    """How deep lists and mappings are nested (counted to `MAX_DEPTH` + 1), and how many bytes the value takes.

    Without recursion, since what other people nest may be deeper than Python's stack; and no further than 256 MiB, since a
    list that holds another one twice, which holds another one twice, has no end that one could wait for.

    >>> measure([{"a": []}])[0], measure([[[]]])[1] > measure([[]])[1]
    (3, True)
    """
    level: list[object] = [value]
    depth = size = 0
    # Level by level: a file of brackets would end a recursion, and with it the run (issue 31).
    while level and depth <= MAX_DEPTH and size <= MAX_BYTES:
        inner: list[object] = []
        nested = False
        for one in level:
            size += sys.getsizeof(one)
            if isinstance(one, Mapping):
                nested = True
                inner.extend(one.values())
            elif isinstance(one, (list, tuple)):
                nested = True
                inner.extend(one)
        level = inner
        depth += nested
    return depth, size


def json_types(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row as JSON types: what a file of episodes can hold.

    Dates, decimals and fractions become texts, NumPy's values plain ones. What JSON has no word for (NaN, bytes, images,
    other objects) is left out. `values` must not be nested deeper than `MAX_DEPTH`.

    Raises:
        UnicodeError: a text is not Unicode (a lone surrogate is in it).

    >>> json_types({"day": date(2024, 1, 2), "share": float("nan"), "image": b"", "n": np.int64(3), "list": (1, None)})
    {'day': '2024-01-02', 'n': 3, 'list': [1, None]}
    """
    found = _as_json(values)
    assert isinstance(found, dict)
    return found


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, np.bool_)):
        return value if value is None else bool(value)
    if isinstance(value, str):
        if _SURROGATES.search(value) is not None:
            raise UnicodeError("lone surrogate")
        return value
    if isinstance(value, np.ndarray):
        return _as_json(value.tolist())
    # NumPy's integers are Integral, and no int.
    if isinstance(value, numbers.Integral):
        return int(value) if int(value).bit_length() <= _MOST_BITS else _DROPPED
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else _DROPPED
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, Mapping):
        pairs = ((_as_json(key), _as_json(part)) for key, part in value.items() if isinstance(key, str))
        return {key: part for key, part in pairs if part is not _DROPPED}
    if isinstance(value, (list, tuple)):
        parts = [_as_json(part) for part in value]
        return [part for part in parts if part is not _DROPPED]
    return _DROPPED
