"""JSON out of files and off the network, which anybody may have written."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(data: str | bytes) -> Any:
    """The value of a document; whatever is wrong with it is a `ValueError`.

    Python's own reader raises `RecursionError` for what is nested beyond its stack, which no `except ValueError` stops.

    Args:
        data: The document; bytes are UTF-8.

    Raises:
        ValueError: no JSON, no Unicode, nested too deeply, or an integer of more digits than Python reads.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
