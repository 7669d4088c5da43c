"""What users install: a wheel with everything in it, and an editable install that interpreter and type checkers follow."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
ALONE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
"""The environment without what would show a checkout from elsewhere."""
HERE_ALREADY = ["--no-deps", "--no-build-isolation"]


def copy_of_the_checkout(target: Path, *, links: bool = True) -> Path:
    """Copies what git knows, without build leftovers: setuptools would reuse them, and pack files that are gone.

    Args:
        target: Folder to write.
        links: False writes symbolic links as a ZIP download, or a checkout on Windows, has them: text files with the
            target's name in them.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        path, copy = ROOT / name, target / name
        if not (path.is_symlink() or path.is_file()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and links:
            copy.symlink_to(path.readlink())
        elif path.is_symlink():
            copy.write_text(str(path.readlink()))
        else:
            copy.write_bytes(path.read_bytes())
    return target


@pytest.fixture(scope="module")
def source_without_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="building offline needs setuptools here")
    return copy_of_the_checkout(tmp_path_factory.mktemp("download"), links=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="building offline needs setuptools here")
    return copy_of_the_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", *HERE_ALREADY, "--wheel-dir", str(out), str(source)], check=True, cwd=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh virtual environment with `pip install -e .` in it, and this one's other packages."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    if not python.exists():
        pytest.skip("virtual environments look different here")
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([*PIP, "--python", str(python), "install", *HERE_ALREADY, "-e", str(source)], check=True, cwd=venv)
    return python


def modules_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in (folder / "mathturn_gym").rglob("*.py")}


def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert modules_below(ROOT) <= set(names)
    assert {"mathturn_gym/py.typed", "mathturn_gym/assets/tiny/model.safetensors"} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mathturn_gym"}
    tiny = sum(i.file_size for i in zipfile.ZipFile(wheel).infolist() if "assets/tiny" in i.filename)
    assert tiny < 1_000_000


def test_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    """Unpacked somewhere else and put first on the path: the environment, the assets and the wrappers are there."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys, gymnasium as gym, mathturn_gym, numpy as np\n"
        "assert mathturn_gym.__file__.startswith(sys.argv[1]), mathturn_gym.__file__\n"
        "from mathturn_gym.wrappers import ReturnsWrapper\n"
        "env = ReturnsWrapper(gym.make('MathSingleTurn-v0')); env.reset(seed=0)\n"
        "assert env.step(np.array([70]))[-1]['trajectory'].num_turns == 1\n"
    )
    site = str(tmp_path / "site")
    script = f"import sys; sys.path.insert(0, {site!r})\n{code}"
    subprocess.run([sys.executable, "-c", script, site], check=True, cwd=tmp_path)


def built_from(source: Path, out: Path) -> Path:
    """The source distribution that setuptools makes of a folder."""
    code = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(out)!r}))"
    copy = shutil.copytree(source, out / "copy", symlinks=True)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=copy, capture_output=True)
    return next(out.glob("*.tar.gz"))


def test_a_source_distribution_gives_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """It holds the package, no link, and nothing of the tests: setuptools adds `tests/test*.py` unless told otherwise."""
    with tarfile.open(built_from(source, tmp_path)) as archive:
        assert not any(member.issym() or member.islnk() for member in archive)
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
        assert tops.isdisjoint({"tests", "benchmarks", "experiments", "docs", "notebooks", "examples", "wrappers"})
        archive.extractall(tmp_path / "sdist", filter="data")
    unpacked = next((tmp_path / "sdist").iterdir())
    subprocess.run([*PIP, "wheel", *HERE_ALREADY, "--wheel-dir", str(tmp_path), str(unpacked)], check=True)
    again = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    assert set(again.namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_a_checkout_without_symbolic_links_holds_every_module(source_without_links: Path, tmp_path: Path) -> None:
    """A ZIP download installed an empty package, with exit code 0, while the package's folder was a link."""
    assert not any(path.is_symlink() for path in source_without_links.rglob("*"))
    command = [*PIP, "wheel", *HERE_ALREADY, "--wheel-dir", str(tmp_path), str(source_without_links)]
    subprocess.run(command, check=True, cwd=tmp_path)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert modules_below(ROOT) <= names
    with tarfile.open(built_from(source_without_links, tmp_path)) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert modules_below(ROOT) <= held


