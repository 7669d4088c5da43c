"""Sources by name: the only place where names of problems are read.

NAME        := ONE | PART + PART + …                    a mixture; PART := [WEIGHT*]ONE
ONE         := GENERATOR[:SPLIT]                        lins, add2, guess8:test
             | FAMILY[@LEVEL][:SPLIT][:FORM]            quadratic, quadratic@2:test:latex; families is all of them
             | FILE[:SPLIT]                             gsm8k.jsonl, data/my.csv:test, a folder of save_to_disk
             | hf:NAME[:CONFIG][:SPLIT]                 hf:openai/gsm8k:main
             | curriculum:CELLS[:SPLIT]                 curriculum:integers,linear@1-3; see `Curriculum.named`

SPLIT is train, validation, test or all. What is there as a file is a file, unless a family has the name.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Final

from mathturn_gym.errors import InvalidValueError, ProblemFileError, raise_unknown_name
from mathturn_gym.problems import _data_sets
from mathturn_gym.problems._data_sets import FileOptions
from mathturn_gym.problems._readers import FORMATS
from mathturn_gym.problems.base import SPLITS, ProblemSource
from mathturn_gym.problems.curriculum import Curriculum
from mathturn_gym.problems.families import FAMILIES, FORMS, NAMES, Family
from mathturn_gym.problems.families.registry import GENERATORS
from mathturn_gym.problems.files import LARGE, ProblemFile, StreamedFile
from mathturn_gym.problems.mixtures import Mixture

_GENERATOR: Final = re.compile(r"(?P<name>[a-z][a-z-]*?)(?P<number>\d*)")
_FAMILY: Final = re.compile(r"(?P<family>[a-z-]+)(?:@(?P<level>\d+))?")
_WEIGHTED: Final = re.compile(r"(?:(?P<weight>\d+(?:\.\d+)?)\*)?(?P<name>.+)", re.DOTALL)
_CHOICES: Final = (*SPLITS, "all")


def by_name(name: str, options: FileOptions) -> ProblemSource:
    """The source of a name."""
    # Paths may have colons (C:\data): only a split behind the last one is taken off.
    path, split = _split_at_the_end(name)
    if _is_path(path):
        source = at_path(Path(path), options)
        return source if split is None else source.part(split)
    if "+" in name and not name.startswith("hf:"):
        return _mixture(name, options)
    if name.startswith("hf:"):
        return _data_sets.from_hub(name.removeprefix("hf:"), options)
    if options.given:
        raise InvalidValueError(f"fields and skip_bad_rows are for files and data sets, and {name!r} is none")
    if name.startswith("curriculum:"):
        source = Curriculum.named(path.removeprefix("curriculum:"), lambda cell: by_name(cell, FileOptions()))
        return source if split is None else source.part(split)
    return _drawn(name)


def at_path(path: Path, options: FileOptions) -> ProblemSource:
    """A file, read into memory or (JSON lines of 256 MiB and more) from the disk; or a folder that `save_to_disk` wrote."""
    if path.is_dir():
        if not _data_sets.is_saved(path):
            raise ProblemFileError(
                f"{str(path)!r} is a folder, and not one that save_to_disk of a data set wrote; name a file in it"
            )
        return _data_sets.from_saved(path, options)
    large = path.name.lower().endswith((".jsonl", ".ndjson")) and path.is_file() and path.stat().st_size >= LARGE
    kind = StreamedFile if large else ProblemFile
    return kind(path, fields=options.fields, skip_bad_rows=options.skip_bad_rows)


def _split_at_the_end(name: str) -> tuple[str, str | None]:
    front, _, last = name.rpartition(":")
    return (front, last) if front and last in _CHOICES else (name, None)


def _is_path(name: str) -> bool:
    """Whether a name is that of a file or folder: by its ending, or because it is there and no family has the name."""
    if not name or name.startswith(("hf:", "curriculum:")):
        return False
    try:
        there = Path(name).exists()
    except (OSError, ValueError):  # too long for a path, or a NUL in it
        return False
    # A name that ends as a file does is a file, even if it is not there: a typing error in a path should not be
    # answered with families.
    bare = name.lower().removesuffix(".gz")
    if bare.endswith(FORMATS):
        return there or "+" not in name
    # A folder that happens to be called as a family is must not change what the name means.
    return there and _table_of(name) is None


def _table_of(name: str) -> str | None:
    """Which table a bare name is in."""
    generator, family = _GENERATOR.fullmatch(name), _FAMILY.fullmatch(name)
    if name in GENERATORS or (generator is not None and generator["number"] and generator["name"] in GENERATORS):
        return "generator"
    return "family" if family is not None and family["family"] in (*FAMILIES, "families") else None


def _mixture(name: str, options: FileOptions) -> ProblemSource:
    parts = [_WEIGHTED.fullmatch(part.strip()) for part in name.split("+")]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        raise InvalidValueError(f"a mixture is 'NAME+NAME' or '3*NAME+0.5*NAME', got {name!r}")
    weights = [float(part["weight"] or 1) for part in found]
    files = [part["name"] for part in found if _is_path(_split_at_the_end(part["name"])[0])]
    if options.given and not files:
        raise InvalidValueError(f"fields and skip_bad_rows are for files and data sets, and none is in {name!r}")
    sources = [by_name(part["name"], options if part["name"] in files else FileOptions()) for part in found]
    return Mixture(sources, weights, name)


def _drawn(name: str) -> ProblemSource:
    """A generator or a family."""
    base, *choices = name.split(":")
    kind = _table_of(base)
    if kind == "generator":
        if len(choices) > 1:
            raise InvalidValueError(f"problems {name!r}: a generator takes a split and no more, as {base}:test")
        split = _choice("split", choices[0], _CHOICES) if choices else None
        return _generator(base, split)
    if kind == "family":
        return _family(base, choices)
    raise InvalidValueError(_unknown(name, base))


def _unknown(name: str, base: str) -> str:
    """What to say of a name that nothing has."""
    known = [*NAMES, *FAMILIES, "families"]
    near = difflib.get_close_matches(base.partition("@")[0], known, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    # ORGANIZATION/NAME is how the hub writes data sets; without "hf:" it would be a path.
    if not near and "/" in name:
        hint = f": there is no such file; a Hugging Face data set is 'hf:{name}'"
    return (
        f"unknown problems {name!r}{hint} (allowed: {', '.join(known)}; with a split, as lins:test; FAMILY@LEVEL:SPLIT:FORM;"
        " NAME+NAME; curriculum:FAMILY,FAMILY@1-3; FILE.jsonl, .json, .csv or .parquet; hf:NAME)"
    )


def _generator(base: str, split: str | None) -> ProblemSource:
    if base in GENERATORS and GENERATORS[base].numbers is None:
        return GENERATORS[base].make(split)
    match = _GENERATOR.fullmatch(base)
    assert match is not None
    spec, written = GENERATORS[match["name"]], match["number"]
    numbers = spec.numbers
    if numbers is None or not written or len(written) > 9 or int(written) not in numbers:
        allowed = (
            "no number"
            if numbers is None
            else f"a number of {numbers.start} to {numbers[-1]} in steps of {numbers.step}"
        )
        raise InvalidValueError(f"problems {base!r}: {spec.name!r} takes {allowed}, as {', '.join(spec.shown)}")
    return spec.make(int(written), split)


def _family(base: str, choices: list[str]) -> ProblemSource:
    """`FAMILY[@LEVEL]` with a split, a form, or a split and a form."""
    match = _FAMILY.fullmatch(base)
    assert match is not None
    level = None if match["level"] is None else int(match["level"])
    split, form = None, FORMS[0]
    if len(choices) > 2:
        raise InvalidValueError(f"problems must be FAMILY@LEVEL:SPLIT:FORM, got {':'.join([base, *choices])!r}")
    if len(choices) == 2:
        split, form = _choice("split", choices[0], _CHOICES), _choice("form", choices[1], FORMS)
    elif choices and choices[0] in FORMS:
        form = choices[0]
    elif choices:
        split = _choice("split", choices[0], _CHOICES)
    if match["family"] != "families":
        return Family(match["family"], level, split, form)
    name = ":".join([base, *choices])
    return Mixture([Family(family, level, split, form) for family in FAMILIES], name=name)


def _choice(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise_unknown_name(what, value, allowed)
    return value
