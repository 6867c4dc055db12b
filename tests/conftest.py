"""What all tests share."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")  # for the tests that have windows

from engine.model.library import default_model_ready


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the default model (no network, say) its tests are skipped, and say why."""
    if default_model_ready():
        return
    reason = pytest.mark.skip(reason='the default model is not prepared: "make model", with a network')
    for item in items:
        if item.get_closest_marker("model"):
            item.add_marker(reason)
