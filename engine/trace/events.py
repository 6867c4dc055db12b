"""What the engine says about itself: one :class:`StepEvents` for every engine step.

The records are `msgspec` structs, so that they cost little to make, are written as MessagePack, and are checked
field by field when they are read back. Structs are arrays on the wire: a field may be added at the end (with a
default) and old readers skip it, but none may be moved or removed without a new :data:`SCHEMA_VERSION`.

Times are nanoseconds on the run's clock. That clock is monotonic, starts at 0 with the run, and stands still while
the engine is paused or held back by slow motion, so that no latency contains a pause.
"""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1


class Arrived(msgspec.Struct, array_like=True, gc=False):
    """A request entered the waiting queue. ``max_tokens`` and ``temperature`` are as asked for."""

    request_id: str
    arrival_ns: int
    prompt_token_ids: list[int]
    prompt_text: str
    max_tokens: int
    temperature: float = 0.0
    priority: int = 0
    salt: str | None = None
    source: str = ""  # the scenario's group, "user" or "cli"
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    logprobs: int | None = None
    parent: str = ""  # of one of several samples of a prompt: what they were asked for as


class Refused(msgspec.Struct, array_like=True, gc=False):
    """A request that can never be served was turned away. ``reason`` is a code, ``message`` is for people.

    For those who say it in another language: ``message`` is ``template`` with ``values`` put in. Recordings of before
    there were any have neither.
    """

    request_id: str
    reason: str  # "prompt_too_long" | "larger_than_pool" | "empty_prompt" | "bad_parameters" | "bad_prompt"
    message: str
    prompt_text: str = ""
    template: str = ""
    values: dict[str, str | int | float] = {}


class KnobChange(msgspec.Struct, array_like=True, gc=False):
    """A knob was turned; it acts from this step on."""

    name: str
    old: int | float | bool | str
    new: int | float | bool | str


class Preempted(msgspec.Struct, array_like=True, gc=False):
    """A running request lost its blocks and waits again; it will recompute ``lost_tokens`` tokens.

    ``cause`` is "no_free_blocks" (``for_request`` needed them) or "pool_rebuilt" (a knob rebuilt the pool).
    """

    request_id: str
    cause: str
    for_request: str
    lost_tokens: int
    freed_blocks: int


class Scheduled(msgspec.Struct, array_like=True, gc=False):
    """A request got ``num_tokens`` of the step's budget, computed after the ``num_computed_tokens`` it had.

    ``admission`` is "" for a request that was running, "first" when it runs for the first time and "resumed" when it
    comes back after a preemption; then ``hit_tokens`` of it came from the prefix cache (and are counted in
    ``num_computed_tokens``). ``samples`` is False for a chunk that does not reach the request's last token.
    """

    request_id: str
    num_tokens: int
    num_computed_tokens: int
    samples: bool
    admission: str = ""
    hit_tokens: int = 0


class Allocated(msgspec.Struct, array_like=True, gc=False, tag="alloc"):
    """Blocks were taken from the head of the free queue and put at the end of the request's block table."""

    request_id: str
    blocks: list[int]


class Hit(msgspec.Struct, array_like=True, gc=False, tag="hit"):
    """Cached blocks were put at the end of the request's block table: one more reference on each."""

    request_id: str
    blocks: list[int]


class Freed(msgspec.Struct, array_like=True, gc=False, tag="free"):
    """The request gave up its block table. ``blocks`` in the order of release: from the tail to the head.

    Blocks whose references reach zero go to the free queue: those with a hash to its tail, in this order; those
    without to its head, keeping this order among themselves. With prefix caching off no block gets a hash.
    """

    request_id: str
    blocks: list[int]


class Cached(msgspec.Struct, array_like=True, gc=False, tag="cache"):
    """Full blocks got their hashes (the first 8 bytes of them, as an unsigned number) and can be hit from now on."""

    request_id: str
    blocks: list[int]
    hashes: list[int]


class Evicted(msgspec.Struct, array_like=True, gc=False, tag="evict"):
    """Cached free blocks lost their hashes, because they were taken for other tokens."""

    blocks: list[int]
    hashes: list[int]


class CacheReset(msgspec.Struct, array_like=True, gc=False, tag="reset"):
    """Every hash was forgotten. The order of the free queue stays."""


class PoolRebuilt(msgspec.Struct, array_like=True, gc=False, tag="rebuild"):
    """The pool was made anew: all blocks free, no hashes, the free queue 1, 2, 3, ..."""

    num_blocks: int
    block_size: int


PoolEvent = Allocated | Hit | Freed | Cached | Evicted | CacheReset | PoolRebuilt


class TokenLogprob(msgspec.Struct, array_like=True, gc=False):
    """A token with the natural logarithm of its probability, and the text of the token alone."""

    token_id: int
    logprob: float
    text: str = ""


class Logprobs(msgspec.Struct, array_like=True, gc=False):
    """How likely the sampled token was, and the likeliest ones, the likeliest first.

    By the model's own logits: before any penalty, bias or temperature. So a sampled token need not be among ``top``.
    """

    sampled: TokenLogprob
    top: list[TokenLogprob] = []


