"""Requests that wait, in the order in which they will be admitted. Every operation is O(1), or O(log n) by priority."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from engine.request import Request


def priority_key(request: Request) -> tuple[int, int]:
    """Smaller goes first: by priority, then by arrival."""
    return request.priority, request.arrival_order


class WaitingQueue(Protocol):
    """What the scheduler asks of a queue; iterating yields the requests in queue order."""

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...

    def add(self, request: Request) -> None:
        """Queue a request that has just arrived."""

    def put_back(self, request: Request) -> None:
        """Queue a request that was running: before everybody else, or where its priority belongs."""

    def first(self) -> Request:
        """The request that is next. The queue must not be empty."""

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""


class ArrivalQueue:
    """First come, first served; a preempted request goes to the head."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def first(self) -> Request:
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]


class PriorityQueue:
    """Smallest priority first, then earliest arrival, whether new or preempted.

    A binary heap. A request that leaves from the middle stays in it as a dead entry until it comes to the top, or
    until more than half of the entries are dead.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._live: set[int] = set()  # arrival orders, which are unique

    def __iter__(self) -> Iterator[Request]:
        return iter([entry[2] for entry in sorted(self._heap) if entry[1] in self._live])

    def __len__(self) -> int:
        return len(self._live)

    def add(self, request: Request) -> None:
        self._live.add(request.arrival_order)
        heapq.heappush(self._heap, (*priority_key(request), request))

    put_back = add

    def first(self) -> Request:
        heap, live = self._heap, self._live
        while heap[0][1] not in live:
            heapq.heappop(heap)
        return heap[0][2]

    def remove(self, request: Request) -> None:
        self._live.remove(request.arrival_order)
        heap = self._heap
        if heap[0][2] is request:
            heapq.heappop(heap)
        elif len(heap) > 2 * len(self._live) + 16:
            self._heap = [entry for entry in heap if entry[1] in self._live]
            heapq.heapify(self._heap)
