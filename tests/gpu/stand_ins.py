"""Stand-ins for small packages that the engine imports and a machine with a GPU may lack: msgspec and psutil.

Only what the engine needs of them while it serves: records that are made and read, but not encoded, and how much memory
and how many cores there are. Records are then made in Python instead of C, which costs the scheduler a little.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar


def stand_in() -> list[str]:
    """Put stand-ins in the places of the packages that are missing, and return their names."""
    made = {"msgspec": _msgspec, "psutil": _psutil}
    missing = [name for name in made if not importable(name)]
    for name in missing:
        sys.modules[name] = made[name]()
    return missing


def importable(name: str) -> bool:
    """Whether the package is there, without importing it; one that is blocked is not."""
    try:
        return sys.modules[name] is not None
    except KeyError:
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False


class _Record(type):
    """Makes classes of annotated fields, with slots, an initialiser and equality."""

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> _Record:
        fields = [field for field in space.get("__annotations__", ()) if not field.startswith("_")]
        defaults = {field: space.pop(field) for field in fields if field in space}
        inherited = {k: v for base in bases for k, v in getattr(base, "_defaults", {}).items()}
        before = [field for base in bases for field in getattr(base, "_fields", ())]
        space |= {"__slots__": tuple(fields), "_fields": (*before, *fields), "_defaults": inherited | defaults}
        if not options.get("eq", True):
            space |= {"__eq__": object.__eq__, "__hash__": object.__hash__}
        return super().__new__(mcs, name, bases, space)

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, space)
        fields: tuple[str, ...] = space["_fields"]
        parameters, body = [], ["pass"]
        for field in fields:
            given = field in space["_defaults"]
            parameters.append(f"{field}=_defaults[{field!r}]" if given else field)
            changes = given and isinstance(space["_defaults"][field], dict | list | set)
            body.append(f"self.{field} = copy({field}) if {field} is _defaults[{field!r}] else {field}" if changes
                        else f"self.{field} = {field}")  # fmt: skip
        made: dict[str, Any] = {"_defaults": space["_defaults"], "copy": copy.copy}
        exec(f"def __init__(self, {', '.join(parameters)}):\n    " + "\n    ".join(body), made)
        cls.__init__ = made["__init__"]  # type: ignore[misc]


class _Struct(metaclass=_Record):
    _fields: ClassVar[tuple[str, ...]]  # of every record its own

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, f) == getattr(other, f) for f in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f}={getattr(self, f)!r}' for f in self._fields)})"

    def __copy__(self) -> _Struct:
        return type(self)(*(getattr(self, f) for f in self._fields))


def _replace(record: Any, **changes: Any) -> Any:
    made = copy.copy(record)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class _NoCodec:
    def __init__(self, *args: object, **options: object) -> None:
        pass

    def encode(self, value: object) -> bytes:
        raise RuntimeError("msgspec is not installed: nothing can be encoded")

    def decode(self, data: object) -> object:
        raise RuntimeError("msgspec is not installed: nothing can be decoded")


def _module(name: str) -> ModuleType:
    """With a specification, because transformers looks for one to know what is installed."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module


def _msgspec() -> ModuleType:
    module = _module("msgspec")
    msgpack, structs = ModuleType("msgspec.msgpack"), ModuleType("msgspec.structs")
    msgpack.Encoder = msgpack.Decoder = _NoCodec  # type: ignore[attr-defined]
    structs.replace = _replace  # type: ignore[attr-defined]
    sys.modules |= {"msgspec.msgpack": msgpack, "msgspec.structs": structs}
    vars(module).update(Struct=_Struct, msgpack=msgpack, structs=structs, DecodeError=ValueError,
                        ValidationError=ValueError)  # fmt: skip
    return module


def _psutil() -> ModuleType:
    module = _module("psutil")

    page = os.sysconf("SC_PAGE_SIZE")

    def cpu_count(logical: bool = True) -> int:
        return os.cpu_count() or 1

    def virtual_memory() -> SimpleNamespace:
        return SimpleNamespace(total=page * os.sysconf("SC_PHYS_PAGES"), available=page * os.sysconf("SC_AVPHYS_PAGES"))

    class Process:  # transformers asks how much memory this one has
        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=page * int(Path("/proc/self/statm").read_text().split()[1]))

    vars(module).update(cpu_count=cpu_count, virtual_memory=virtual_memory, Process=Process)
    return module
