"""A run in other programs' formats: Perfetto traces, CSV tables, JSON lines. No torch, no Qt.

Every exporter is a generator: it does a little work, yields how much is done (0 to 1), and has written its file when
it is exhausted. So the command line runs it in a loop, the window between frames, and closing it early, or an error,
leaves nothing behind. Files get a temporary name in the same folder until they are whole. What is there already is
only replaced with ``overwrite``. All raise :class:`ExportError`, whose text is for people and can be translated.
"""

from engine.trace.export.files import ExportError, ExportFailed
from engine.trace.export.jsonl import export_jsonl, read_jsonl
from engine.trace.export.perfetto import export_perfetto
from engine.trace.export.tables import export_csv

__all__ = ["ExportError", "ExportFailed", "export_csv", "export_jsonl", "export_perfetto", "read_jsonl"]
