"""Makes a bare environment for each install that a page names, and runs the page's commands in it.

python .ci/fresh.py [NAME ...] [--folder .fresh] [--keep]

The installs stand in fresh.toml. torch comes first, pinned, as in the Makefile, so that nothing fetches another build.
Environments are deleted afterwards (each takes 1 to 2 GB), except for those of --keep.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INSTALLS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / ".ci" / "fresh.toml").read_text(encoding="utf-8"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def install(given: dict[str, Any], environment: Path) -> Path:
    """The interpreter of a new environment that has what pip was told, and nothing else."""
    packages = given["pip"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)  # noqa: S603
    python = environment / "bin" / "python"
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # a wheel would be packed with files that are gone
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = ["--constraint", "constraints.txt"]
    if not any("--no-deps" in words for words in packages):
        index = ["--index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
        subprocess.run([*command, *constraint, "torch", *index], check=True, cwd=ROOT)  # noqa: S603
    for words in packages:
        # Before a release it is the wheel that was built, not what this folder would build.
        named = [
            os.environ["MATHTURN_WHEEL"] if word == "." and "MATHTURN_WHEEL" in os.environ else word
            for word in words.split()
        ]
        subprocess.run([*command, *([] if given.get("unpinned") else constraint), *named], check=True, cwd=ROOT)  # noqa: S603
    return python


def commands_of(given: dict[str, Any], folder: Path) -> list[list[str]]:
    """Every command of an install, in order: its pages' examples as files, its commands, its scripts."""
    commands = []
    for page in given.get("examples", []):
        file = folder / f"{Path(page).stem}.py"
        file.write_text("\n".join(BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))), encoding="utf-8")
        commands.append(["python", file.name])
    commands += [shlex.split(run) for _, _, run in given.get("commands", [])]
    return commands + [["python", str(ROOT / "tests" / "fresh" / name)] for name in given.get("scripts", [])]


def check(name: str, folder: Path) -> list[str]:
    """What of an install does not work: a line per command that failed and per file that is missing."""
    given = INSTALLS[name]
    try:
        python = install(given, folder / name / "env")
    except subprocess.CalledProcessError as error:
        return [f"{name}: cannot be installed: {error}"]
    work = folder / name / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "mine.csv").write_text("question,answer\nWhat is 1+1?,2\n", encoding="utf-8")
    (work / "examples").symlink_to(ROOT / "examples")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    environment |= {"MATHTURN_MODELS": str(work / "models"), "OMP_NUM_THREADS": "2"}
    if beside := given.get("beside"):
        environment["BESIDE"] = str(install(INSTALLS[beside], folder / name / "beside").parent)
    failed = []
    for command in commands_of(given, work):
        began = time.perf_counter()
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        took = time.perf_counter() - began
        outcome = "FAIL" if done.returncode else "ok"
        print(f"{name:10} {outcome:4} {took:6.1f} s  {shlex.join(command)}", flush=True)  # noqa: T201
        if done.returncode:
            failed.append(f"{name}: {shlex.join(command)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return failed + [
        f"{name}: {file} was not written" for file in given.get("leaves", []) if not (work / file).exists()
    ]


def main() -> None:
    """Exits with what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(INSTALLS)}; all by default")
    parser.add_argument("--folder", type=Path, default=ROOT / ".fresh")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in INSTALLS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(INSTALLS)}")
    failed = []
    for name in args.names or INSTALLS:
        failed += check(name, args.folder.resolve())
        if not args.keep:
            shutil.rmtree(args.folder / name)
    if failed:
        sys.exit("\n\n".join(failed))


if __name__ == "__main__":
    main()
