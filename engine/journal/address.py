"""The address of a shared journal, as a URL, and the client for it."""

from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

# Valkey's own names of the same things.
SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss", "unix": "unix"}

FORMS = (
    "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], the same with rediss://, valkey:// or valkeys://, or unix://PATH"
)


def connect_to(url: str, timeout_s: float) -> Redis:
    """A client that connects when it is first used, and never tries a command twice: the journal decides about that.

    Options of redis-py may stand in the query, such as `?ssl_ca_certs=/etc/ca.pem`.

    Raises:
        ValueError: not an address of Redis or Valkey. The message does not show the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is not a number
    except ValueError:
        raise ValueError(f"the journal's URL is not one; it has the form {FORMS}") from None
    if parts.scheme not in SCHEMES:
        raise ValueError(f"the journal's URL must have the form {FORMS}")
    is_unix = parts.scheme == "unix"
    if not (parts.path if is_unix else parts.hostname):
        raise ValueError(f"the journal's URL names no {'path' if is_unix else 'host'}; it has the form {FORMS}")
    if not is_unix and not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
        raise ValueError("the path of the journal's URL must be the number of a database, such as /0")
    scheme, _, rest = url.partition("://")
    try:
        pool = ConnectionPool.from_url(
            f"{SCHEMES[scheme.lower()]}://{rest}",
            protocol=2,  # of version 3 nothing is used, and it takes more round trips to begin with
            socket_timeout=None,  # the journal sets one time limit to the whole of a call
            socket_connect_timeout=2 * timeout_s,  # for the listener; a call has its own limit, which comes first
            retry=Retry(NoBackoff(), 0),
        )
        pool.make_connection()  # type: ignore[no-untyped-call]  # does not connect; raises for options that it does not know
    except Exception:
        raise ValueError("the journal's URL has an option that is unknown or has a wrong value") from None
    return Redis.from_pool(pool)
