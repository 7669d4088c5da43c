"""Prints the lowest version that pyproject.toml allows of everything that it names, as constraints for pip.

python .ci/lowest.py [--without torch] > lowest.txt
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path


def lowest(without: list[str]) -> Iterator[str]:
    """A line per package: the highest of its lower bounds, where it is named more than once."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    bounds: dict[str, str] = {}
    for line in (line for group in groups for line in group):
        found = re.fullmatch(r"([A-Za-z0-9._-]+)>=([0-9.]+)(,<[0-9.]+)?", line)
        if found is None:
            raise SystemExit(f"pyproject.toml: {line!r} must be NAME>=VERSION or NAME>=VERSION,<VERSION")
        name, version = found[1], found[2]
        bounds[name] = max(bounds.get(name, "0"), version, key=lambda text: [int(part) for part in text.split(".")])
    return (f"{name}=={version}" for name, version in sorted(bounds.items()) if name not in without)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", nargs="*", default=[])
    print("\n".join(lowest(parser.parse_args().without)))  # noqa: T201
