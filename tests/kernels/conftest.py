"""Triton decides when it is imported whether it compiles or interprets, so the two do not go into one process.

What is in ``interpreted`` runs in a process of its own, started by ``test_in_interpreter.py``; to run a part by hand:
``TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted -k norm``.
"""

from __future__ import annotations

import importlib.util
import os

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"

if importlib.util.find_spec("triton") is None:  # not for this system
    collect_ignore = ["interpreted", "test_compiled.py", "test_in_interpreter.py"]
elif INTERPRETING:
    collect_ignore = ["test_compiled.py", "test_in_interpreter.py"]
else:
    collect_ignore = ["interpreted"]
