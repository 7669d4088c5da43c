"""The wheel that users get: everything in it, nothing of the repository beside it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="building the wheel offline needs setuptools here")
    out = tmp_path_factory.mktemp("wheel")
    # A copy without build leftovers: setuptools would reuse them, and pack files that are gone.
    source = out / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink() and not name.startswith("mathturn_gym/wrappers/"):
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, str(out), str(source)], check=True, cwd=out)
    return next(out.glob("*.whl"))


def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = {f"mathturn_gym/{p.relative_to(ROOT / 'mathturn_gym')}" for p in (ROOT / "mathturn_gym").rglob("*.py")}
    modules = {name for name in modules if not name.startswith("mathturn_gym/wrappers/")}
    wrappers = {f"mathturn_gym/wrappers/{p.name}" for p in (ROOT / "wrappers").glob("*.py")}
    assert modules | wrappers <= set(names)
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
        "assert env.step(np.array([70]))[-1]['episode'].num_turns == 1\n"
    )
    site = str(tmp_path / "site")
    script = f"import sys; sys.path.insert(0, {site!r})\n{code}"
    subprocess.run([sys.executable, "-c", script, site], check=True, cwd=tmp_path)
