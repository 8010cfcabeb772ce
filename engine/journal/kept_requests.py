"""Requests that were accepted and not run yet, in the memory of one process.

They are for readers who cannot send them themselves: a browser's `EventSource` has neither a body nor headers.
"""

from collections import OrderedDict
from collections.abc import Callable

from engine.errors import Overloaded
from engine.interface import GenerationRequest
from engine.journal.records import EXPIRES_IN_S

# What nobody takes must not fill the memory.
MAX_REQUESTS = 10_000
MAX_BYTES = 256 << 20


class KeptRequests:
    """Bounded in number, bytes and age."""

    def __init__(
        self,
        clock: Callable[[], float],
        expires_in_s: float = EXPIRES_IN_S,
        max_requests: int = MAX_REQUESTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._clock = clock
        self._expires_in_s = expires_in_s
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        # The oldest first, each with the time at which it expires.
        self._requests: OrderedDict[str, tuple[float, GenerationRequest]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def keep(self, id: str, request: GenerationRequest) -> None:
        """
        Raises:
            Overloaded: too many are waiting to be taken. Those that wait are kept.
        """
        self._forget_old()
        self.take(id)
        if len(self._requests) >= self._max_requests or self._num_bytes + request.num_bytes > self._max_bytes:
            raise Overloaded("too many requests are waiting to be read; try again later")
        self._requests[id] = (self._clock() + self._expires_in_s, request)
        self._num_bytes += request.num_bytes

    def take(self, id: str) -> GenerationRequest | None:
        """The request, which is taken out; None when it is unknown, was taken or has expired."""
        self._forget_old()
        _, request = self._requests.pop(id, (0.0, None))
        if request is not None:
            self._num_bytes -= request.num_bytes
        return request

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._requests and next(iter(self._requests.values()))[0] < now_s:
            _, (_, request) = self._requests.popitem(last=False)
            self._num_bytes -= request.num_bytes
