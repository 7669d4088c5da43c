"""What the tests of the problems share."""

import pytest

from mathturn_gym.problems import lists


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a source is divided is said once in a process: each test hears it."""
    monkeypatch.setattr(lists, "_said", set())
