"""One solver per family: from the plain text of a question to its answer, by another route than the family's own."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy

from mathturn_gym.problems.families.registry import solves
from oracle._exact import Polynomial, root_of, solve_linear, value
from oracle._reading import UnreadableError, evaluated, expression, numbers

x = sympy.Symbol("x")


def find(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    if match is None:
        raise UnreadableError(f"{text!r} does not match {pattern!r}")
    return match.groups()


@solves("integers", "rationals", "multiplication", "add", "mul")
def evaluate(text: str) -> Any:
    """The value of the expression in the question."""
    return expression(find(r"(?:What is|Calculate|Multiply:) (.+?)(?: and give.*|\?|\.)$", text)[0])


@solves("division")
def division(text: str) -> Any:
    """By repeated doubling of the divisor, as on paper."""
    number, divisor = numbers(text)[:2]
    quotient, rest = 0, number
    for shift in reversed(range(number.bit_length())):
        if divisor << shift <= rest:
            rest -= divisor << shift
            quotient += 1 << shift
    return sympy.Tuple(quotient, rest) if "remainder" in text else sympy.Rational(number, divisor)


@solves("modular")
def modular(text: str) -> Any:
    """By sympy's Mod, and congruences by trying every remainder."""
    if "such that" in text:
        factor, rest, m = (int(n) for n in find(r"that (\d+)x leaves the remainder (\d+) when divided by (\d+)", text))
        return next(k for k in range(m) if sympy.Mod(factor * k, m) == rest)
    what, m_text = find(r"when (.+) is divided by (\d+)", text)
    return sympy.Mod(expression(what), int(m_text))


@solves("gcd-lcm")
def gcd_lcm(text: str) -> Any:
    """By prime factors."""
    powers = [sympy.factorint(number) for number in numbers(text)]
    choose = max if "multiple" in text else min
    return math.prod(b ** choose(f.get(b, 0) for f in powers) for b in set().union(*powers))


@solves("primes")
def primes(text: str) -> Any:
    """By sympy's number theory."""
    found = numbers(text)
    if "smallest prime" in text:
        return sympy.nextprime(found[0])
    if "How many prime" in text:
        return sympy.primepi(found[1]) - sympy.primepi(found[0] - 1)
    if "divisors" in text:
        return sympy.divisor_count(found[0])
    factors = sympy.primefactors(found[0])
    return max(factors) if "largest" in text else sum(factors)


@solves("bases")
def bases(text: str) -> Any:
    """By Python's own reading of digits; the answer's digits as a whole number in base 10."""
    if "Give its digits only" not in text:
        digits, base = find(r"number (\d+) is written in base (\d+)", text)
        return int(digits, int(base))
    if "is written" in text:
        digits, base, target = find(r"number (\d+) is written in base (\d+)\. Write it in base (\d+)", text)
    else:
        digits, base, target = find(r"number (\d+) \(base (10)\) in base (\d+)", text)
    value = int(digits, int(base))
    return sum(int(d) * 10**k for k, d in enumerate(_remainders(value, int(target))))


