"""Makes the answers of the page: what browsers are told to trust, and where the page is."""

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
    }
)


def page_root(request: web.Request) -> str:
    """Returns the relative path from a request's address to the page, which may be below another server's path."""
    return "../" * (request.rel_url.raw_path.count("/") - 1)


def html_page(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def see_other(address: str) -> web.Response:
    """Sends a browser to another address, which it gets."""
    return web.Response(status=303, headers={**HEADERS, "Location": address})
