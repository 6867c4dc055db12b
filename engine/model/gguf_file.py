"""Reads a GGUF file: its metadata, the table of its tensors, and tensors one by one, dequantised.

The ``gguf`` package knows the number formats; the header is read here, because the package turns every token and
every merge of the vocabulary into objects of its own, which takes many seconds and is not needed for the weights.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_ARRAY = 4096  # of numbers; longer ones (the vocabulary's) are left out of the metadata
_CHUNK = 1 << 22  # elements that are dequantised at once


class BadGguf(ValueError):
    """The file is no GGUF file that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """``shape`` is (rows, columns) as in PyTorch; ``kind`` is the number format's code, ``start`` bytes into the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


class GgufFile:
    """``metadata`` by key: numbers, texts, and short lists of numbers. ``tensors`` by name. Close it after use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            try:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise BadGguf("the file is empty") from None
        self._at = 4
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, KeyError, MemoryError, OverflowError) as error:
            self._bytes.close()
            raise BadGguf(f"the file's header is damaged ({type(error).__name__} near byte {self._at:,})") from None
        except BadGguf:
            self._bytes.close()
            raise

    def close(self) -> None:
        self._bytes.close()

    def number(self, key: str, default: float | None = None) -> Any:
        """A number of the metadata; a list whose members are all the same counts as one of them."""
        value = self.metadata.get(key, default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise BadGguf(f"{key} differs from layer to layer")
            value = value[0]
        if value is None:
            raise BadGguf(f"the metadata lack {key}")
        if not isinstance(value, int | float):
            raise BadGguf(f"{key} is {value!r}, but must be a number")
        return value

    def format_of(self, name: str) -> str:
        """What a tensor's numbers are stored as: "F32", "Q4_K", ..."""
        from gguf.constants import GGMLQuantizationType

        try:
            return GGMLQuantizationType(self.tensors[name].kind).name
        except ValueError:
            return f"format {self.tensors[name].kind}"

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A tensor as numbers of type ``dtype``, rounded once from what the file stands for."""
        import numpy as np
        import torch
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.tensors[name]
        try:
            kind = GGMLQuantizationType(info.kind)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise BadGguf(f"{name} is stored as {self.format_of(name)}, which is not supported") from None
        columns = info.shape[-1]
        rows = prod(info.shape) // columns
        row_bytes = columns // block * block_bytes
        if columns % block or info.start + rows * row_bytes > len(self._bytes):
            raise BadGguf(f"{name} reaches beyond the end of the file, which was cut off")
        stored = np.frombuffer(self._bytes, dtype=np.uint8, count=rows * row_bytes, offset=info.start)
        stored = stored.reshape(rows, row_bytes)
        out = torch.empty((rows, columns), dtype=dtype)
        step = max(1, _CHUNK // columns)
        for first in range(0, rows, step):
            try:
                numbers = dequantize(stored[first : first + step].copy(), kind)
            except NotImplementedError:
                raise BadGguf(f"{name} is stored as {kind.name}, which is not supported") from None
            out[first : first + step] = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
        return out.reshape(info.shape)

    # --- the header --------------------------------------------------------------------------------------------------

    def _read_header(self) -> None:
        if self._bytes[:4] != b"GGUF":
            raise BadGguf("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise BadGguf(f"version {version} of the format is not supported, only 2 and 3 (little-endian)")
        tensors, entries = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            self.metadata[key] = self._value(self._scalar("I"))
        found = [self._tensor() for _ in range(tensors)]
        alignment = int(self.number("general.alignment", 32))
        data = -(-self._at // alignment) * alignment
        self.tensors = {name: TensorInfo(name, shape, kind, data + offset) for name, shape, kind, offset in found}

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        dimensions = [self._scalar("Q") for _ in range(self._scalar("I"))]
        if not dimensions or min(dimensions) < 1:
            raise BadGguf(f"the file's header is damaged: {name!r} has the shape {dimensions}")
        return name, tuple(reversed(dimensions)), self._scalar("I"), self._scalar("Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        kind, length = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            for _ in range(length):
                self._at += 8 + int(struct.unpack_from("<Q", self._bytes, self._at)[0])
            return None
        size = struct.calcsize(_SCALARS[kind])
        self._at += length * size
        if length > _LONGEST_ARRAY:
            return None
        return list(struct.unpack_from(f"<{length}{_SCALARS[kind]}", self._bytes, self._at - length * size))

    def _scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._bytes, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _text(self) -> str:
        length = self._scalar("Q")
        if length > len(self._bytes) - self._at:
            raise BadGguf("the file was cut off, or its header is damaged")
        self._at += length
        return self._bytes[self._at - length : self._at].decode("utf-8")


def formats(file: GgufFile, names: Sequence[str]) -> set[str]:
    """What the tensors ``names`` are stored as."""
    return {file.format_of(name) for name in names}