def _remainders(value: int, base: int) -> list[int]:
    return [value // base**k % base for k in range(value.bit_length() + 1)]


@solves("percentages")
def percentages(text: str) -> Any:
    """As equations."""
    found = [Fraction(n) for n in numbers(text)]
    if "What percentage" in text:
        return root_of(f"{found[0]} * x / 100 = {found[1]}")
    if "of" in text and text.startswith("What is"):
        return found[0] * found[1] / 100
    sign = "+" if "increased" in text else "-"
    if text.startswith("A number"):
        return root_of(f"x {sign} x * {found[0]} / 100 = {found[1]}")
    result = value(f"n {sign} n * {found[1]} / 100", n=found[0])
    return result - result * found[2] / 100 if "then decreased" in text else result


def _difference(equation: str) -> Polynomial:
    left, right = equation.split("=")
    return Polynomial.read(left) - Polynomial.read(right)


@solves("linear")
def linear(text: str) -> Any:
    """From the values of both sides, which must be those of a linear equation with one solution."""
    return root_of(find(r"x: (.+)\. Give", text)[0])


@solves("lins", "lins-pairs")
def lins(text: str) -> Any:
    """The same, in the generator's wording."""
    return root_of(find(r"Solve (.+) for x\.", text)[0])


@solves("story")
def story(text: str) -> int:
    """The two numbers, by the words that say what happens to them."""
    a, b = (int(n) for n in re.findall(r"\d+", text))
    if " each" in text:
        return a * b
    return a - b if re.search(r" left\b", text) else a + b


@solves("quadratic")
def quadratic(text: str) -> Any:
    """By trying all rational numbers that can be solutions, else by completing the square."""
    polynomial = _difference(find(r"solutions of (.+)\. Give", text)[0])
    rational = polynomial.rational_roots()
    if rational:
        if len(rational) != polynomial.degree:
            raise UnreadableError(f"{text!r} has not two different solutions")
        return rational[-1]
    c, b, a = (sympy.Rational(k) for k in polynomial.coefficients)
    middle = -b / (2 * a)
    return middle + sympy.sqrt(middle**2 - c / a)


@solves("systems")
def systems(text: str) -> Any:
    """By elimination, the coefficients from the equations' values at 0 and 1."""
    equations, unknowns = find(r"system (.+)\. Give the solution as \((.+)\)", text)
    names = unknowns.split(", ")
    return sympy.Tuple(*solve_linear(re.split(r", | and ", equations), names))


@solves("inequalities")
def inequalities(text: str) -> Any:
    """Ends from the equation, whole numbers by trying them all."""
    pattern = r"(?:satisfy|satisfies|with) (.+?) (<=|>=|<|>) (-?\d+)(?:\?| form)"
    left, sign, right = find(pattern, text)
    f = Polynomial.read(left.strip("|"))
    height: Callable[[Any], Any] = (lambda k: abs(f(k))) if "|" in left else f
    bound = int(right)
    if "pair" in text:
        bounds = {bound, -bound} if "|" in left else {bound}
        ends = sorted(root for b in bounds for root in (f - Polynomial(b)).rational_roots())
        if not _holds(sign, height((ends[0] + ends[-1]) / 2), bound):
            raise UnreadableError(f"the solutions of {left} {sign} {right} do not lie between {ends}")
        return sympy.Tuple(ends[0], ends[-1])
    good = [k for k in range(-200, 201) if _holds(sign, height(k), bound)]
    if "How many" in text:
        return sum(k > 0 for k in good) if "positive" in text else len(good)
    return min(good) if "smallest" in text else max(good)


def _holds(sign: str, left: Any, right: int) -> bool:
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign])


@solves("expansion")
def expansion(text: str) -> Any:
    """By multiplying out."""
    power, product = find(r"coefficient of (.+) when (.+) is expanded", text)
    return Polynomial.read(product).coefficients[Polynomial.read(power).degree]


@solves("factoring")
def factoring(text: str) -> Any:
    """Constants from the rational roots, put into the product again."""
    if text.startswith("All"):
        polynomial = _difference(find(r"of (.+) are", text)[0])
        roots = polynomial.rational_roots()
        if len(roots) != polynomial.degree:
            raise UnreadableError(f"{text!r} has not {polynomial.degree} different solutions")
        return sympy.Tuple(*roots)
    written, product = find(r"Write (.+) as (.+) with", text)
    polynomial = Polynomial.read(written)
    roots = polynomial.rational_roots()
    first, second = roots[0], roots[-1]  # a double root is found once
    pairs = [(-polynomial.coefficients[-1] * a, -b) for a, b in ((first, second), (second, first))]
    good = {(a, b) for a, b in pairs if a.denominator == b.denominator == 1 and ("<=" not in text or a <= b)}
    (answer,) = good  # exactly one: the question has one answer
    letters = {name: Polynomial(number) for name, number in zip("pq", answer, strict=True)}
    put_in = evaluated(product, Polynomial, {"x": Polynomial([0, 1]), **letters}, {})
    if (put_in - polynomial).coefficients != [0]:
        raise UnreadableError(f"{written} is not {product} for {answer}")
    return sympy.Tuple(*answer)


@solves("sequences")
def sequences(text: str) -> Any:
    """Term by term, and the infinite series from S = first + ratio * S."""
    if "infinitely" in text:
        start, factor = find(r"first term (-?\d+) and the common ratio (\S+)\.", text)
        if not -1 < value(factor) < 1:
            raise UnreadableError(f"the series of {text!r} has no sum")
        return root_of(f"S = {start} + {factor} * S", "S")
    if "arithmetic" in text:
        first, step, n = numbers(text)
        terms = list(itertools.accumulate([step] * (n - 1), initial=first))
        return sum(terms) if "sum" in text else terms[-1]
    if "geometric" in text:
        first, ratio, n = numbers(text)
        return list(itertools.accumulate([ratio] * (n - 1), lambda a, b: a * b, initial=first))[-1]
    one, two, rule, last = find(
        r"a\(1\) = (\d+), a\(2\) = (\d+) and a\(n\) = (.+) for n >= 3\. What is a\((\d+)\)", text
    )
    known = [int(one), int(two)]
    step_rule = rule.replace("a(n-1)", "u").replace("a(n-2)", "v")
    while len(known) < int(last):
        known.append(int(value(step_rule, u=Fraction(known[-1]), v=Fraction(known[-2]))))
    return known[-1]


