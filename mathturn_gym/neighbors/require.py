"""Whether a neighbor's package is there, and of a version that an adaptor was written for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mathturn_gym.errors import MissingDependencyError


def require(package: str, low: str, below: str, install: str) -> str:
    """The installed version of a package, from `low` to the first that will not do.

    Raises:
        MissingDependencyError: it is not installed, or of another version; the message ends in `install`.

    >>> require("gymnasium", "1.4", "2", "pip install gymnasium") >= "1.4"
    True
    """
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise MissingDependencyError(f"{package} is not installed: {install}") from error
    if not _numbers(low) <= _numbers(found) < _numbers(below):
        raise MissingDependencyError(f"{package} {found} is installed, this needs >={low},<{below}: {install}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version; a pre-release counts as the release that it leads to."""
    numbers = []
    # Without `packaging`, which is not a dependency: leading numbers are all that bounds need.
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
