"""What `make mutants` changes; the mutants themselves are run before a release."""

from __future__ import annotations

from pathlib import Path

from mutants import TARGETS, mutants

ROOT = Path(__file__).resolve().parents[2]

SOURCE = '''
"""Text."""
LIMIT = 30
def check(name: str = "x", most: int | None = None) -> bool:
    _LOG.warning("%s", name == "y")
    if not name or len(name) > 3:
        raise ValueError(f"{name == 'x'}")
    done(name)
    return name + "s" is True
'''


def test_each_small_change_is_made_once_and_tuned_numbers_and_messages_are_left_alone() -> None:
    found = {
        (one.line, one.apply(SOURCE.encode()).decode().splitlines()[one.line - 1].strip())
        for one in mutants("f", SOURCE)
    }
    assert found == {
        (6, "if (not name and len(name) > 3):"),
        (6, "if bool(name) or len(name) > 3:"),
        (6, "if not name or (len(name) >= 3):"),
        (6, "if not name or len(name) > 4:"),
        (7, "pass"),
        (8, "pass"),
        (9, "return (name + 's' is not True)"),
        (9, 'return name + "s" is False'),
    }


def test_every_target_and_its_tests_exist() -> None:
    for file, tests in (pair for pairs in TARGETS.values() for pair in pairs):
        assert (ROOT / "mathturn_gym" / file).is_file()
        assert all((ROOT / one).exists() for one in tests.split())
