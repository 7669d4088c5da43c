"""Symbolic workers without sympy: they start in a tenth of a second, and know the few cases that tests of processes ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mathturn_gym.verifier.symbolic import _pool, _worker

_SCRIPT = """
import importlib.util, re, sys

spec = importlib.util.spec_from_file_location("worker", {path!r})
worker = sys.modules["worker"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


def compare(gold, answer):
    while "prod" in answer:
        pass
    if found := re.fullmatch(r"\\\\sum_\\{{k=1\\}}\\^\\{{(\\d)\\}} *k *(?:[+] *(\\d+))?", answer):
        last, more = int(found[1]), int(found[2] or 0)
        return "equal" if last * (last + 1) // 2 + more == int(gold) else "different"
    return "equal" if sorted(gold) == sorted(answer.removesuffix("+0")) else "different"


worker._compare, worker._warm = compare, lambda: None
worker.main()
"""


@contextmanager
def light_workers(folder: Path) -> Iterator[None]:
    """Has supervisors that start in this block, in this process and its forks, compare without sympy.

    Args:
        folder: A temporary one.
    """
    (folder / "_worker.py").write_text(_SCRIPT.format(path=_worker.__file__))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pool, "__file__", str(folder / "_pool.py"))
        yield
