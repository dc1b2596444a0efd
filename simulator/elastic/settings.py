"""The launcher's command line."""

import argparse
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.elastic.membership import ElasticLimits


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    limits: ElasticLimits
    discovery: tuple[str, ...]
    discovery_seconds: float
    """Seconds between two calls of the discovery command."""
    below_min_timeout: float
    """Seconds below the minimum size until the job is given up."""
    command: tuple[str, ...]


def parse_hosts(answer: str) -> frozenset[str]:
    """Parse a discovery script's output, ``host`` or ``host:slots`` per line. One worker runs on each host."""
    return frozenset(line.split(":")[0].strip() for line in answer.splitlines() if line.strip())


def parse_arguments(arguments: Sequence[str]) -> ElasticSettings:
    """Parse the command line. Exits the process with a message if it is invalid."""
    parser = argparse.ArgumentParser(prog="python -m simulator.elastic.launcher", description="An elastic launcher.")
    parser.add_argument(
        "--min-workers", type=int, required=True, help="minimum number of hosts; with fewer the job waits, then ends"
    )
    parser.add_argument("--max-workers", type=int, required=True, help="maximum number of hosts")
    parser.add_argument("--start-workers", type=int, help="hosts to wait for at the start (default: max-workers)")
    parser.add_argument("--discovery", required=True, help="command that prints one host per line")
    parser.add_argument(
        "--discovery-seconds", type=float, default=1.0, help="seconds between two calls of the discovery command"
    )
    parser.add_argument("--below-min-timeout", type=float, default=600.0, help="seconds to wait for enough hosts")
    parser.add_argument("command", nargs="+", help="command of every worker, after --")
    parsed = parser.parse_args(arguments)
    start = parsed.max_workers if parsed.start_workers is None else parsed.start_workers
    if not 1 <= parsed.min_workers <= start <= parsed.max_workers:
        parser.error("needs 1 <= min-workers <= start-workers <= max-workers")
    if shutil.which(parsed.command[0]) is None:
        parser.error(f"command {parsed.command[0]!r} was not found")
    return ElasticSettings(
        limits=ElasticLimits(parsed.min_workers, parsed.max_workers, start),
        discovery=tuple(shlex.split(parsed.discovery)),
        discovery_seconds=parsed.discovery_seconds,
        below_min_timeout=parsed.below_min_timeout,
        command=tuple(parsed.command),
    )
