"""An elastic agent's own settings: its number of workers, and the address at which other agents reach it."""

from __future__ import annotations

import contextlib
import io
import math
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

_AWAY_SECONDS = 10.0  # A supervisor that is restarted is back before


class UnknownProcesses(ValueError):  # noqa: N818 - the name describes what is missing
    """The number of workers for each host is not known."""


def processes_of(parameters: Any) -> int:
    """Return the number of workers of this agent: `processes` of --rdzv-conf, or what torchrun's options say.

    Raises:
        UnknownProcesses: The agent was not started by torchrun, and --rdzv-conf does not say it.
    """
    configured = parameters.get("processes")
    if configured is not None:
        return _positive(str(configured))
    from torch.distributed import run  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            options = run.parse_args(sys.argv[1:])
    except SystemExit as error:
        raise UnknownProcesses("add processes=N, the number of workers for each host, to --rdzv-conf") from error
    return int(run.determine_local_world_size(options.nproc_per_node))


def address_of(parameters: Any, supervisor: str | None) -> str:
    """Return --local-addr, or the address of the interface towards the supervisor, or the name of this host."""
    if parameters.local_addr:
        return str(parameters.local_addr)
    with contextlib.suppress(OSError, ValueError):
        where = urlsplit(supervisor or "")
        for family, _, _, _, target in socket.getaddrinfo(where.hostname, where.port or 443, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # sends nothing
                return str(probe.getsockname()[0])
    return socket.getfqdn()


def away_seconds_of(parameters: Any) -> float:
    """Return `away_seconds` of --rdzv-conf: how long the supervisor is away before members form rounds without it.

    Raises:
        ValueError: It is no number of seconds.
    """
    seconds = float(parameters.get("away_seconds", _AWAY_SECONDS))
    if not 0 < seconds < math.inf:
        raise ValueError(f"away_seconds={seconds} in --rdzv-conf is no number of seconds")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UnknownProcesses(f"processes={text} in --rdzv-conf is no number of workers")
    return int(text)
