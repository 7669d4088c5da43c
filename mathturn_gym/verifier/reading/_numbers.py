"""Numbers that need no algebra, and units of measurement."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_MAX = 400
_NUMBER = re.compile(
    r"\s*(?:([-+−])\s*)?(?:"
    r"(?P<number>(?:[1-9]\d{0,2}(?:(?:,|\{,\}|\\,|\\!,)\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
    r"(?:\s*/\s*(?P<bottom>\d+))?"
    r"|\\[dtc]?frac\s*(?:\{\s*(?P<a>-?\d+)\s*\}|(?P<b>\d))\s*(?:\{\s*(?P<c>-?\d+)\s*\}|(?P<d>\d))"
    r")\s*"
)
_NO_DIGIT = re.compile(r"[^\d.]")


def literal_value(text: str) -> Fraction | None:
    r"""The value of a literal integer, decimal or fraction; None for anything else.

    >>> literal_value("1,234.50"), literal_value("-\\frac{3}{4}"), literal_value("12+34")
    (Fraction(2469, 2), Fraction(-3, 4), None)
    """
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX else None
    if match is None:
        return None
    sign, number, below, a, b, c, d = match.groups()
    if number is None:
        top, bottom = int(a or b), int(c or d)
    else:
        whole, _, places = (number if number.isdigit() else _NO_DIGIT.sub("", number)).partition(".")
        top, bottom = int(whole + places), int(below or 1) * 10 ** len(places)
    if not bottom:
        return None
    if sign in ("-", "−"):
        top = -top
    return Fraction(top) if bottom == 1 else Fraction(top, bottom)


# Unit of length, mass, …: its size in the base unit of its dimension, as a fraction, and its spellings. The sizes are exact
# by definition (international yard and pound, US liquid gallon). Months and years have no fixed number of days.
_TABLE = """
length 1 m meter meters metre metres
length 1/10 dm decimeter decimeters decimetre decimetres
length 1/100 cm centimeter centimeters centimetre centimetres cms
length 1/1000 mm millimeter millimeters millimetre millimetres
length 1/1000000000 nm nanometer nanometers nanometre nanometres
length 1000 km kilometer kilometers kilometre kilometres kms
length 127/5000 in inch inches
length 381/1250 ft foot feet
length 1143/1250 yd yds yard yards
length 201168/125 mi mile miles
length 1852 nmi
mass 1 g gram grams
mass 1000 kg kilogram kilograms kgs kilo kilos
mass 1/1000 mg milligram milligrams
mass 1000000 t tonne tonnes
mass 45359237/100000 lb lbs
mass 45359237/1600000 oz ounce ounces
mass 317514659/50000 stone
tons 1 ton tons
volume 1/1000 l liter liters litre litres
volume 1/10000 dl
volume 1/100000 cl
volume 1/1000000 ml milliliter milliliters millilitre millilitres cc
volume 473176473/125000000000 gal gallon gallons
volume 473176473/500000000000 qt quart quarts
volume 473176473/1000000000000 pt pint pints
time 1 s sec secs second seconds
time 1/1000 ms millisecond milliseconds
time 60 min mins minute minutes
time 3600 h hr hrs hour hours
time 86400 day days
time 604800 week weeks wk wks
months 1 month months
months 12 year years yr yrs
dollars 1 dollar dollars usd buck bucks
dollars 1/100 cent cents
euros 1 euro euros eur
sterling 1 sterling gbp
sterling 1/100 pence penny
yen 1 yen jpy
rupees 1 rupee rupees inr
pesos 1 peso pesos
francs 1 franc francs
yuan 1 yuan rmb
celsius 1 celsius
fahrenheit 1 fahrenheit
kelvin 1 kelvin kelvins
degrees 1 degree degrees deg
degrees 9/10 gradian gradians gon
radians 1 radian radians rad
force 1 n newton newtons
energy 1 j joule joules
power 1 w watt watts
voltage 1 v volt volts
frequency 1 hz hertz
"""
_CANONICAL: dict[str, tuple[str, Fraction]] = {}
for _line in _TABLE.split("\n")[1:-1]:
    _dimension, _size, *_spellings = _line.split()
    _CANONICAL |= dict.fromkeys(_spellings, (_dimension, Fraction(_size)))
# Pounds of mass or of money: equal to either, and converted to neither.
_POUNDS = frozenset(("pound", "pounds"))
_COMPOUND = {
    "mph": "miles/hour",
    "kph": "km/hour",
    "kmh": "km/hour",
    "kmph": "km/hour",
    "fps": "feet/second",
    "knots?": "nmi/hour",
}
_SIGNS = frozenset(("degrees", "degree", "percent", "pct", "%", "°", "°C", "°F", "² ", "²", "³"))
_WORD = re.compile(r"[a-z]+")


def is_unit(word: str) -> bool:
    """Whether a word is a unit that we know, or a degree or percent sign.

    >>> is_unit("cm"), is_unit("apples"), is_unit("degrees")
    (True, False, True)
    """
    lower = word.lower().strip(".")
    return lower in _CANONICAL or lower in _POUNDS or lower in _COMPOUND or word in _SIGNS


_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_POWER = re.compile(r"\^[\s{]*(-?)\s*(\d)")
_PER = re.compile(r"/|\bper\b")


class Unit(NamedTuple):
    """A known unit: its dimensions with their powers, and its size in their base units."""

    dimensions: tuple[tuple[str, int], ...]
    size: Fraction


def _one_unit(text: str) -> Unit | None:
    """The only known unit among some words, with its power; None where there is none, or several."""
    words = _WORD.findall(text)
    written = _POWER.search(text)
    power = (
        int(written[1] + written[2])
        if written is not None
        else max((_POWERS.get(word, 1) for word in words), default=1)
    )
    found = [_CANONICAL[word] for word in words if word in _CANONICAL]
    if any(word in _POUNDS for word in words) and not found:
        return Unit((("pounds", power),), Fraction(1))
    if len(found) != 1:
        return None
    dimension, size = found[0]
    if dimension == "volume":
        return Unit((("length", 3 * power),), size**power)
    return Unit(((dimension, power),), size**power)


def unit_of(units: tuple[str, ...]) -> Unit | None:
    """The unit that was written behind a number, or None where there is none that we know.

    >>> unit_of(("cm",)) == unit_of(("centimeters",)), unit_of(("miles per hour",)) == unit_of(("mph",)), unit_of(("apples",))
    (True, True, None)
    """
    if len(set(units)) != 1:
        return None
    words = units[0]
    for short, long in _COMPOUND.items():
        words = re.sub(rf"\b{short}\b", long, words)
    top, *below = (part.strip() for part in _PER.split(words))
    # `per cm` measures nothing in each of them.
    unit = _one_unit(top) if top else Unit((), Fraction(1))
    dimensions = dict(unit.dimensions) if unit is not None else {}
    size = unit.size if unit is not None else Fraction(1)
    for part in below:
        known = _one_unit(part)
        if unit is None or known is None:
            # `miles per trip`: what is counted is counted in each.
            continue
        size /= known.size
        for dimension, power in known.dimensions:
            dimensions[dimension] = dimensions.get(dimension, 0) - power
    return None if unit is None else Unit(tuple(sorted(dimensions.items())), size)


def is_angle(units: tuple[str, ...]) -> bool:
    """Whether a unit measures angles, in degrees or in radians, between which no rational factor converts."""
    unit = unit_of(units)
    return unit is not None and unit.dimensions in ((("degrees", 1),), (("radians", 1),)) and unit.size == 1


_SUMMED = re.compile(r"(-?[\d.]+)\s*([a-z]+)\.?,?\s*(?:and\s+)?([\d.]+)\s*([a-z]+)\.?")


def summed(text: str) -> str | None:
    r"""A measure that is told in two units, in the first of them; None for anything else.

    >>> summed("2 hours 30 minutes"), summed("3 dollars and 50 cents"), summed("5 feet 3 hours")
    ('\\frac{5}{2}\\text{ hours}', '\\frac{7}{2}\\text{ dollars}', None)
    """
    match = _SUMMED.fullmatch(text)
    if match is None:
        return None
    first, second = _CANONICAL.get(match[2]), _CANONICAL.get(match[4])
    values = literal_value(match[1]), literal_value(match[3])
    if first is None or second is None or first[0] != second[0] or first[1] <= second[1] or None in values:
        return None
    whole, part = (value or Fraction(0) for value in values)
    if whole < 0 or part * second[1] >= first[1]:
        return None
    value = whole + part * second[1] / first[1]
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}\\text{{ {match[2]}}}"


def conversion(gold: tuple[str, ...], answer: tuple[str, ...]) -> Fraction | None:
    """The factor from the answer's unit to the gold's; 1 unless both are known, None where they measure different things.

    >>> conversion(("cm",), ("mm",)), conversion(("cm",), ("kg",)), conversion((), ("m",)), conversion(("apples",), ("m",))
    (Fraction(1, 10), None, Fraction(1, 1), None)
    """
    first, second = unit_of(gold), unit_of(answer)
    if not gold or not answer:
        return Fraction(1)
    if first is None and second is None:
        return Fraction(1) if _same_things(" ".join(gold), " ".join(answer)) else None
    if first is None or second is None:
        # Centimeters may be called units; they are no apples.
        other = " ".join(gold if first is None else answer)
        return Fraction(1) if not other.strip() or "unit" in other else None
    if first.dimensions != second.dimensions:
        names = {dimension for dimension, _ in (*first.dimensions, *second.dimensions)}
        same_power = [power for _, power in first.dimensions] == [power for _, power in second.dimensions]
        pounds = names in ({"pounds", "mass"}, {"pounds", "sterling"}) and same_power
        sizes = {unit.size for unit in (first, second)} <= {Fraction(1), _CANONICAL["lb"][1]}
        return Fraction(1) if pounds and sizes else None
    return second.size / first.size


# What is counted may be called by these, whatever it is.
_ANYTHING = frozenset(
    [
        "unit",
        "units",
        "total",
        "item",
        "items",
        "thing",
        "things",
        "object",
        "objects",
        "piece",
        "pieces",
        "way",
        "ways",
        "time",
        "times",
        "people",
        "person",
        "student",
        "students",
        "each",
        "per",
        "in",
        "of",
        "the",
        "left",
    ]
)


def _same_things(gold: str, answer: str) -> bool:
    """Whether two descriptions of what was counted may mean the same: they share a noun, or one is general.

    >>> _same_things("red apples", "apples per box"), _same_things("apples", "oranges"), _same_things("apples", "items")
    (True, False, True)
    """
    first, second = ({word.rstrip("s") for word in _WORD.findall(text) if len(word) > 2} for text in (gold, answer))
    general = {word.rstrip("s") for word in _ANYTHING}
    return bool(first & second) or not first or not second or first <= general or second <= general
