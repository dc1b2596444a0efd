"""The limit on file descriptors: each connection takes one, and the default is for programs with a few."""

import resource


def raise_limit() -> int:
    """Raises the limit as far as this process may, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
