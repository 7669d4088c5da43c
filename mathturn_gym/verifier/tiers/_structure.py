"""Two trees side by side: lists, tuples, matrices, sets, relations, down to the scalars in them.

Three answers: True and False are certain, None passes the case on.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from mathturn_gym.verifier.reading._nodes import (
    Node,
    Transformer,
    UndefinedError,
    has_kind,
    is_curve_name,
    replace_pm,
    symbols,
    walk,
)
from mathturn_gym.verifier.reading._words import spelt_out
from mathturn_gym.verifier.tiers._relations import (
    INEQUALITIES,
    as_set,
    clauses,
    hold_elsewhere,
    is_equation,
    mixes_and_with_or,
    name_of,
    named_value,
    one_name,
    same_congruence,
    same_equation,
    same_inequality,
    same_ratio,
    same_set,
)
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar

_MAX_POWER = 6
# Comparisons of the items of two lists.
_MAX_PAIRS = 5_000


class _WorkOut(Transformer):
    """Raises `UndefinedError` where shapes do not fit, or a matrix stands where only a number can."""

    def visit_add(self, node: Node) -> Node:
        args = tuple(map(self.visit, node.args))
        if not any(arg.kind == "matrix" for arg in args):
            return Node("add", args)
        first = args[0]
        if any(arg.kind != "matrix" or arg.value != first.value for arg in args):
            raise UndefinedError("matrices of different shapes")
        return Node(
            "matrix",
            tuple(Node("add", entries) for entries in zip(*(arg.args for arg in args), strict=True)),
            first.value,
        )

    def visit_neg(self, node: Node) -> Node:
        inner = self.visit(node.args[0])
        if inner.kind != "matrix":
            return Node("neg", (inner,))
        return Node("matrix", tuple(Node("neg", (entry,)) for entry in inner.args), inner.value)

    def visit_mul(self, node: Node) -> Node:
        result, *rest = map(self.visit, node.args)
        for arg in rest:
            result = _times(result, arg)
        return result

    def visit_pow(self, node: Node) -> Node:
        base, exponent = self.visit(node.args[0]), node.args[1]
        if base.kind != "matrix":
            return Node("pow", (base, exponent))
        rows, columns = _shape(base)
        if exponent.kind == "sym" and exponent.value == "T":
            entries = [base.args[row * columns + column] for column in range(columns) for row in range(rows)]
            return Node("matrix", tuple(entries), (columns, rows))
        power = exponent.value
        if not isinstance(power, Fraction) or power not in range(1, _MAX_POWER + 1):
            raise UndefinedError("power of a matrix")
        return functools.reduce(_times, [base] * int(power))


_WORK_OUT = _WorkOut()


def _times(left: Node, right: Node) -> Node:
    if left.kind != "matrix" and right.kind != "matrix":
        return Node("mul", (left, right))
    if left.kind != "matrix" or right.kind != "matrix":
        matrix, factor = (left, right) if left.kind == "matrix" else (right, left)
        return Node("matrix", tuple(Node("mul", (factor, entry)) for entry in matrix.args), matrix.value)
    (rows, inner), (other, columns) = _shape(left), _shape(right)
    if inner != other:
        raise UndefinedError("matrices that cannot be multiplied")
    entries = []
    for row in range(rows):
        for column in range(columns):
            products = [
                Node("mul", (left.args[row * inner + k], right.args[k * columns + column])) for k in range(inner)
            ]
            entries.append(products[0] if inner == 1 else Node("add", tuple(products)))
    return Node("matrix", tuple(entries), (rows, columns))


def _shape(matrix: Node) -> tuple[int, int]:
    assert isinstance(matrix.value, tuple)
    rows, columns = map(int, matrix.value)
    return rows, columns


def _holds_matrix(node: Node) -> bool:
    """Whether a matrix stands under nothing but signs of arithmetic and equality."""
    if node.kind not in ("add", "mul", "neg", "rel", "pow"):
        return False
    return any(arg.kind == "matrix" or _holds_matrix(arg) for arg in node.args)


def with_matrices_worked_out(node: Node) -> Node:
    r"""The tree with its sums and products of matrices as matrices; the tree itself where there is nothing to work out.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> tree = parse("\\begin{matrix}1\x012\\end{matrix}+\\begin{matrix}3\x014\\end{matrix}").node
    >>> with_matrices_worked_out(tree).kind
    'matrix'
    """
    if not _holds_matrix(node):
        return node
    try:
        return _WORK_OUT.visit(node)
    except UndefinedError:
        return node


_COLLECTIONS = ("list", "set", "interval", "union", "tuple", "matrix")


def same(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Whether an answer is what the gold is.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> same(parse("1, 2").node, parse("2, 1").node, Rounding()), same(parse("(1, 2)").node, parse("(2, 1)").node, Rounding())
    (True, False)
    """
    if gold == answer:
        return True
    gold, answer = (_collapsed(with_matrices_worked_out(side), rounding) for side in (gold, answer))
    gold, answer = _spread(_signs_apart(gold, answer)), _spread(_signs_apart(answer, gold))
    if _percent_in_part(answer) and not has_kind(gold, "percent"):
        return False
    if gold.kind == "rel" or answer.kind == "rel":
        return _same_relations(gold, answer, rounding)
    if gold.kind == "list" or answer.kind == "list":
        return _same_lists(gold, answer, rounding)
    if gold.kind == "cong" or answer.kind == "cong":
        return same_congruence(gold, answer) if gold.kind == answer.kind else False
    if gold.kind == "ratio" or answer.kind == "ratio":
        return same_ratio(gold, answer, rounding)
    if "based" in (gold.kind, answer.kind):
        values = _in_base(gold), _in_base(answer)
        if None not in values:
            return values[0] == values[1]
        return gold.kind == answer.kind and all(same_scalar(a, b) for a, b in zip(gold.args, answer.args, strict=True))
    if _is_set(gold) or _is_set(answer):
        return _same_sets(gold, answer, rounding)
    if gold.kind == "set" or answer.kind == "set":
        return _same_unordered(_members(gold), _members(answer), rounding, distinct=True)
    if gold.kind in ("tuple", "matrix") or answer.kind in ("tuple", "matrix"):
        return _same_ordered(gold, answer, rounding)
    return _same_values(gold, answer, rounding)


