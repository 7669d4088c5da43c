"""Units of measurement: two that are known and differ make two answers differ; anything else is ignored."""

from __future__ import annotations

import re

__all__ = ["different_units"]

_KNOWN = {
    "m": "m meter meters metre metres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yds yard yards",
    "mi": "mi mile miles",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "mg": "mg milligram milligrams",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "l": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "dollar": "dollar dollars",
    "cent": "cent cents",
}
_CANONICAL = {spelling: name for name, spellings in _KNOWN.items() for spelling in spellings.split()}
_WORD = re.compile(r"[a-z]+")


def _canonical(units: tuple[str, ...]) -> str | None:
    """The one known unit among the words, or None."""
    if len(units) != 1:
        return None
    words = [word for word in _WORD.findall(units[0]) if word not in ("square", "sq", "cubic", "cu")]
    return _CANONICAL.get(words[0]) if len(words) == 1 else None


def different_units(gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    """Whether both sides name a known unit, and not the same.

    >>> different_units(("cm",), ("m",)), different_units(("cm",), ("centimeters",)), different_units((), ("m",))
    (True, False, False)
    """
    first, second = _canonical(gold), _canonical(answer)
    return first is not None and second is not None and first != second
