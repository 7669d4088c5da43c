"""Two trees side by side: lists, tuples, matrices, sets, relations, down to the scalars in them.

Three answers: True and False are certain, None passes the case on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mathturn_gym.verifier.reading._names import is_curve_name
from mathturn_gym.verifier.reading._nodes import Node, has_kind, replace_pm, symbols
from mathturn_gym.verifier.tiers._matrices import with_matrices_worked_out
from mathturn_gym.verifier.tiers._realsets import INEQUALITIES, as_set, same_set
from mathturn_gym.verifier.tiers._relations import (
    is_equation,
    name_of,
    named_value,
    one_name,
    same_congruence,
    same_equation,
    same_ratio,
)
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar

__all__ = ["same"]

_COLLECTIONS = ("list", "set", "interval", "union", "tuple", "matrix")


def same(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Whether an answer is what the gold is.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> same(parse("1, 2").node, parse("2, 1").node, Rounding()), same(parse("(1, 2)").node, parse("(2, 1)").node, Rounding())
    (True, False)
    """
    if gold == answer:
        return True
    gold, answer = (_spread(_collapsed(with_matrices_worked_out(side), rounding)) for side in (gold, answer))
    if gold.kind == "rel" or answer.kind == "rel":
        return _same_relations(gold, answer, rounding)
    if gold.kind == "list" or answer.kind == "list":
        return _same_lists(gold, answer, rounding)
    if gold.kind == "cong" or answer.kind == "cong":
        return same_congruence(gold, answer) if gold.kind == answer.kind else False
    if gold.kind == "ratio" or answer.kind == "ratio":
        return same_ratio(gold, answer, rounding)
    if "based" in (gold.kind, answer.kind):
        return gold.kind == answer.kind and all(same_scalar(a, b) for a, b in zip(gold.args, answer.args, strict=True))
    if _is_set(gold) or _is_set(answer):
        return _same_sets(gold, answer, rounding)
    if gold.kind == "set" or answer.kind == "set":
        return _same_unordered(_members(gold), _members(answer), rounding, distinct=True)
    if gold.kind in ("tuple", "matrix") or answer.kind in ("tuple", "matrix"):
        return _same_ordered(gold, answer, rounding)
    return _same_values(gold, answer, rounding)


def _collapsed(node: Node, rounding: Rounding) -> Node:
    """A chain of equal sets or lists as the first of them: `{1, 2} = {2, 1}`."""
    if not is_equation(node) or not all(side.kind in _COLLECTIONS for side in node.args) or name_of(node) is not None:
        return node
    first, *others = node.args
    return first if all(same(first, other, rounding) for other in others) else node


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
    if gold.kind == answer.kind == "union":
        return _same_unordered(gold.args, answer.args, rounding) or None
    other = answer if _is_set(gold) else gold
    return None if _is_set(other) else False


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
        return same_set(first_set, second_set, rounding) if first_set and second_set else None
    for first, second in ((gold, answer), (answer, gold)):
        if _alternatives(first) and second.kind not in ("list", "set"):
            # `1 or 1`: whichever one takes, it is the other side.
            return _every([same(item, second, rounding) for item in first.args])
    left, right = _members(gold), _members(answer)
    if not (_all_named(left) and _all_named(right)) or len({_name(item) for item in left + right}) == 1:
        left, right = _unnamed(left), _unnamed(right)
    return _same_unordered(left, right, rounding, distinct="set" in (gold.kind, answer.kind))


def _alternatives(node: Node) -> bool:
    return node.kind == "list" and isinstance(node.value, tuple) and set(node.value) == {"or"}


def _all_inequalities(node: Node) -> bool:
    return node.kind != "set" and all(
        item.kind == "rel" and isinstance(item.value, tuple) and INEQUALITIES.issuperset(map(str, item.value))
        for item in _members(node)
    )


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
        # Each has everything that the other has.
        found = [_any(same(item, other, rounding) for other in answer) for item in gold]
        if False in found:
            return False
        return _every([*found, *(_any(same(item, other, rounding) for item in gold) for other in answer)])
    # What is written alike matches; equality is transitive, so that takes no match from anybody.
    left, right = Counter(gold), Counter(answer)
    gold, free = list((left - right).elements()), list((right - left).elements())
    unsure = False
    for item in gold:
        matches = [same(item, other, rounding) for other in free]
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
    return _every([same(a, b, rounding) for a, b in zip(gold.args, answer.args, strict=True)])


def _same_relations(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Equations, inequalities and memberships, against each other and against plain values."""
    if is_equation(gold) and is_equation(answer):
        return _same_equations(gold, answer, rounding)
    if is_equation(gold) or is_equation(answer):
        return _equation_and_value(gold, answer, rounding)
    first, second = as_set(gold), as_set(answer)
    if first is not None and second is not None:
        names = symbols(gold), symbols(answer)
        if gold.kind == answer.kind == "rel" and names[0] != names[1]:
            return False if len(names[0]) == len(names[1]) == 1 else None
        return same_set(first, second, rounding)
    for node, other in ((gold, answer), (answer, gold)):
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


def _same_equations(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    first, second = named_value(gold), named_value(answer)
    if first is None or second is None:
        return same_equation(gold, answer)
    left, right = name_of(gold), name_of(answer)
    if left is None or right is None or one_name(left, right):
        return same(first, second, rounding)
    if left.kind == right.kind == "sym" and left.value not in symbols(second) and right.value not in symbols(first):
        return False
    # A right side in common is not enough: x + y = 5 is not xy = 5.
    return same_equation(Node("rel", (left, first), ("=",)), Node("rel", (right, second), ("=",)))


def _equation_and_value(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    equation, other = (gold, answer) if is_equation(gold) else (answer, gold)
    value = named_value(equation)
    name = name_of(equation)
    if equation is gold and name is not None and is_curve_name(name) and other.kind not in ("list", "rel"):
        # x + y = 5 asks for a line, and 5 is none.
        return False
    if value is None:
        if other.kind in ("list", "rel"):
            return _same_lists(gold, answer, rounding) if other.kind == "list" else None
        return False if other.kind not in ("tuple", "set") else None
    if other.kind == "list" and value.kind != "list":
        value = _spread(value)
    return same(value, answer, rounding) if equation is gold else same(gold, value, rounding)
