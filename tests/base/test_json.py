from __future__ import annotations

import pytest

from mathturn_gym.base.files import parse_json
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name, shown


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"a":' * 1_000_000, "9" * 5000, "{", "", "\x00", b"\xff", b"\xff\xfe["]
)
def test_whatever_is_wrong_with_a_document_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_documents_are_read() -> None:
    assert parse_json('{"a": [1, 2.5, null, "\\ud800"]}') == {"a": [1, 2.5, None, "\ud800"]}
    assert parse_json("[" * 100 + "]" * 100) is not None


def test_numbers_without_end_are_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"^seed must be an integer in \[0, 9\], got an integer of 16610 bits$"):
        check_int("seed", 10**5000, low=0, high=9)
    with pytest.raises(InvalidValueError, match=r"^rate must be a finite number, got an integer of 16610 bits$"):
        check_float("rate", 10**5000)
    with pytest.raises(InvalidValueError, match=r"^unknown name an integer of 16610 bits \(allowed: a\)$"):
        raise_unknown_name("name", 10**5000, ["a"])


def test_long_values_are_shown_in_part_and_no_nearest_name_is_looked_for() -> None:
    with pytest.raises(InvalidValueError) as caught:
        raise_unknown_name("name", "x" * 10_000_000, ["a"])
    assert len(str(caught.value)) < 1100

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Odd()) == "a Odd"
