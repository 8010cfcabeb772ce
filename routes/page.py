"""The page at `/`: one file, held to a policy that lets it load nothing and talk to nobody but this server."""

import base64
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

PAGE = Path(__file__).with_name("page.html").read_bytes()


def content_security_policy(page: bytes) -> str:
    """Of scripts and styles, only those that stand in `page` may run: each is named by its digest."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_digests(page, b'script')}",
            f"style-src {_digests(page, b'style')}",
            "img-src data:",  # the icon, which is in the page
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _digests(page: bytes, element: bytes) -> str:
    texts: list[bytes] = re.findall(b"<%b[^>]*>(.*?)</%b>" % (element, element), page, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in texts)


HEADERS = {
    "Content-Security-Policy": content_security_policy(PAGE),
    "Cache-Control": "no-cache",  # a new version is seen at the next visit
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE, headers=HEADERS)