def _percent_in_part(node: Node) -> bool:
    """Whether some of the items of a collection are in percent, and others are not."""
    return node.kind in _COLLECTIONS and len({item.kind == "percent" for item in node.args}) == 2


def _in_base(node: Node) -> int | None:
    """The value of digits with their base, in figures or in words; None for anything else."""
    if node.kind != "based":
        return None
    base = node.args[1]
    told = spelt_out(str(base.value)) if base.kind == "text" else str(base.value)
    try:
        return int(str(node.args[0].value), int(told or ""))
    except ValueError:
        return None


def _collapsed(node: Node, rounding: Rounding) -> Node:
    """A chain of equal sets or lists as the first of them: `{1, 2} = {2, 1}`."""
    if not is_equation(node) or not all(side.kind in _COLLECTIONS for side in node.args) or name_of(node) is not None:
        return node
    first, *others = node.args
    return first if all(same(first, other, rounding) for other in others) else node


def _signs_apart(node: Node, other: Node) -> Node:
    """`(±a, ±b)` as four points where the other side has four, each sign for itself; else the tree itself."""
    signs = [index for index, arg in enumerate(node.args) if has_kind(arg, "pm")]
    if node.kind != "tuple" or len(signs) < 2 or len(_members(other)) != 2 ** len(signs) or has_kind(other, "pm", "mp"):
        return node
    entries = [[replace_pm(arg, 1), replace_pm(arg, -1)] if has_kind(arg, "pm") else [arg] for arg in node.args]
    points = tuple(Node("tuple", args) for args in itertools.product(*entries))
    return Node("list", points, (",",) * (len(points) - 1))


def _spread(node: Node) -> Node:
    """`a ± b` as the list of its two values."""
    if node.kind in ("list", "set"):
        if not has_kind(node, "pm", "mp"):
            return node
        items: list[Node] = []
        for item in node.args:
            items.extend((replace_pm(item, 1), replace_pm(item, -1)) if has_kind(item, "pm", "mp") else (item,))
        return Node(node.kind, tuple(items), (",",) * (len(items) - 1) if node.kind == "list" else None)
    if has_kind(node, "pm", "mp"):
        return Node("list", (replace_pm(node, 1), replace_pm(node, -1)), ("or",))
    return node


