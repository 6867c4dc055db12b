"""The events as JSON lines: one :class:`~engine.trace.events.StepEvents` a line, every field by its name.

``{"step": 0, "start_ns": 0, "end_ns": 2100000, "phases": {"schedule": 20000, ...}, "knobs": [], "arrived": [{...}],
..., "pool": [{"type": "alloc", "request_id": "r1", "blocks": [1, 2]}], "sampled": [...], "free_blocks": 45, ...}``

UTF-8, one object a line, in the order of the steps; the fields are those of ``engine/trace/events.py``, with a
``type`` in the objects of ``pool`` ("alloc", "hit", "free", "cache", "evict", "reset" or "rebuild"). Times are
nanoseconds on the run's clock. Block hashes are whole numbers of 64 bits: a reader that takes numbers for floating
point loses their last digits. A log probability of minus infinity is ``null``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from engine.trace.events import StepEvents
from engine.trace.export.files import new_file
from engine.trace.export.walk import events_of, step_range
from engine.trace.source import RunSource

STEPS_AT_ONCE = 32


def export_jsonl(source: RunSource, path: Path, *, first: int | None = None, last: int | None = None,
                 overwrite: bool = False) -> Generator[float]:
    """Write the steps ``first`` to ``last``. Yields the share that is done; raises ``ExportError``."""
    start, stop = step_range(source, first, last)
    encode = msgspec.json.Encoder().encode
    with new_file(path, overwrite=overwrite) as part, part.open("wb") as file:
        for step in range(start, stop + 1):
            file.write(encode(named(events_of(source, step))))
            file.write(b"\n")
            if (step - start) % STEPS_AT_ONCE == STEPS_AT_ONCE - 1:
                yield (step - start + 1) / (stop - start + 1)
    yield 1.0


def read_jsonl(path: Path) -> Iterator[StepEvents]:
    """Read such a file back. Raises :class:`msgspec.DecodeError` (a ValueError) for a line that is no step."""
    decode = msgspec.json.Decoder().decode
    kind = inspect.type_info(StepEvents)
    with path.open("rb") as file:
        for line in file:
            yield msgspec.convert(_positional(decode(line), kind), StepEvents, str_keys=True)


def named(value: Any) -> Any:
    """Structs, which are arrays on the wire, as dictionaries of their fields, all the way down."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: named(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": tag, **fields} if tag is not None else fields
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return [named(item) for item in value]
    return value


def _positional(value: Any, kind: inspect.Type) -> Any:
    """The way back: dictionaries of fields as the arrays that :func:`msgspec.convert` reads structs from."""
    if isinstance(kind, inspect.UnionType):
        return _positional(value, _member(kind, value))
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        fields = [_field(value, field) for field in kind.fields]
        return [kind.tag, *fields] if kind.tag is not None else fields
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return [_positional(item, kind.item_type) for item in value]
    if isinstance(kind, inspect.FloatType) and value is None:
        return float("-inf")
    return value


def _field(values: dict[str, Any], field: inspect.Field) -> Any:
    if field.encode_name in values:
        return _positional(values[field.encode_name], field.type)
    if field.required:
        raise msgspec.ValidationError(f"the field {field.encode_name} is missing")
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _member(kind: inspect.UnionType, value: Any) -> inspect.Type:
    """The struct of a union that ``value`` is; a plain value is itself, whatever the union has for it."""
    structs = [t for t in kind.types if isinstance(t, inspect.StructType)]
    if not isinstance(value, dict):
        return inspect.AnyType()
    found = next((s for s in structs if s.tag == value.get("type")), None)
    if found is None:
        raise msgspec.ValidationError(f"there is no event of type {value.get('type')!r}")
    return found