def test_the_readme_installs_what_make_test_light_tests() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    light = tomllib.loads((ROOT / ".ci" / "fresh.toml").read_text(encoding="utf-8"))["light"]
    (packages,) = re.findall(r"then\s+`pip install ([\w -]+)` \(`make test-light`", readme)
    assert light["pip"] == ["--no-deps .", packages]
    assert "pip install --no-deps .`" in readme


def test_an_editable_install_follows_the_checkout(editable: Path, source: Path, tmp_path: Path) -> None:
    code = (
        "import mathturn_gym, mathturn_gym.wrappers\n"
        "print(mathturn_gym.__file__)\n"
        "try:\n    import wrappers\n"
        "except ImportError as error:\n    assert 'import mathturn_gym.wrappers, not wrappers' in str(error)\n"
        "else:\n    raise AssertionError('every class of the wrappers exists twice')\n"
    )
    done = subprocess.run([editable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=ALONE, check=True)
    assert Path(done.stdout.strip()).resolve() == (source / "mathturn_gym" / "__init__.py").resolve()
    (source / "mathturn_gym" / "added_later.py").write_text("there = True\n")  # nothing has to be installed again
    subprocess.run([editable, "-c", "from mathturn_gym.added_later import there"], cwd=tmp_path, env=ALONE, check=True)


# ---- type checkers


def public_names(folder: Path) -> Iterator[tuple[str, str]]:
    """Every name of every `__all__` of a public module."""
    for path in sorted(folder.glob("mathturn_gym/**/*.py")):
        parts = list(path.relative_to(folder).with_suffix("").parts)
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if any(part.startswith("_") for part in parts):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "__all__" for one in node.targets):
                yield from ((".".join(parts), name) for name in ast.literal_eval(node.value))


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imports every public name, and one that is not there."""
    file = tmp_path_factory.mktemp("user") / "user.py"
    lines = [f"from {module} import {name} as name_{i}" for i, (module, name) in enumerate(public_names(ROOT))]
    assert len(lines) > 200
    file.write_text("\n".join([*lines, "from mathturn_gym import NotThere", "reveal_type(name_0)"]) + "\n")
    return file


FOLLOWED_NO_FURTHER = (
    "click datasets gymnasium httpx2 huggingface_hub jinja2 matplotlib numpy pandas peft pyarrow rich safetensors"
    " sb3_contrib scipy stable_baselines3 sympy tokenizers torch transformers typer"
)
"""Reading these takes a type checker most of a minute, and says nothing about our names."""


@pytest.mark.slow  # `make lint` reads the same names in the checkout
def test_mypy_resolves_every_public_name(editable: Path, users_file: Path) -> None:
    settings = users_file.with_name("mypy.ini")
    skipped = ",".join(f"{name}.*" for name in FOLLOWED_NO_FURTHER.split())
    settings.write_text(f"[mypy]\nfollow_imports = silent\n[mypy-{skipped}]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(settings.parent / "c")]
    done = subprocess.run(
        [*command, "--python-executable", str(editable), users_file.name],
        cwd=users_file.parent,
        env=ALONE,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert errors, done.stdout + done.stderr
    assert [error for error in errors if "NotThere" not in error] == []


def test_pyright_resolves_every_public_name(editable: Path, users_file: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not on the path: `make test-typing` installs it and runs this")
    done = subprocess.run(
        [pyright, "--pythonpath", str(editable), users_file.name],
        cwd=users_file.parent,
        env=ALONE,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if " error:" in line]
    assert errors, done.stdout + done.stderr
    assert [error for error in errors if "NotThere" not in error] == []
