"""Explains to people why a peer could not be reached."""

import os

import aiohttp


def connect_error_reason(error: Exception) -> str:
    """Returns the operating system's reason, such as `Connection refused`: aiohttp's text is about its own settings."""
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return str(error)
    cause = error.os_error
    if cause.errno is None or cause.errno < 0:  # A host name that does not resolve.
        return cause.strerror or str(cause)
    return os.strerror(cause.errno)
