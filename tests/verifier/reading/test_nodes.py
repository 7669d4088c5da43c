"""Trees: a closed set of kinds, and visitors that know no others."""

from __future__ import annotations

from typing import get_args

import pytest

from mathturn_gym.verifier.audit import load_cases
from mathturn_gym.verifier.reading._nodes import (
    KINDS,
    MAX_DEPTH,
    Node,
    NodeKind,
    ParseError,
    Transformer,
    Visitor,
    check_depth,
    number,
    replace_pm,
    ungroup,
    walk,
)
from mathturn_gym.verifier.reading._prepared import prepare


class Names(Visitor[str]):
    """Writes what it knows, and says so of what it does not."""

    def visit_sym(self, node: Node) -> str:
        return str(node.value)

    def visit_neg(self, node: Node) -> str:
        return f"-{self.visit(node.args[0])}"


def test_a_visitor_goes_by_kind() -> None:
    assert Names().visit(Node("neg", (Node("sym", (), "x"),))) == "-x"
    with pytest.raises(NotImplementedError, match="Names has no visit_add"):
        Names().visit(Node("add", (number(1), number(2))))


def test_a_visitor_of_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong visits node kinds that do not exist: \['sum'\]"):

        class Wrong(Visitor[int]):
            def visit_sum(self, node: Node) -> int:
                return 0


def test_a_transformer_keeps_what_it_does_not_know() -> None:
    class Double(Transformer):
        def visit_num(self, node: Node) -> Node:
            assert not isinstance(node.value, str | tuple | None)
            return number(2 * node.value)

    tree = Node("list", (number(1), Node("neg", (number(3),))), (",",))
    assert Double().visit(tree) == Node("list", (number(2), Node("neg", (number(6),))), (",",))


def test_trees_of_the_suite_have_known_kinds_only() -> None:
    seen = {
        node.kind
        for case in load_cases()
        if len(case.gold) < 500
        for reading in prepare(case.gold).readings
        for node in walk(reading.node)
    }
    assert seen <= set(KINDS) == set(get_args(NodeKind))
    assert len(seen) > 20
    assert "group" not in seen


def test_brackets_and_signs_are_taken_away() -> None:
    x, y = Node("sym", (), "x"), Node("sym", (), "y")
    assert ungroup(Node("neg", (Node("group", (Node("group", (x,)),)),))) == Node("neg", (x,))
    tree = Node("pm", (x, Node("mp", (y, x))))
    plus = Node("add", (x, Node("add", (y, Node("neg", (x,))))))
    minus = Node("add", (x, Node("neg", (Node("add", (y, x)),))))
    assert (replace_pm(tree, 1), replace_pm(tree, -1)) == (plus, minus)


def test_depth_is_bounded() -> None:
    tree = number(1)
    for _ in range(MAX_DEPTH - 1):
        tree = Node("neg", (tree,))
    check_depth(tree)
    with pytest.raises(ParseError, match="too deep"):
        check_depth(Node("neg", (tree,)))