class Sampled(msgspec.Struct, array_like=True, gc=False):
    """A request got a token. ``text`` is what became readable with it: often a word, sometimes nothing yet."""

    request_id: str
    token_id: int
    text: str
    logprobs: Logprobs | None = None  # if the request asked for them


class Finished(msgspec.Struct, array_like=True, gc=False):
    """A request left. ``reason`` is "stop", "length" or "abort"; ``text`` what was still held back, if anything.

    ``stop`` is the stop string, or the id of the stop token, that ended it; None for the end of the sequence.
    """

    request_id: str
    reason: str
    text: str = ""
    stop: str | int | None = None


class PhaseTimes(msgspec.Struct, array_like=True, gc=False):
    """Nanoseconds of each phase of a step, together no more than the step. ``publish`` is everything after sampling.

    On a GPU ``forward`` and ``sample`` are the device's time. With the knob ``overlap`` texts and events of a step are
    made during the next one; of that ``publish`` has only what the device did not hide, in the step that waited for it.
    """

    schedule: int = 0
    prepare: int = 0
    forward: int = 0
    sample: int = 0
    publish: int = 0


class StepEvents(msgspec.Struct, array_like=True, gc=False):
    """Everything that happened in one engine step, in this order:

    knobs turned, requests arrived, refused and ended between steps (``aborted``: by the user, or with "length" because
    a smaller pool can no longer hold them); then
    scheduling: ``preempted``, ``scheduled`` in order; then the tokens ``sampled`` and the requests ``finished``.
    ``pool`` holds what happened to blocks during all of that, in the order in which it happened.

    ``stopped_by`` says why no more was scheduled: "" (nothing was left to schedule), "budget", "max_num_seqs",
    "no_free_blocks", "watermark", "chunked_prefill_off" (the next prompt does not fit in what is left of the budget)
    or "preemption" (nobody is admitted in a step that preempted); ``stopped_at`` is the request that it stopped at.

    ``mode`` says how the forward pass ran on a GPU: "eager" (kernel by kernel), "graph 8" (a CUDA graph for 8 requests)
    or "capture 8" (one that was captured on the way); "" on a CPU, and in recordings from before it was told.

    A step with nothing scheduled exists only to tell of knobs, arrivals, refusals or aborts.
    """

    step: int
    start_ns: int
    end_ns: int
    phases: PhaseTimes
    knobs: list[KnobChange]
    arrived: list[Arrived]
    refused: list[Refused]
    aborted: list[Finished]
    preempted: list[Preempted]
    scheduled: list[Scheduled]
    pool: list[PoolEvent]
    sampled: list[Sampled]
    finished: list[Finished]
    stopped_by: str
    stopped_at: str
    free_blocks: int  # after scheduling
    free_blocks_after: int  # after the finished requests gave theirs back
    mode: str = ""


class ModelInfo(msgspec.Struct):
    """What a viewer wants to know of the model."""

    name: str
    source: str = ""
    architecture: str = ""
    num_parameters: int = 0
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0
    vocab_size: int = 0
    dtype: str = ""
    bytes_per_token: int = 0  # of keys and values, all layers


class MachineInfo(msgspec.Struct):
    """Where the run happened."""

    device: str = ""  # "cpu" or the name of the GPU
    processor: str = ""
    cores: int = 0
    threads: int = 0  # that the forward pass used
    system: str = ""
    python: str = ""
    torch: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.device not in ("", "cpu")


class MemoryInfo(msgspec.Struct):
    """Where memory went when the run began, in bytes; 0 is not known.

    ``weights`` as they lie in memory, packed or not; ``pool`` the KV cache. On a GPU whose memory sized the pool:
    ``total`` of the device, of which the share ``utilization`` was to be used, and what a full step (``activations``),
    CUDA graphs (``graphs``, an estimate) and the rest of the process (``other``) take of it.
    """

    weights: int = 0
    pool: int = 0
    total: int = 0
    utilization: float = 0.0
    activations: int = 0
    graphs: int = 0
    other: int = 0


class RunInfo(msgspec.Struct):
    """The header of a run. ``knobs`` holds every knob's value at the start; ``created`` is UTC, ISO 8601.

    ``wall_start_ns`` anchors the run's clock: wall-clock nanoseconds since 1970 at which it read 0. Without
    ``prompt_text`` the prompts were left out: all their tokens are 0. ``eos_token_ids`` are the tokens that end a
    sequence, None in recordings that do not say. ``path`` says which forward pass ran, and why not a faster one.
    """

    schema: int
    version: str
    created: str
    wall_start_ns: int
    model: ModelInfo
    machine: MachineInfo
    scenario: str
    seed: int
    max_model_len: int
    knobs: dict[str, int | float | bool | str]
    prompt_text: bool = True
    eos_token_ids: list[int] | None = None
    memory: MemoryInfo | None = None
    path: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StepEvents)


def encode_step(events: StepEvents) -> bytes:
    return _encoder.encode(events)


def decode_step(data: bytes | memoryview) -> StepEvents:
    """Read one step back. Raises :class:`msgspec.DecodeError` (a ValueError) when the bytes are not one."""
    return _decoder.decode(data)