def _same_values(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Scalars, with a percent sign read both ways where only one side has it."""
    if (gold.kind == "percent") == (answer.kind == "percent"):
        return same_scalar(gold, answer, rounding)
    plain, bare = (answer, gold.args[0]) if gold.kind == "percent" else (gold, answer.args[0])
    found = [same_scalar(bare, plain, rounding), same_scalar(Node("percent", (bare,)), plain, rounding)]
    return True if True in found else None if None in found else False


def _is_set(node: Node) -> bool:
    return node.kind in ("interval", "union", "inter", "minus") or (
        node.kind == "sym" and str(node.value).startswith("set:")
    )


def _same_sets(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    first, second = as_set(gold), as_set(answer)
    if first is not None and second is not None:
        return same_set(first, second, rounding)
    if gold.kind == answer.kind == "sym":
        return gold.value == answer.value
    if gold.kind == answer.kind == "interval":
        if gold.value != answer.value:
            return False
        return _every([same(a, b, rounding) for a, b in zip(gold.args, answer.args, strict=True)])
    if gold.kind == answer.kind and gold.kind in ("union", "inter"):
        return _same_unordered(gold.args, answer.args, rounding) or None
    other = answer if _is_set(gold) else gold
    return None if _is_set(other) else False


def _same_member(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """`same` for what stands in a collection: there, the set of 2 is no 2."""
    return same(gold, answer, rounding) if (gold.kind == "set") == (answer.kind == "set") else False


def _members(node: Node) -> tuple[Node, ...]:
    return node.args if node.kind in ("list", "set") else (node,)


def _every(found: Sequence[bool | None]) -> bool | None:
    return False if False in found else None if None in found else True


def _same_lists(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Lists are unordered; a tuple is not a list, but `x=1, y=2` is one."""
    for first, second in ((gold, answer), (answer, gold)):
        if first.kind == "list" and second.kind in ("tuple", "matrix") and not _all_inequalities(first):
            # x=1, y=2 is the point (1, 2), in whatever order it is told.
            told = sorted(first.args, key=lambda item: str(item.args[0].value if item.args else ""))
            values = [named_value(item) for item in told]
            if all(is_equation(item) for item in first.args) and None not in values:
                listed = Node("tuple", tuple(value for value in values if value is not None))
                return same(listed, second, rounding) if first is gold else same(second, listed, rounding)
            return False
    inequalities = [as_set(node) if _all_inequalities(node) else None for node in (gold, answer)]
    if inequalities[0] is not None or inequalities[1] is not None:
        first_set, second_set = (
            found or as_set(node) for found, node in zip(inequalities, (gold, answer), strict=True)
        )
        names = symbols(gold), symbols(answer)
        if _all_inequalities(gold) and _all_inequalities(answer) and names[0] != names[1]:
            return False if len(names[0]) == len(names[1]) == 1 else None
        return same_set(first_set, second_set, rounding) if first_set and second_set else None
    for first, second in ((gold, answer), (answer, gold)):
        if _alternatives(first) and second.kind not in ("list", "set"):
            # `1 or 1`: whichever one takes, it is the other side.
            return _every([same(item, second, rounding) for item in first.args])
    words = [set(node.value) if isinstance(node.value, tuple) else set() for node in (gold, answer)]
    if words in ([{"and"}, {"or"}], [{"or"}, {"and"}]) and any(
        item.kind == "rel" and item.args[0].kind == "sym" for item in gold.args + answer.args
    ):
        # x=1 or x=2 is not x=1 and x=2.
        return False
    if {"or"} in words and words[0] != words[1] and len({_name(item) for item in gold.args} - {None}) > 1:
        # a=2 or b=5 is not a=2, b=5.
        return False
    if mixes_and_with_or(gold) or mixes_and_with_or(answer):
        try:
            left, right = (clauses(node) if mixes_and_with_or(node) else _members(node) for node in (gold, answer))
        except UndefinedError:
            return None
        return _same_unordered(left, right, rounding)
    left, right = _members(gold), _members(answer)
    if not (_all_named(left) and _all_named(right)) or len({_name(item) for item in left + right}) == 1:
        left, right = _unnamed(left), _unnamed(right)
    return _same_unordered(left, right, rounding, distinct="set" in (gold.kind, answer.kind))


def _alternatives(node: Node) -> bool:
    return node.kind == "list" and isinstance(node.value, tuple) and set(node.value) == {"or"}


def _all_inequalities(node: Node) -> bool:
    members = [item.value for item in _members(node) if item.kind == "rel" and isinstance(item.value, tuple)]
    inequalities = [INEQUALITIES.issuperset(map(str, value)) for value in members]
    if node.kind == "set" or len(members) != len(_members(node)) or not any(inequalities):
        return False
    # `a <= -2 or a = 1`: an equation among inequalities is a point.
    joined = isinstance(node.value, tuple) and (set(node.value) <= {"or"} or mixes_and_with_or(node))
    return all(one or (joined and value == ("=",)) for one, value in zip(inequalities, members, strict=True))


def _all_named(items: Sequence[Node]) -> bool:
    return all(is_equation(item) and named_value(item) is not None for item in items)


def _name(item: Node) -> Node | None:
    return item.args[0] if is_equation(item) else None


def _unnamed(items: Sequence[Node]) -> tuple[Node, ...]:
    """Values without the names in front of them: `x=1, x=2` and `x=1, 2` are 1, 2."""
    plain: list[Node] = []
    for item in items:
        value = named_value(item) if is_equation(item) else None
        spread = _spread(item if value is None else value)
        plain.extend(spread.args if spread.kind == "list" else (spread,))
    return tuple(plain)


def _same_unordered(
    gold: Sequence[Node], answer: Sequence[Node], rounding: Rounding, *, distinct: bool = False
) -> bool | None:
    """A one-to-one match between two collections; in a set, what occurs twice counts once."""
    if distinct or len(gold) != len(answer):
        gold, answer = tuple(dict.fromkeys(gold)), tuple(dict.fromkeys(answer))
        if not distinct and 1 in (len(gold), len(answer)):
            # A value is not a list of it: `42, 42` is no 42. In longer lists an item told twice is told once.
            return False
        if len(gold) * len(answer) > _MAX_PAIRS:
            return None
        # Each has everything that the other has.
        found = [_any(_same_member(item, other, rounding) for other in answer) for item in gold]
        if False in found:
            return False
        return _every([*found, *(_any(_same_member(item, other, rounding) for item in gold) for other in answer)])
    # What is written alike matches; equality is transitive, so that takes no match from anybody.
    left, right = Counter(gold), Counter(answer)
    gold, free = list((left - right).elements()), list((right - left).elements())
    if len(gold) * len(free) > _MAX_PAIRS:
        return None
    unsure = False
    for item in gold:
        matches = [_same_member(item, other, rounding) for other in free]
        if True in matches:
            free.pop(matches.index(True))
        else:
            unsure |= None in matches
    if not free:
        return True
    return None if unsure else False


def _any(found: Iterable[bool | None]) -> bool | None:
    unsure = False
    for one in found:
        if one:
            return True
        unsure |= one is None
    return None if unsure else False


def _same_ordered(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Tuples and matrices entry by entry; a tuple may stand for a row or a column."""
    if gold.kind not in ("tuple", "matrix") or answer.kind not in ("tuple", "matrix"):
        return None if has_kind(gold, "matrix") and has_kind(answer, "matrix") else False
    if len(gold.args) != len(answer.args):
        return False
    if gold.kind == answer.kind and gold.value != answer.value:
        return False
    if gold.kind != answer.kind:
        shape = gold.value if gold.kind == "matrix" else answer.value
        if not isinstance(shape, tuple) or 1 not in shape:
            return False
    return _every([_same_member(a, b, rounding) for a, b in zip(gold.args, answer.args, strict=True)])


def _same_relations(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Equations, inequalities and memberships, against each other and against plain values."""
    if is_equation(gold) and is_equation(answer):
        return _same_equations(gold, answer, rounding)
    comparable = gold.kind == answer.kind == "rel" and all(
        isinstance(node.value, tuple) and {"=", *INEQUALITIES}.issuperset(map(str, node.value))
        for node in (gold, answer)
    )
    if comparable and symbols(gold) == symbols(answer) and hold_elsewhere(gold, answer):
        return False
    if is_equation(gold) or is_equation(answer):
        other = answer if is_equation(gold) else gold
        if other.kind == "list" and _all_inequalities(other):
            point, among = as_set(gold), as_set(answer)
            return same_set(point, among, rounding) if point and among and symbols(gold) == symbols(answer) else None
        return _equation_and_value(gold, answer, rounding)
    first, second = as_set(gold), as_set(answer)
    if first is not None and second is not None:
        names = symbols(gold), symbols(answer)
        if gold.kind == answer.kind == "rel" and names[0] != names[1]:
            return False if len(names[0]) == len(names[1]) == 1 else None
        return same_set(first, second, rounding)
    if not symbols(gold) and not symbols(answer):
        # 3 > 2 and 5 > 4 are both true: what they tell is which numbers stand there.
        alike = gold.kind == answer.kind and gold.value == answer.value and len(gold.args) == len(answer.args)
        return alike and all(same(a, b, rounding) for a, b in zip(gold.args, answer.args, strict=True))
    if (inequality := same_inequality(gold, answer)) is not None:
        return inequality
    for node, other in ((gold, answer), (answer, gold)):
        if node.kind == other.kind == "rel" and node.value in _BETWEEN_SETS:
            return node.value == other.value and node.args == other.args
        if node.kind == "rel" and node.value == ("\\in",):
            inner = node.args[1]
            return same(inner, other, rounding) if node is gold else same(other, inner, rounding)
    if gold.kind == answer.kind == "rel":
        if gold.value == answer.value and len(gold.args) == len(answer.args):
            return _every([same(a, b, rounding) for a, b in zip(gold.args, answer.args, strict=True)]) or None
        return None
    other = answer if gold.kind == "rel" else gold
    if other.kind == "list" and _all_inequalities(other):
        return None
    return None if _is_set(other) or other.kind in ("rel", "tuple", "set") else False


_BETWEEN_SETS = tuple((sign,) for sign in ("\\notin", "\\subset", "\\subseteq", "\\nsubseteq"))


def _same_equations(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    first, second = named_value(gold), named_value(answer)
    if _tautology(gold) or _tautology(answer):
        # It is true of everything, and tells nothing.
        return False
    if first is None or second is None:
        return same_equation(gold, answer)
    left, right = name_of(gold), name_of(answer)
    functions = bool(symbols(first) and symbols(second))
    if left is None or right is None or one_name(left, right, functions=functions):
        return same(first, second, rounding)
    if left.kind == right.kind == "sym" and left.value not in symbols(second) and right.value not in symbols(first):
        return False
    if any(item.kind == "num" or item.value == "\\angle" for name in (left, right) for item in walk(name)):
        # f(0) is no product, and the angle ABC is not ACB.
        return False
    # A right side in common is not enough: x + y = 5 is not xy = 5.
    equal = same_equation(Node("rel", (left, first), ("=",)), Node("rel", (right, second), ("=",)))
    # Where names differ, no later tier may compare the values alone.
    return equal or (None if functions and equal is None else False)


def _tautology(equation: Node) -> bool:
    """Whether all sides of an equation are written alike."""
    return all(side == equation.args[0] for side in equation.args[1:])


def _of_time(name: Node, value: Node) -> bool:
    """Whether a name is a function of time's: `x(t)`, whose value has t in it."""
    return (
        name.kind == "mul"
        and len(name.args) == 2
        and name.args[1].value == "t"
        and "t" in symbols(value)
        and str(name.args[0].value) not in symbols(value)
    )


def _equation_and_value(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    equation, other = (gold, answer) if is_equation(gold) else (answer, gold)
    value = named_value(equation)
    name = name_of(equation)
    function = name is not None and value is not None and _of_time(name, value)
    if (
        equation is gold
        and name is not None
        and is_curve_name(name)
        and not function
        and other.kind not in ("list", "rel")
    ):
        # x + y = 5 asks for a line, and 5 is none.
        return False
    if value is None:
        if other.kind in ("list", "rel"):
            return _same_lists(gold, answer, rounding) if other.kind == "list" else None
        return False if other.kind not in ("tuple", "set") else None
    if name is not None and name.kind == value.kind == "tuple" and len(name.args) == len(value.args):
        # (y, x) = (4, -3) is the point (-3, 4).
        order = sorted(range(len(name.args)), key=lambda index: str(name.args[index].value))
        value = Node("tuple", tuple(value.args[index] for index in order))
    if other.kind == "list" and value.kind != "list":
        value = _spread(value)
    return same(value, answer, rounding) if equation is gold else same(gold, value, rounding)
