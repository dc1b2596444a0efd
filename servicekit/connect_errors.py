"""Why a peer could not be reached, in words for people."""

import os

import aiohttp


def connect_error_reason(error: Exception) -> str:
    """The operating system's reason, as `Connection refused`: aiohttp's text is about its own settings."""
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return str(error)
    cause = error.os_error
    if cause.errno is None or cause.errno < 0:  # A name that is not known.
        return cause.strerror or str(cause)
    return os.strerror(cause.errno)
