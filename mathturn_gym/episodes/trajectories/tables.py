"""Episodes as Arrow tables: what Parquet files and Hugging Face datasets hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.files import parse_json
from mathturn_gym.episodes.trajectories.records import SCHEMA, SCHEMA_VERSION, build_episode, facts_to_record
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, MissingDependencyError, install_extra
from mathturn_gym.types import Episode

# Columns that are lists of numbers, and the numbers' Arrow types (`logprobs` holds NaN where there was none).
_NUMBERS: Final[dict[str, str]] = {
    "ids": "int64",
    "loss_mask": "bool",
    "logprobs": "float",
    "versions": "int32",
    "turn_starts": "int64",
    "turn_ends": "int64",
    "rewards": "double",
}

# Columns that a table need not have.
_MAY_LACK: Final = frozenset({"prompt", "responses", "gold", "budgets", "token_values", "segment_starts", "support"})


def require_pyarrow() -> Any:
    """The `pyarrow` module, or an error that says what to install."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(f"Parquet and datasets need pyarrow: {install_extra('data')}") from error
    return pa


def table_schema() -> Any:
    """The Arrow schema of version 1, with its name and version in the metadata."""
    pa = require_pyarrow()
    verdict = pa.struct(
        [
            ("status", pa.string()),
            ("reason", pa.string()),
            ("score", pa.float64()),
            ("answer", pa.string()),
            ("span", pa.list_(pa.int64())),
            ("gold", pa.string()),
            ("tier", pa.string()),
            ("rule", pa.string()),
            ("seconds", pa.float64()),
        ]
    )
    columns = [
        ("problem_id", pa.string()),
        *((name, pa.list_(pa.type_for_alias(alias))) for name, alias in _NUMBERS.items()),
        ("verdicts", pa.list_(verdict)),
        ("feedbacks", pa.list_(pa.string())),
        ("turn_truncated", pa.list_(pa.bool_())),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("stop_reason", pa.string()),
        ("returns", pa.list_(pa.float32())),
        ("discount", pa.float64()),
        ("index", pa.int64()),
        ("seed", pa.int64()),
        ("group", pa.string()),
        ("metadata_json", pa.string()),
        ("prompt", pa.string()),
        ("responses", pa.list_(pa.string())),
        ("gold", pa.list_(pa.string())),
        ("budgets", pa.list_(pa.int64())),
        ("token_values", pa.list_(pa.struct([("name", pa.string()), ("values", pa.list_(pa.float32()))]))),
        ("segment_starts", pa.list_(pa.int64())),
        ("support", pa.list_(pa.list_(pa.int32()))),
    ]
    return pa.schema(columns, metadata={"schema": SCHEMA, "schema_version": str(SCHEMA_VERSION)})


