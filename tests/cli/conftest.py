"""What the tests of commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest


@pytest.fixture
def commands_in() -> Callable[[str], list[list[str]]]:
    """The commands that an output tells its reader to type, each as a list of words behind `mathturn`."""

    def find(output: str) -> list[list[str]]:
        # A command ends with its line, or where three spaces set a remark apart.
        found = re.findall(r"mathturn ((?:train|eval|play|compare|demo|view)\b.*?)(?:   .*)?$", output, re.MULTILINE)
        return [shlex.split(line) for line in found]

    return find
