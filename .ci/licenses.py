"""Prints the license of every package that is installed, as it says itself, counted and by name.

python .ci/licenses.py
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import distributions
from typing import Any


def license_of(metadata: dict[str, Any]) -> str:
    """The expression, else the classifiers, else the first line of the text."""
    if "license_expression" in metadata:
        return str(metadata["license_expression"])
    named = [one.rsplit(" :: ", 1)[-1] for one in metadata.get("classifier", []) if one.startswith("License ::")]
    return ", ".join(named) or str(metadata.get("license", "not said")).strip().splitlines()[0][:60]


def main() -> None:
    """A line per license."""
    by_license: dict[str, list[str]] = defaultdict(list)
    for one in distributions():
        by_license[license_of(one.metadata.json)].append(f"{one.metadata['Name']} {one.version}")
    for text, packages in sorted(by_license.items(), key=lambda item: -len(item[1])):
        print(f"{len(packages):4}  {text}: {', '.join(sorted(packages, key=str.lower))}")  # noqa: T201


if __name__ == "__main__":
    main()