def _chosen(n: int, k: int) -> int:
    """Choices of k of n, by Pascal's rule."""
    row = [1]
    for _ in range(n):
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    return row[k]


@solves("combinatorics")
def combinatorics(text: str) -> Any:
    """By Pascal's triangle, walking grids and generating functions."""
    found = numbers(text)
    if "different" in text and "chosen" in text:
        return _chosen(found[1], found[0])
    if "row" in text:
        return sympy.ff(found[1], found[0])
    if "letters" in text:
        counts, left, ways = Counter(find(r"letters of (\w+)", text)[0]), 0, 1
        for count in counts.values():
            left += count
            ways *= _chosen(left, count)
        return ways
    if "committee" in text:
        _, a, b, women, men = found
        return sympy.binomial(women, a) * sympy.binomial(men, b)
    if "path" in text:
        return _walk(*[tuple(map(int, pair)) for pair in re.findall(r"\((\d+), (\d+)\)", text)])
    total = int(find(r"= (\d+) have", text)[0])
    names = len(re.findall(r"x\d+", text))
    series = [0 if "positive" in text else 1, *[1] * total]
    product = [1] + [0] * total
    for _ in range(names):
        product = [sum(product[i] * series[n - i] for i in range(n + 1)) for n in range(total + 1)]
    return product[total]


def _walk(start: tuple[int, ...], end: tuple[int, ...], through: tuple[int, ...]) -> int:
    """Paths on the grid that pass a point, counted corner by corner."""

    def ways(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        row = [1] * (b[0] - a[0] + 1)
        for _ in range(b[1] - a[1]):
            row = list(itertools.accumulate(row))
        return row[-1]

    return ways(start, through) * ways(through, end)


@solves("probability")
def probability(text: str) -> Any:
    """Ball by ball, face by face, toss by toss."""
    found = numbers(text)
    if "dice" in text:
        faces, others, total = found[1], found[3], found[4]
        kind = find(r"sum is (exactly|at least|at most)", text)[0]
        good = sum(
            {"exactly": a + b == total, "at least": a + b >= total, "at most": a + b <= total}[kind]
            for a, b in itertools.product(range(1, faces + 1), range(1, others + 1))
        )
        return sympy.Rational(good, faces * others)
    if "coin" in text:
        return _tosses(text)
    red, blue, green = found[:3]
    urn = {"red": red, "blue": blue, "green": green}
    if "One ball" in text:
        return sympy.Rational(urn[find(r"it is (\w+)\?", text)[0]], sum(urn.values()))
    if "Two balls" in text:
        count = urn[find(r"both are (\w+)\?", text)[0]]
        return sympy.Rational(count, sum(urn.values())) * sympy.Rational(count - 1, sum(urn.values()) - 1)
    drawn, wanted = found[3], found[4]
    chances = {0: Fraction(1)}  # red balls drawn so far -> probability
    for k in range(drawn):
        grown: dict[int, Fraction] = {}
        for reds, chance in chances.items():
            hit = Fraction(max(red - reds, 0), sum(urn.values()) - k)
            grown[reds + 1] = grown.get(reds + 1, Fraction(0)) + chance * hit
            grown[reds] = grown.get(reds, Fraction(0)) + chance * (1 - hit)
        chances = grown
    return sympy.Rational(chances[wanted].numerator, chances[wanted].denominator)


def _tosses(text: str) -> Any:
    """Coefficients of (1 - p + p h)^n."""
    chance = Fraction(1, 2) if "fair" in text else Fraction(find(r"probability (\d+/\d+) is", text)[0])
    tosses = int(find(r"tossed (\d+) times", text)[0])
    kind, heads = find(r"of (exactly|at least) (\d+) heads", text)
    coefficients = (Polynomial([1 - chance, chance]) ** Polynomial(tosses)).coefficients
    return coefficients[int(heads)] if kind == "exactly" else sum(coefficients[int(heads) :])
