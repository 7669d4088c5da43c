"""Units of measurement: two that are known and differ make two answers differ; anything else is ignored."""

from __future__ import annotations

import re

__all__ = ["different_units", "is_unit"]

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
    "euro": "euro euros",
    "yen": "yen",
    "rupee": "rupee rupees",
    "cent": "cent cents",
}
_CANONICAL = {spelling: name for name, spellings in _KNOWN.items() for spelling in spellings.split()}
_SIGNS = frozenset(("degrees", "degree", "percent", "pct", "%", "°", "°C", "°F", "² ", "²", "³"))
_WORD = re.compile(r"[a-z]+")


def is_unit(word: str) -> bool:
    """Whether a word is a unit that we know, or a degree or percent sign.

    >>> is_unit("cm"), is_unit("apples"), is_unit("degrees")
    (True, False, True)
    """
    return word.lower().strip(".") in _CANONICAL or word in _SIGNS


_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_POWER = re.compile(r"\^\D{0,2}(\d)")


def _canonical(units: tuple[str, ...]) -> tuple[str, int] | None:
    """The one known unit among the words with its power, or None."""
    if len(units) != 1:
        return None
    words = _WORD.findall(units[0])
    names = [word for word in words if word not in _POWERS]
    name = _CANONICAL.get(names[0]) if len(names) == 1 else None
    if name is None:
        return None
    written = _POWER.search(units[0])
    power = int(written[1]) if written is not None else max((_POWERS.get(word, 1) for word in words), default=1)
    return name, power


def different_units(gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    """Whether both sides name a known unit, and not the same, or not to the same power.

    >>> different_units(("cm",), ("m",)), different_units(("cm",), ("centimeters",)), different_units((), ("m",))
    (True, False, False)
    """
    first, second = _canonical(gold), _canonical(answer)
    return first is not None and second is not None and first != second
