"""The name that HTTP servers give themselves."""

from aiohttp import web_response

_NAME = "job-supervisor"


def hide_versions() -> None:
    """Names this product in the `Server` header of every answer, without any versions.

    aiohttp names itself and Python, with their versions, and has no setting for it. A hook of the application would not
    be asked about what is refused before there is a request.
    """
    web_response.SERVER_SOFTWARE = _NAME  # type: ignore[attr-defined]  # It is not meant to be changed.
