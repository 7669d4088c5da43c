"""Objects by import path, and import paths of objects."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from mathturn_gym.base.import_paths import import_object, import_path_of, is_import_path, module_exists
from mathturn_gym.errors import InvalidValueError


class Outer:
    class Inner:
        pass

    def method(self) -> None: ...


def test_there_and_back() -> None:
    for value in (math.sqrt, Outer, Outer.Inner, Outer.method, import_object):
        path = import_path_of(value)
        assert path is not None
        assert is_import_path(path)
        assert import_object("it", path) is value


def test_what_has_no_path() -> None:
    def local() -> None: ...

    for value in (local, lambda: 0, Outer(), 3, "text", Outer().method):
        assert import_path_of(value) is None, value


@pytest.mark.parametrize(
    "text", ["", "module", "module:", ":name", "a b:c", "lins:test:latex", "../x:y", "C:\\x", "a:b-c"]
)
def test_what_is_no_path(text: str) -> None:
    assert not is_import_path(text)
    with pytest.raises(InvalidValueError, match="verifier must be an import path 'module:name'"):
        import_object("verifier", text)


def test_modules_of_the_current_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "just_here.py").write_text("value = 7\n")
    (tmp_path / "broken_here.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    assert import_object("it", "just_here:value") == 7
    with pytest.raises(InvalidValueError, match="it 'broken_here:x' cannot be imported: ZeroDivisionError"):
        import_object("it", "broken_here:x")


def test_a_module_is_looked_for_in_the_current_folder_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    assert module_exists("only_here.part:x")
    assert not module_exists("nowhere_at_all:x")
    module_exists("math:sqrt")
    assert sys.path.count(str(tmp_path)) == 1
    # Where Python looks in the current folder by itself, the search path stays as it is.
    monkeypatch.setattr(sys, "path", ["", *(one for one in sys.path if one != str(tmp_path))])
    assert module_exists("math:sqrt")
    assert str(tmp_path) not in sys.path


def test_what_a_script_defined_is_not_found_and_the_error_says_what_to_do() -> None:
    with pytest.raises(InvalidValueError, match=r"AttributeError.*put it into a module of its own"):
        import_object("algorithm", "__main__:NotThere")
