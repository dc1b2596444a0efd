"""Reads the forms that browsers send, within bounds."""

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from supervisor.ingest.errors import MalformedError, OversizedError

_MAX_BYTES = 16 * 1024
_MAX_FIELDS = 8
_OWN_SITE = ("same-origin", "none")
"""Values of Sec-Fetch-Site for a request of our own page, and for one that the user typed."""


def own_site(request: web.Request) -> None:
    """Refuses a request that another site's page has sent.

    Raises:
        MalformedError: Another site sent it.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    # Browsers say the site only where the connection is safe; programs say neither.
    by_origin = origin is None or urlsplit(origin).netloc == request.host
    if not (by_origin if site is None else site in _OWN_SITE):
        raise MalformedError("the request was sent by another site")


async def posted(request: web.Request) -> Mapping[str, str]:
    """Reads the fields of a form, each of which has one value.

    Raises:
        OversizedError: The body is too large for a form.
        MalformedError: The body is not a form, or another site's page sent it.
    """
    own_site(request)
    try:
        await request.content.readexactly(_MAX_BYTES + 1)
    except asyncio.IncompleteReadError as error:  # All of it was read.
        body = error.partial
    except web.RequestPayloadError as error:
        raise MalformedError("the body is not framed as HTTP has it") from error
    else:
        raise OversizedError(f"more than {_MAX_BYTES} bytes")
    try:
        text = body.decode("ascii")
        fields = parse_qs(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MAX_FIELDS
        )
    except ValueError as error:
        raise MalformedError("the body is not a form") from error
    if any(len(values) > 1 for values in fields.values()):
        raise MalformedError("a field of the form has more than one value")
    return {name: value for name, (value,) in fields.items()}
