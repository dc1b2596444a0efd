"""The `Server` header of HTTP answers."""

from aiohttp import web_response

_NAME = "job-supervisor"


def hide_versions() -> None:
    """Sets the `Server` header of every answer to this product's name, without versions.

    aiohttp names itself and Python, with their versions, and has no setting for it. A hook of the application does not
    run for a connection that is refused before there is a request.
    """
    web_response.SERVER_SOFTWARE = _NAME  # type: ignore[attr-defined]  # Not part of aiohttp's public interface.
