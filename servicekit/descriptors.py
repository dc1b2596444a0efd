"""File descriptors: each connection takes one, and the usual limit is made for programs with a few."""

import resource


def raise_limit() -> int:
    """Raise the limit as far as this process may, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
