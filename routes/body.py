"""A request's body: read with a bound on its size and on its pauses."""

from starlette.requests import Request

from engine.errors import BodyTooLarge, InvalidRequest
from engine.time_limit import time_limit


async def read_body(request: Request, max_bytes: int, stall_timeout_s: float) -> bytes:
    """The body, refused as soon as it is known to be too large.

    Raises:
        BodyTooLarge: longer than `max_bytes`, by its declared length or while reading.
        InvalidRequest: nothing of it came for `stall_timeout_s` (0 waits for ever).
        ClientDisconnect: the client left before it had sent all.
    """
    too_large = BodyTooLarge(f"the body is larger than {max_bytes} bytes", param="body")
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise too_large
    body = bytearray()
    chunks = request.stream()
    while True:
        try:
            async with time_limit(stall_timeout_s or None):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise InvalidRequest("the rest of the body did not come", param="body") from None
        if chunk is None:
            return bytes(body)
        body += chunk
        if len(body) > max_bytes:
            raise too_large
