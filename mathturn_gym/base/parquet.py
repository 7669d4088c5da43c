"""Rows of Parquet files that somebody else may have written, within a bound of memory.

Run lengths, dictionaries and compression make gigabytes out of kilobytes, and pyarrow has no limit of its own: a batch of
one row is decoded whole. So the file's metadata is looked at before anything is decoded, texts stay in their
dictionaries until their size is known, and batches are cut to what may be held at once (issue 31).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from mathturn_gym.base.files import open_regular
from mathturn_gym.errors import MissingDependencyError, install_extra

_FREE_VALUES: Final = 2**25
_FREE_BYTES: Final = 2**28
# Values, and unpacked bytes, that a file may have for each of its own bytes, where it has more than the free ones.
_RATIO: Final = 64
# What a value takes besides its own bytes.
_POINTER: Final = 8


def bounded_batches(
    path: Path, *, batch_size: int, most: int, total: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Record batches of at most `most` bytes, their texts in dictionaries; None stands for a row that is larger.

    Args:
        path: A regular file.
        batch_size: Rows of a batch.
        most: Bytes of a batch once it is unpacked.
        total: Bytes of all batches, for a caller who keeps them; None for no limit.
        columns: Names to read; None reads all.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        ValueError: a file whose metadata promise far more than it can hold.
        OSError: it cannot be read. pyarrow raises its own `ArrowException`s, too.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(f"Parquet files need pyarrow: {install_extra('data')}") from error
    with open_regular(path) as stream, pyarrow.parquet.ParquetFile(stream) as file:  # pyarrow would wait at a pipe
        _check_sizes(file.metadata, stream, path.stat().st_size)
        leaves = map(file.schema.column, range(len(file.schema)))
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    # Texts stay in their dictionary: one long text that a million rows refer to is held once.
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        seen = 0
        for batch in file.iter_batches(batch_size=batch_size, columns=columns):
            for part in _cut(batch, most):
                seen += 0 if part is None else _unpacked_rows(part)
                if total is not None and seen > total:
                    raise ValueError(f"it holds more than {total:,} bytes")
                yield part


def _check_sizes(metadata: Any, stream: IO[bytes], size: int) -> None:
    """Raises where a file holds much more than one of its size can, but for repetitions."""
    widths = [metadata.schema.column(place).length for place in range(metadata.num_columns)]
    chunks = [
        (group.column(place), width)
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for place, width in enumerate(widths)
    ]
    # Values of a fixed width leave their dictionary when they are read, and a wide one is stored once for all rows.
    unpacked = [max(_pages_of(one, stream), one.num_values * width) for one, width in chunks]
    for what, found, free in (
        ("values", sum(one.num_values for one, _ in chunks), _FREE_VALUES),
        ("bytes", sum(unpacked), _FREE_BYTES),
    ):
        if found > max(free, _RATIO * size):
            raise ValueError(f"its {size:,} bytes would unpack to {found:,} {what}: it was made to fill the memory")


def _pages_of(chunk: Any, stream: IO[bytes]) -> int:
    """The unpacked bytes of a column's pages, by their own headers: the file's metadata may say anything.

    Raises:
        ValueError: they are no headers of pages.
    """
    found, at = 0, chunk.data_page_offset
    at = start = min(at, chunk.dictionary_page_offset or at)
    while at < start + chunk.total_compressed_size:
        stream.seek(at)
        try:
            header = _struct(stream)
            found += header[2]
            at = stream.tell() + header[3]
        except (IndexError, KeyError, RecursionError) as error:
            raise ValueError(f"what should be a page at byte {at:,} is none") from error
    return found


def _struct(stream: IO[bytes]) -> dict[int, int]:
    """The integers of a structure in Thrift's compact encoding, by their numbers; what else a page's header has is passed over."""
    found: dict[int, int] = {}
    number = 0
    while head := stream.read(1)[0]:
        step, kind = divmod(head, 16)
        number = number + step if step else _varint(stream)
        if kind in (4, 5, 6):  # integers, of which those of a page's sizes are never below 0
            found[number] = _varint(stream) >> 1
        elif kind == 8:  # bytes
            stream.seek(_varint(stream), 1)
        elif kind == 12:
            _struct(stream)
        elif kind not in (1, 2):  # booleans
            raise ValueError(f"a page's header has no field of kind {kind}")
    return found


def _varint(stream: IO[bytes]) -> int:
    """An integer of seven bits a byte, the lowest first."""
    found = 0
    for place in range(0, 70, 7):
        byte = stream.read(1)[0]
        found |= (byte & 127) << place
        if byte < 128:
            break
    return found


def _cut(batch: Any, most: int) -> Iterator[Any]:
    """The batch, or its halves, until a part is small enough; None for a single row that is not."""
    if _unpacked_rows(batch) <= most:
        yield batch
    elif len(batch) == 1:
        yield None
    else:
        middle = len(batch) // 2
        yield from _cut(batch.slice(0, middle), most)
        yield from _cut(batch.slice(middle), most)


def _unpacked_rows(batch: Any) -> int:
    return sum(_unpacked(column) for column in batch.columns)


def _unpacked(array: Any) -> int:
    """Bytes that an array can take once it is unpacked: every entry of a dictionary as long as its longest."""
    import pyarrow
    import pyarrow.compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        values = array.dictionary
        longest = _POINTER
        if len(values) and (pyarrow.types.is_string(values.type) or pyarrow.types.is_binary(values.type)):
            longest += pyarrow.compute.max(pyarrow.compute.binary_length(values)).as_py() or 0
        return len(array) * longest
    if pyarrow.types.is_struct(kind):
        return sum(map(_unpacked, array.flatten()))
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        return _POINTER * len(array) + _unpacked(array.flatten())
    if pyarrow.types.is_map(kind):
        return _POINTER * len(array) + _unpacked(array.keys) + _unpacked(array.items)
    return int(array.nbytes) + _POINTER * len(array)
