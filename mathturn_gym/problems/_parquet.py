"""Rows of Parquet files, whose compression and dictionaries can make much out of little: looked at before unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mathturn_gym.errors import MissingDependencyError, ProblemFileError
from mathturn_gym.problems._readers import MAX_ROW, BadRow, Rows

__all__ = ["parquet_rows"]

_BATCH: Final = 256
_AT_ONCE: Final = 16 * MAX_ROW


def parquet_rows(path: Path) -> Rows:
    """The rows with their numbers, from 1; fields that are null are left out.

    Raises:
        ProblemFileError: it cannot be read.
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("Parquet files need pyarrow: pip install 'mathturn-gym[data]'") from error
    number = 0
    try:
        # Texts stay in their dictionary: one long text that a million rows refer to is held once.
        with pyarrow.parquet.ParquetFile(path) as file:
            texts = [
                leaf.path
                for leaf in map(file.schema.column, range(len(file.schema)))
                if leaf.physical_type == "BYTE_ARRAY"
            ]
        with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in _rows(batch):
                    number += 1
                    if row is None:
                        yield number, BadRow(number, "", f"may have more than {_AT_ONCE:,} bytes")
                    else:
                        yield number, {key: value for key, value in row.items() if value is not None}
    except OSError as error:
        raise ProblemFileError(f"problems file {str(path)!r} cannot be read: {error.strerror or error}") from error
    except (pyarrow.ArrowException, ValueError, KeyError, OverflowError) as error:
        if isinstance(error, ProblemFileError):
            raise
        raise ProblemFileError(
            f"{path}: is not a Parquet file that can be read, after row {number}: {error}"
        ) from error


def _rows(batch: Any) -> Iterator[Mapping[str, Any] | None]:
    """The rows of a batch: together where they are small, else one by one, None for one that is too large."""
    if _most_bytes(batch) <= _AT_ONCE:
        yield from batch.to_pylist()
        return
    for place in range(len(batch)):
        row = batch.slice(place, 1)
        yield None if _most_bytes(row) > _AT_ONCE else row.to_pylist()[0]


def _most_bytes(batch: Any) -> int:
    return sum(_unpacked(column) for column in batch.columns)


def _unpacked(array: Any) -> int:
    """What an array can take once it is unpacked: every entry of a dictionary as long as its longest."""
    import pyarrow
    import pyarrow.compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        values = array.dictionary
        longest = 8
        if len(values) and (pyarrow.types.is_string(values.type) or pyarrow.types.is_binary(values.type)):
            longest += pyarrow.compute.max(pyarrow.compute.binary_length(values)).as_py() or 0
        return len(array) * longest
    if pyarrow.types.is_struct(kind):
        return sum(map(_unpacked, array.flatten()))
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        return 8 * len(array) + _unpacked(array.flatten())
    if pyarrow.types.is_map(kind):
        return 8 * len(array) + _unpacked(array.keys) + _unpacked(array.items)
    return int(array.nbytes) + 8 * len(array)
