"""No pattern of the reading room takes more than time in proportion to a text, whatever the text."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

import pytest

from mathturn_gym.verifier import reading

PIECES = [
    "a", " ", "1", "{", "}", "\\", "\\text{", "\\boxed{", "(", ")", "[", "$", ",", ".", "or ", "and ", "is ", "is not ", "answer ",
    "answer is ", "the ", "答案", "=", "1,", "1,234", "1 ", "a ", "ab ", "\\frac", "\\begin{matrix}", "\\\\ ", "\n", "\t", "*", "#",
    "####", "<answer>", "_", "_{", "^", "x_1 ", "\\color{", "about ", "(about ", "because ", "-", "1/", "two ", "12:30 ", "°", "√(",
    "²", "a.", "\\,", "\\;", ": ", "：", "Step 1: ", "\\overline{", "1.", "\\{x|", "A) ", "\\mathrm", "'", '"', "€1", "x=",
]  # fmt: skip


def patterns() -> Iterator[tuple[str, tuple[re.Pattern[str], bool]]]:
    """Every pattern, and whether it is looked for anywhere in a text rather than at one place."""
    for info in pkgutil.iter_modules(reading.__path__):
        module: ModuleType = importlib.import_module(f"{reading.__name__}.{info.name}")
        source = inspect.getsource(module)
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                anywhere = re.search(rf"(?<!\w){name}\.(?:search|sub|finditer|findall)\(", source) is not None
                yield f"{info.name}.{name}", (value, anywhere)
            elif isinstance(value, list):
                rows = [part for row in value if isinstance(row, tuple) for part in row]
                found = [part for part in rows if isinstance(part, re.Pattern)]
                yield from ((f"{info.name}.{name}[{index}]", (pattern, True)) for index, pattern in enumerate(found))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises where the block takes longer; the engine for patterns looks at signals."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seconds(pattern: re.Pattern[str], anywhere: bool, text: str) -> float:
    start = time.process_time()
    if anywhere:
        pattern.search(text)
    pattern.match(text)
    pattern.fullmatch(text)
    return time.process_time() - start


ALL = dict(patterns())


def test_there_are_patterns_to_look_at() -> None:
    assert len(ALL) > 60
    with pytest.raises(TimeoutError), at_most(0.2):
        re.fullmatch(r"(?:a|a\w|\w)*b", "a" * 60)


@pytest.mark.parametrize("name", ALL)
def test_a_pattern_takes_no_more_than_its_share(name: str) -> None:
    pattern, anywhere = ALL[name]
    for piece in PIECES:
        for tail in ("", "!", "\x00"):
            # An exponential pattern hangs on the short text; the long one is the longest answer there is.
            with at_most(5.0):
                seconds(pattern, anywhere, piece * 30 + tail)
                took = seconds(pattern, anywhere, piece * (4_000 // len(piece)) + tail)
            assert took <= 0.25, (name, piece, took)
