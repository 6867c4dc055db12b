"""Downloads one model from the Hugging Face hub; ``python -m engine.model.hub NAME``, in a process of its own.

It can be killed at any moment: the hub's library goes on where it was. One JSON object a line: ``{"done": bytes,
"total": bytes}`` as it goes on, then ``{"folder": path}``, or ``{"error": code, "reason": text}`` and status 1.
Configuration first: a model that we cannot run is refused before its weights are downloaded.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

SMALL = ["*.json", "*.jinja"]
WEIGHTS = ["*.safetensors", *SMALL]  # never pickles, never code


def download(name: str) -> dict[str, Any]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    from engine.model.config import ModelConfig, UnsupportedModel

    try:
        folder = Path(snapshot_download(name, allow_patterns=SMALL))
        ModelConfig.load(folder)
        planned: Any = snapshot_download(name, allow_patterns=WEIGHTS, dry_run=True)
        total = sum(file.file_size for file in planned)
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(folder.parents[1] / "blobs", total, done), daemon=True)
        watcher.start()
        try:
            return {"folder": str(snapshot_download(name, allow_patterns=WEIGHTS))}
        finally:
            done.set()
            watcher.join()
    except UnsupportedModel as error:
        return {"error": "unsupported", "reason": str(error).replace(str(folder), name)}
    except GatedRepoError:
        return {"error": "hub_refused", "reason": "its owners must grant access first, on its page on the hub"}
    except (RepositoryNotFoundError, HFValidationError):
        return {"error": "hub_refused", "reason": "the hub knows no such model"}
    except LocalEntryNotFoundError:
        return {"error": "no_network_hub", "reason": "no network"}
    except (HfHubHTTPError, OSError) as error:
        return {"error": "hub_refused", "reason": " ".join(str(error).split())[:200]}


def _watch(blobs: Path, total: int, done: threading.Event) -> None:
    while not done.wait(0.3):
        try:
            got = sum(path.stat().st_size for path in blobs.iterdir())
        except OSError:
            continue
        print(json.dumps({"done": min(got, total), "total": total}), flush=True)


def main(arguments: list[str]) -> int:
    answer = download(arguments[0])
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
