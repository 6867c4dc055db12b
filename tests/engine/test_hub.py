"""Downloading from the Hugging Face hub, tried on a hub of our own on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.model.library import ModelError, ModelUnavailable, find_model
from engine.model.problems import ProgressReport
from tests.engine.test_model_library import CONFIG

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """Serves the models in ``models`` (name to files) as the hub does, as far as its library asks."""

    daemon_threads = True

    def __init__(self, models: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.fetched: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0].strip("/").removeprefix("api/models/")
        name = "/".join(path.split("/")[:2])
        files = self.server.models.get(name)
        if files is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        elif "/resolve/" in path:
            data = files[path.rpartition("/")[2]]
            if body:  # noted first: the client may be done before this thread is
                self.server.fetched.add(path.rpartition("/")[2])
            self._send(200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, body)
        elif "/tree/" in path:
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in files.items()
            ]
            self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body)
        else:
            siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
            answer = {"id": name, "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return
        for start in range(0, len(data), 1 << 20):  # large files take a while, so that there is progress to see
            self.wfile.write(data[start : start + (1 << 20)])
            if len(data) > 1 << 20:
                time.sleep(0.15)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": bytes(8 << 20),
        "pytorch_model.bin": b"a pickle",
        "modeling_own.py": b"their code",
    }
    foreign = {**files, "config.json": json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}).encode()}
    hub = Hub({"some/chat": files, "some/mamba": foreign})
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


def test_a_model_comes_without_pickles_and_code_and_only_once(hub: Hub) -> None:
    reports: list[ProgressReport] = []
    folder = find_model("some/chat", reports.append)
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert hub.fetched == {"config.json", "tokenizer.json", "model.safetensors"}
    fractions = [report.fraction for report in reports if report.fraction is not None]
    assert fractions == sorted(fractions)
    assert any(0 < fraction < 1 for fraction in fractions)
    hub.models.clear()
    assert find_model("some/chat") == folder


def test_an_unsupported_model_is_refused_before_its_weights_are_downloaded(hub: Hub) -> None:
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        find_model("some/mamba")
    assert "model.safetensors" not in hub.fetched


def test_a_name_that_the_hub_does_not_know_is_said(hub: Hub) -> None:
    with pytest.raises(ModelUnavailable, match="knows no such model"):
        find_model("some/other")
