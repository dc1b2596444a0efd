"""Runs as a real training process and calls `check_alive()` every millisecond."""

import sys
import time

import kubeai.elastic
import msgspec

from benchmarks.clients.jsonlines import send

_POLL_SECONDS = 0.001
_STOPPED = 3


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The supervisor has sent a directive."""


class FlagLowered(msgspec.Struct, frozen=True, tag=True):
    """`check_alive()` returned False for the first time, at `at` (CLOCK_MONOTONIC)."""

    at: float


def main() -> int:
    """Run until the flag is lowered, then exit like a training script, through the SDK's exit hook."""
    kubeai.elastic.init()
    while kubeai.elastic.directive().generation == 0:
        time.sleep(_POLL_SECONDS)
    send(Connected())
    while kubeai.elastic.check_alive():
        time.sleep(_POLL_SECONDS)
    send(FlagLowered(time.monotonic()))
    return _STOPPED


if __name__ == "__main__":
    sys.exit(main())
