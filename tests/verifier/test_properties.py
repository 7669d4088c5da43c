"""Laws over random input: no tier contradicts the one behind it, nothing raises, an answer equals itself."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import mpmath
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from thorough import examples

from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.reading._nodes import ParseError, UndefinedError
from mathturn_gym.verifier.reading._parser import parse
from mathturn_gym.verifier.reading._prepared import prepare
from mathturn_gym.verifier.symbolic._pool import shared_pool
from mathturn_gym.verifier.tiers._decide import decide
from mathturn_gym.verifier.tiers._fields import ExactField, FloatField, exact
from mathturn_gym.verifier.tiers._precise import PreciseField, precisely
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar
from mathturn_gym.verifier.tiers._structure import same

X, Y = sympy.symbols("x y", positive=True)
EXACT = Rounding()

# Trees as nested tuples, so that one strategy gives the LaTeX and the sympy form of the same expression.
Tree: TypeAlias = tuple[Any, ...]
leaves = st.one_of(
    st.integers(-9, 9).map(lambda n: ("num", n)),
    st.tuples(st.integers(-9, 9), st.integers(2, 7)).map(lambda pair: ("frac", *pair)),
)
unknowns = st.sampled_from([("sym", "x"), ("sym", "y")])


def grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "div"]), inner, inner),
        st.tuples(st.just("pow"), inner, st.integers(1, 3).map(lambda n: ("num", n))),
        st.tuples(st.sampled_from(["sqrt", "neg", "sin", "exp"]), inner),
    )


numbers = st.recursive(leaves, grow, max_leaves=5)
functions = st.recursive(st.one_of(leaves, unknowns), grow, max_leaves=6)


def latex(tree: Tree) -> str:
    op, *args = tree
    if op in ("num", "sym"):
        return f"({args[0]})" if op == "num" and args[0] < 0 else str(args[0])
    if op == "frac":
        return f"\\frac{{{args[0]}}}{{{args[1]}}}"
    parts = [latex(arg) for arg in args]
    if op in ("add", "sub"):
        return f"({parts[0]}{'+' if op == 'add' else '-'}{parts[1]})"
    if op == "div":
        return f"\\frac{{{parts[0]}}}{{{parts[1]}}}"
    return {
        "mul": f"({parts[0]})({parts[-1]})",
        "pow": f"({parts[0]})^{{{parts[-1]}}}",
        "sqrt": f"\\sqrt{{{parts[0]}}}",
        "neg": f"(-{parts[0]})",
        "sin": f"\\sin({parts[0]})",
        "exp": f"e^{{{parts[0]}}}",
    }[op]


@functools.cache
def reference(tree: Tree) -> sympy.Expr:
    op, *args = tree
    if op == "num":
        return sympy.Integer(args[0])
    if op == "sym":
        return X if args[0] == "x" else Y
    if op == "frac":
        return sympy.Rational(*args)
    a, *rest = (reference(arg) for arg in args)
    b = rest[0] if rest else None
    if op == "div" and b == 0:
        return sympy.nan
    return {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: a / b,
        "pow": lambda: a**b,
        "sqrt": lambda: sympy.sqrt(a),
        "neg": lambda: -a,
        "sin": lambda: sympy.sin(a),
        "exp": lambda: sympy.exp(a),
    }[op]()


def values(tree: Tree) -> list[mpmath.mpc] | None:
    """The reference's values at fixed points, to 60 digits; None where it has none at one of them."""
    found = []
    for x, y in ((1.25, 0.75), (2.5, 3.125), (0.375, 1.5)):
        with mpmath.workdps(60):
            value = reference(tree).subs({X: sympy.Rational(x), Y: sympy.Rational(y)}).evalf(60)
            if value.has(sympy.nan, sympy.zoo, sympy.oo) or not value.is_number:
                return None
            found.append(mpmath.mpmathify(value))
    return found


def truly_equal(first: Tree, second: Tree) -> bool | None:
    a, b = values(first), values(second)
    if a is None or b is None:
        return None
    with mpmath.workdps(60):
        return all(abs(u - v) <= mpmath.mpf(10) ** -40 * max(1, abs(u)) for u, v in zip(a, b, strict=True))


def rewritten(tree: Tree) -> Tree:
    """An equal tree: sums and products turned round, squares multiplied out, halves doubled."""
    op, *args = tree
    if op in ("num", "sym", "frac"):
        return ("div", ("mul", tree, ("num", 2)), ("num", 2))
    parts = [rewritten(arg) if op != "pow" or index == 0 else arg for index, arg in enumerate(args)]
    if op in ("add", "mul"):
        return (op, parts[1], parts[0])
    if op == "sub":
        return ("neg", ("sub", parts[1], parts[0]))
    if op == "pow" and parts[1] == ("num", 2):
        return ("mul", parts[0], parts[0])
    return (op, *parts)


