"""What is known of a run as a whole: its model, where it ran, and where memory went."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.trace.events import MemoryInfo, ModelInfo, RunInfo
from widgets.numbers import format_bytes


def about_run(info: RunInfo) -> str:
    """The run in a few lines of text, each about one thing; what is not known is left out."""
    lines = [info.model.name, *_model(info.model), *_machine(info)]
    if info.memory is not None:
        lines += _memory(info.memory)
    return "\n".join(lines)


def _model(model: ModelInfo) -> list[str]:
    if not model.num_layers:
        return []
    return [
        QCoreApplication.translate("RunFacts", "{architecture}, {parameters} parameters in {dtype}").format(
            architecture=model.architecture, parameters=_short(model.num_parameters), dtype=model.dtype),
        QCoreApplication.translate(
            "RunFacts", "{layers} layers, {heads} heads of {size} ({kv_heads} for KV), {bytes} of KV a token").format(
                layers=model.num_layers, heads=model.num_heads, size=model.head_size, kv_heads=model.num_kv_heads,
                bytes=format_bytes(model.bytes_per_token))]


def _short(count: int) -> str:
    """As models are named: 135M, 8.0B."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


def _machine(info: RunInfo) -> list[str]:
    machine, lines = info.machine, []
    if machine.on_gpu:
        lines.append(QCoreApplication.translate("RunFacts", "on {device}").format(device=machine.device))
    elif machine.processor:
        lines.append(QCoreApplication.translate(
            "RunFacts", "on {processor}, threads: {threads} on {cores} cores").format(
                processor=machine.processor, threads=machine.threads, cores=machine.cores))
    if info.path:
        lines.append(QCoreApplication.translate("RunFacts", "forward pass: {path}").format(path=info.path))
    return lines


def _memory(memory: MemoryInfo) -> list[str]:
    known = [(text, size) for text, size in (
        (QCoreApplication.translate("RunFacts", "weights {size}"), memory.weights),
        (QCoreApplication.translate("RunFacts", "KV pool {size}"), memory.pool),
        (QCoreApplication.translate("RunFacts", "activations of a full step {size}"), memory.activations),
        (QCoreApplication.translate("RunFacts", "CUDA graphs about {size}"), memory.graphs),
        (QCoreApplication.translate("RunFacts", "the rest of the process {size}"), memory.other)) if size]
    lines = []
    if known:
        lines.append(QCoreApplication.translate("RunFacts", "memory at the start: {parts}").format(
            parts=QCoreApplication.translate("RunFacts", ", ").join(t.format(size=format_bytes(s)) for t, s in known)))
    if memory.total and memory.utilization:
        lines.append(QCoreApplication.translate(
            "RunFacts", "gpu_memory_utilization {share}: so much of the GPU's {total} was to be used").format(
                share=f"{memory.utilization:g}", total=format_bytes(memory.total)))
    return lines