def episodes_to_table(episodes: Sequence[Episode]) -> Any:
    """A `pyarrow.Table` with a row per episode.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        InvalidEpisodeError: metadata that JSON would change, an index or seed beyond int64, or a text that is not
            valid Unicode; the episode is named.
    """
    pa = require_pyarrow()
    schema = table_schema()
    records = [facts_to_record(episode) for episode in episodes]
    for episode, record in zip(episodes, records, strict=True):
        record["metadata_json"] = json.dumps(record.pop("metadata"))
        # The arrays themselves: a table holds NaN, and needs no Python number per id.
        record["token_values"] = [{"name": name, "values": row} for name, row in episode.token_values.items()]
        _check_storable(episode, record)
    arrays: dict[str, Sequence[npt.NDArray[Any]]] = {
        **{name: [getattr(e, name) for e in episodes] for name in ("ids", "loss_mask", "logprobs", "versions")},
        "turn_starts": [e.turn_spans[:, 0] for e in episodes],
        "turn_ends": [e.turn_spans[:, 1] for e in episodes],
        "rewards": [e.rewards for e in episodes],
    }
    columns = [
        _list_column(arrays[field.name], field.type)
        if field.name in arrays
        else pa.array([record[field.name] for record in records], type=field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _list_column(arrays: Sequence[npt.NDArray[Any]], kind: Any) -> Any:
    """Arrays as a list column, without a Python object per number."""
    pa = require_pyarrow()
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    # Arrow lists have 32-bit offsets.
    if offsets[-1] >= 2**31:
        raise InvalidValueError(f"{int(offsets[-1])} ids do not fit in one Arrow table: write fewer episodes at once")
    flat = np.concatenate(arrays) if len(arrays) else np.zeros(0)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(flat).cast(kind.value_type), type=kind)


def _check_storable(episode: Episode, record: dict[str, Any]) -> None:
    who = f"episode {episode.index} on {episode.problem_id!r}"
    for name in ("index", "seed"):
        if record[name] is not None and not -(2**63) <= record[name] < 2**63:
            raise InvalidEpisodeError(f"{who}: {name} must fit in int64 to be stored in a table, got {record[name]}")
    # Arrow refuses lone surrogates without saying in which row: they are looked for here.
    texts = [record["problem_id"], record["group"] or "", record["prompt"], *episode.token_values]
    texts += [*record["feedbacks"], *record["responses"], *record["gold"]]
    texts += [v[name] or "" for v in record["verdicts"] for name in ("reason", "answer", "gold", "tier", "rule")]
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidEpisodeError(f"{who}: a table holds Unicode texts only, got {text!r}") from None


def check_table_schema(schema: Any, source: str) -> None:
    """Raises `InvalidValueError` naming the column where `schema` is not the one of `table_schema`.

    Metadata that name another schema or version are refused. None at all are not: `datasets` drops ours when it writes.
    """
    expected = table_schema()
    metadata = {
        key.decode(errors="replace"): value.decode(errors="replace") for key, value in (schema.metadata or {}).items()
    }
    found = metadata.get("schema"), metadata.get("schema_version")
    if found not in ((SCHEMA, str(SCHEMA_VERSION)), (None, None)):
        raise InvalidValueError(
            f"{source}: schema must be {SCHEMA!r} version {SCHEMA_VERSION}, got {found[0]!r} version {found[1]!r}"
        )
    for field in expected:
        at = schema.get_field_index(field.name)
        if at < 0 and field.name in _MAY_LACK:
            continue
        if at < 0:
            raise InvalidValueError(f"{source}: column {field.name!r} is missing")
        if not _compatible(schema.field(at).type, field.type):
            raise InvalidValueError(f"{source}: column {field.name!r} must be {field.type}, is {schema.field(at).type}")


def _compatible(found: Any, expected: Any) -> bool:
    """The same type; names of list items and 64-bit offsets, which other writers choose differently, apart."""
    pa = require_pyarrow()
    if pa.types.is_dictionary(found):  # how texts are read, see `bounded_batches`
        return _compatible(found.value_type, expected)
    lists = (pa.types.is_list, pa.types.is_large_list)
    if any(check(found) for check in lists) and pa.types.is_list(expected):
        return _compatible(found.value_type, expected.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        names = {field.name for field in found}
        return {field.name for field in expected} <= names and all(
            _compatible(found.field(field.name).type, field.type) for field in expected
        )
    # polars and others write 64-bit offsets.
    if pa.types.is_large_string(found) and pa.types.is_string(expected):
        return True
    return bool(found == expected)


def episodes_from_table(table: Any) -> Iterator[Episode | InvalidEpisodeError]:
    """Every row of a table (or record batch) as an episode, or as the error that says what is wrong with it.

    Args:
        table: A `pyarrow.Table` or record batch; the table of a `datasets.Dataset` (`dataset.data.table`), which
            has lost the schema's name, is taken by its columns.

    Raises:
        InvalidValueError: a table of another schema.
    """
    check_table_schema(table.schema, "table")
    pa = require_pyarrow()
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    for batch in batches:
        columns = {name: batch.column(name) for name in table_schema().names if name in batch.schema.names}
        rows = {name: _rows(column) for name, column in columns.items() if name in _NUMBERS}
        plain = {name: _plain(column) for name, column in columns.items() if name not in _NUMBERS}
        for row in range(batch.num_rows):
            try:
                yield _episode(row, rows, {name: _cell(name, values[row]) for name, values in plain.items()})
            except InvalidEpisodeError as error:
                yield error


def _plain(column: Any) -> list[Any]:
    """A column's values; where a text in it is no UTF-8, which a Parquet file does not rule out, the error stands for it."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        found = [_decoded(value) for value in column]
    return found


def _decoded(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, UnicodeDecodeError):
        raise InvalidEpisodeError(f"{name} is not UTF-8: {value}")
    return value


def _rows(column: Any) -> Callable[[str, int], npt.NDArray[Any]]:
    """A function from (name, row) to that row's numbers, which refuses nulls."""
    offsets, values = column.offsets.to_numpy(), column.values
    gaps = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    # Nulls would turn integers into floats on the way to NumPy; rows that have any are refused below.
    numbers = (values.fill_null(0) if gaps is not None else values).to_numpy(zero_copy_only=False)

    def read(name: str, row: int) -> npt.NDArray[Any]:
        part = slice(int(offsets[row]), int(offsets[row + 1]))
        if not column[row].is_valid or (gaps is not None and gaps[part].any()):
            raise InvalidEpisodeError(f"{name} must hold numbers, has null")
        return numbers[part].copy()  # type: ignore[no-any-return]

    return read


def _episode(row: int, rows: dict[str, Callable[[str, int], npt.NDArray[Any]]], record: dict[str, Any]) -> Episode:
    arrays = {name: read(name, row) for name, read in rows.items()}
    starts, ends = arrays.pop("turn_starts"), arrays.pop("turn_ends")
    if len(starts) != len(ends):
        raise InvalidEpisodeError(f"turn_starts has {len(starts)} entries, turn_ends {len(ends)}")
    record["turn_spans"] = [list(span) for span in zip(starts.tolist(), ends.tolist(), strict=True)]
    record["rewards"] = arrays.pop("rewards").tolist()
    try:
        record["metadata"] = parse_json(record["metadata_json"])
    except (ValueError, TypeError) as error:
        raise InvalidEpisodeError(f"metadata_json is not JSON: {error}") from error
    if record.get("token_values") is not None:
        record["token_values"] = {one["name"]: one["values"] for one in record["token_values"]}
    return build_episode(record, **arrays)