def check_scalars(first: Tree, second: Tree) -> None:
    truth = truly_equal(first, second)
    assume(truth is not None)
    found = same(parse(latex(first)).node, parse(latex(second)).node, EXACT)
    assert found is None or found is truth, (latex(first), latex(second))


@settings(max_examples=examples(250))
@given(numbers, numbers)
def test_numbers_are_judged_as_sympy_evaluates_them(first: Tree, second: Tree) -> None:
    check_scalars(first, second)


@settings(max_examples=examples(200))
@given(numbers)
def test_equal_numbers_are_never_refuted(tree: Tree) -> None:
    check_scalars(tree, rewritten(tree))


@settings(max_examples=examples(200))
@given(functions, functions)
def test_functions_are_judged_as_sympy_evaluates_them(first: Tree, second: Tree) -> None:
    check_scalars(first, second)


@settings(max_examples=examples(200))
@given(functions)
def test_equal_functions_are_never_refuted(tree: Tree) -> None:
    check_scalars(tree, rewritten(tree))


@settings(max_examples=examples(200))
@given(numbers)
def test_fields_agree_where_more_than_one_has_a_value(tree: Tree) -> None:
    node = parse(latex(tree)).node
    rational = exact(node)
    try:
        approximate, error = FloatField({}).visit(node)
    except UndefinedError:
        return
    assert error < 1.0 + abs(approximate)
    if rational is not None:
        assert abs(approximate - float(rational)) <= 4 * error + 1e-300
    with precisely():
        try:
            real, imaginary = PreciseField({}).visit(node)
        except ArithmeticError:
            return
        assert abs(approximate - complex(float(real), float(imaginary))) <= 4 * error + 1e-12 * abs(approximate)


spellings = st.tuples(st.integers(-999, 999), st.integers(1, 60)).map(lambda pair: Fraction(*pair))


@settings(max_examples=examples(200))
@given(spellings, spellings, st.sampled_from(["%s/%s", "\\frac{%s}{%s}", "(%s)/%s"]))
def test_the_rational_tier_agrees_with_the_trees(gold: Fraction, answer: Fraction, form: str) -> None:
    texts = [form % (value.numerator, value.denominator) for value in (gold, answer)]
    finding = decide(prepare(texts[0]), prepare(texts[1]), evaluated=False, rounding=EXACT)
    assert (finding.status is Status.RIGHT) == (gold == answer)
    assert same(parse(texts[0]).node, parse(texts[1]).node, EXACT) is (gold == answer)


polynomials = st.lists(st.integers(-5, 5), min_size=1, max_size=4)


def polynomial(coefficients: list[int]) -> str:
    terms = [f"{value:+d}x^{{{power}}}" for power, value in enumerate(coefficients) if value]
    return "".join(terms) or "0"


def test_the_trees_agree_with_the_symbolic_workers() -> None:
    # Polynomials and radicals, on which math-verify can be relied; in one batch, since each case takes milliseconds.
    texts = [polynomial([a, b, 1]) for a in (-2, 3) for b in (-1, 4)] + [
        "2\\sqrt{3}",
        "\\sqrt{12}",
        "3.5",
        "\\frac{7}{2}",
    ]
    pairs = list(itertools.combinations_with_replacement(texts, 2))
    results = shared_pool(20.0, 1024, 2).compare(pairs)
    for (gold, answer), result in zip(pairs, results, strict=True):
        found = same(parse(gold).node, parse(answer).node, EXACT)
        assert found is not None
        assert result.name == ("equal" if found else "different"), (gold, answer)


pieces = st.sampled_from(
    [
        "\\boxed{",
        "}",
        "{",
        "(",
        ")",
        "[",
        "]",
        "\\{",
        "\\}",
        "\\frac",
        "\\sqrt",
        "^",
        "_",
        "!",
        "%",
        ",",
        ":",
        "=",
        "<",
        ">",
        "+",
        "-",
        "*",
        "/",
        "|",
        "$",
        "\\",
        "\\\\",
        "&",
        "\\text{",
        "\\pm",
        "\\cup",
        "\\infty",
        "\\pi",
        "e",
        "i",
        "x",
        "1",
        "7",
        ".",
        "\\left(",
        "\\right)",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\le",
        "\\ne",
        "\\in",
        "\\log",
        "\\sin",
        "^{",
        "_{",
        "or",
        "and",
        "1,234",
        "0.3",
        "\\mathbb{R}",
        "\\equiv",
        "\\pmod",
        "½",
        "−",
        "π",
        "�",
    ]
)
noise = st.one_of(
    st.text(max_size=60), st.lists(pieces, max_size=14).map("".join), st.lists(pieces, max_size=8).map(" ".join)
)


