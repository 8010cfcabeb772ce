"""Requests that were accepted and not run yet, for readers who cannot send them themselves.

A browser's `EventSource` is one: it has neither a body nor headers.

An id is 128 random bits and the only thing that is needed to run its request, once.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable

from engine.errors import Overloaded
from engine.interface import GenerationRequest

# A page asks for the stream as soon as it has the id; this is for slow networks.
EXPIRES_IN_S = 120

# What nobody claims must not fill the memory.
MAX_REQUESTS = 10_000
MAX_BYTES = 256 << 20


class KeptRequests:
    """In memory: another process does not know them."""

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
        self._requests: OrderedDict[str, tuple[float, GenerationRequest]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def keep(self, request: GenerationRequest) -> str:
        """The id by which `request` can be claimed until it expires.

        Raises:
            Overloaded: too many are waiting to be claimed. Those that wait are kept.
        """
        self._forget_old()
        if len(self._requests) >= self._max_requests or self._num_bytes + request.num_bytes > self._max_bytes:
            raise Overloaded("too many requests are waiting to be read; try again later")
        id = secrets.token_urlsafe(16)
        self._requests[id] = (self._clock(), request)
        self._num_bytes += request.num_bytes
        return id

    def find(self, id: str) -> GenerationRequest | None:
        """The request, which stays; None when it is unknown, was claimed or has expired."""
        self._forget_old()
        _, request = self._requests.get(id, (0.0, None))
        return request

    def claim(self, id: str) -> GenerationRequest | None:
        """Take the request out, so that nobody else can run it."""
        request = self.find(id)
        if request is not None:
            del self._requests[id]
            self._num_bytes -= request.num_bytes
        return request

    def give_back(self, id: str, request: GenerationRequest) -> None:
        """Undo a claim whose request could not be run now. It expires as late as a new one."""
        self._requests[id] = (self._clock(), request)
        self._num_bytes += request.num_bytes

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._requests and now_s - next(iter(self._requests.values()))[0] > self._expires_in_s:
            _, (_, request) = self._requests.popitem(last=False)
            self._num_bytes -= request.num_bytes
