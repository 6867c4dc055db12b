"""Workload files: requests in token ids, for measuring. ``assets/bench/README.md`` says what ships and the format."""

from __future__ import annotations

from pathlib import Path

import msgspec

WORKLOAD_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "bench"


class WorkloadFileError(ValueError):
    """There is no such workload, or it is damaged. The message says what, where, and what there is."""


class WorkloadRequest(msgspec.Struct, gc=False):
    """A prompt in token ids, how many tokens to make, and when it arrives (seconds after the start)."""

    id: str
    prompt: list[int]
    max_tokens: int
    arrival_s: float = 0.0


class RequestFile(msgspec.Struct):
    name: str
    requests: list[WorkloadRequest]
    about: str = ""
    ignore_eos: bool = True

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)


def shipped_workloads() -> list[str]:
    return sorted(path.stem for path in WORKLOAD_FOLDER.glob("*.json"))


def load_workload(name_or_path: str) -> RequestFile:
    """Read a workload that ships, by its name, or a file. Raises :class:`WorkloadFileError`."""
    path = WORKLOAD_FOLDER / f"{name_or_path}.json"
    if name_or_path not in shipped_workloads():
        path = Path(name_or_path).expanduser()
    try:
        workload = msgspec.json.decode(path.read_bytes(), type=RequestFile)
    except OSError as failure:
        raise WorkloadFileError(f"{name_or_path}: there is no such file ({failure.strerror}), and no workload of that "
                                f"name; {', '.join(shipped_workloads())} ship") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise WorkloadFileError(f"{path}: this is no workload file: {failure}") from None
    if not workload.requests:
        raise WorkloadFileError(f"{path}: there are no requests in it")
    for request in workload.requests:
        if not request.prompt or min(request.prompt) < 0 or request.max_tokens < 1 or not request.arrival_s >= 0:
            raise WorkloadFileError(f"{path}: request {request.id!r} needs a prompt of token ids from 0 up, max_tokens "
                                    "of at least 1 and an arrival_s of at least 0")
    return workload