@settings(max_examples=examples(600))
@given(noise, noise)
def test_nothing_that_is_written_raises(first: str, second: str) -> None:
    verifier = Verifier()
    verdict = verifier.verify(first, "42")
    assert verdict.status in Status
    again = verifier.verify(f"\\boxed{{{first}}}", "42")
    assert again.status in Status
    # Trees of both sides, without the symbolic workers.
    finding = decide(prepare(second), prepare(first), evaluated=False, rounding=EXACT)
    assert finding == decide(prepare(second), prepare(first), evaluated=False, rounding=EXACT)


@settings(max_examples=examples(300))
@given(noise)
def test_an_answer_equals_itself(text: str) -> None:
    assume(text.strip() and "\\boxed" not in text and "\\fbox" not in text)
    prepared = prepare(text.strip())
    assume(prepared.squeezed)
    assert decide(prepared, prepare(text.strip()), evaluated=True, rounding=EXACT).status is Status.RIGHT


@settings(max_examples=examples(300))
@given(noise)
def test_parsing_ends_in_a_tree_or_a_parse_error(text: str) -> None:
    try:
        node = parse(text).node
    except ParseError:
        return
    assert same_scalar(node, node) is True


@given(st.floats(-5, 5), st.sampled_from(["sin", "cos", "exp", "arctan"]))
def test_sixty_digits_are_sixty_digits(value: float, name: str) -> None:
    # An argument of more digits than are compared is refused, and so is one too small to be seen in the cosine.
    given = Fraction(value).limit_denominator(10**9)
    node = parse(f"\\{name}({given})").node if name != "exp" else parse(f"e^{{{given}}}").node
    with precisely():
        real, _ = PreciseField({}).visit(node)
    with mpmath.workdps(70):
        argument = mpmath.mpf(given.numerator) / given.denominator
        wanted = {"sin": mpmath.sin, "cos": mpmath.cos, "exp": mpmath.exp, "arctan": mpmath.atan}[name](argument)
        assert abs(mpmath.mpf(str(real)) - wanted) <= mpmath.mpf(10) ** -58 * max(1, abs(wanted))


def test_exact_powers_and_roots_are_bounded() -> None:
    field = ExactField()
    for text in ("2^{10^{9}}", "(10^{9})!", "\\binom{10^9}{5}", "0^{-1}", "\\sqrt{2}", "0^0"):
        try:
            value = field.visit(parse(text).node)
        except UndefinedError:
            continue
        raise AssertionError((text, value))
    assert field.visit(parse("\\sqrt[3]{27}\\cdot 4^{3/2}").node) == 24
    assert math.isclose(float(field.visit(parse("\\binom{40}{20}").node)), math.comb(40, 20))


boxes = st.sampled_from(
    [
        "\\boxed{%s}",
        "x \\boxed{%s}.",
        "\\boxed{1} and \\boxed{%s}",
        "<think>\\boxed{%s}",
        "\\boxed{%s} \\boxed{2}",
        "\\boxed{%s",
        "\\boxed{%s} <think> \\boxed{9}",
        "\\boxed{\\text{%s}}",
        "\\boxed{1}" + "z" * 90 + "\\boxed{%s}",
        "\\boxed{%s}}",
        "\\boxed{{%s}}",
        "\\fbox{3} \\boxed{%s}",
        "\\boxed %s",
        "#### %s",
        "####%s",
        "####  %s",
        "#### 3\n#### %s",
        "#### %s\n",
        "#### %s\nx",
        "\\fbox{3} #### %s",
        "<think>#### %s",
        "#### 1 #### %s",
    ]
)
integers = st.sampled_from(
    ["7", "07", "1,234", "1234", "-7", " 7", "7 ", "٧", "²", "1,234,567", "1234567", "9" * 30, ""]
)


@settings(max_examples=examples(150))
@given(boxes, integers, integers, st.sampled_from(["boxed", "marked"]))
def test_the_quick_way_finds_what_the_long_way_finds(
    form: str, answer: str, gold: str, policy: Literal["boxed", "marked"]
) -> None:
    assume(gold.strip())
    verifier = Verifier(extract=policy)
    response = form % answer
    quick = verifier.verify(response, gold)
    verifier._quick = False
    assert verifier.verify(response, gold) == quick
