"""The alternative without a supervisor: a loop that polls the metadata every 2 s and sends SIGTERM to the training.

`poll URL PID` is the loop, `train` is the training process, which records the time of the signal and continues.
"""

import os
import signal
import sys
import time
import urllib.error
import urllib.request

import msgspec

from benchmarks.clients.jsonlines import send

POLL_SECONDS = 2.0
_TIMEOUT_SECONDS = 1.0


class BaselineTraining(msgspec.Struct, frozen=True, tag=True):
    """The signal handler is installed."""


class BaselineSignalled(msgspec.Struct, frozen=True, tag=True):
    """SIGTERM was handled at `at` (CLOCK_MONOTONIC)."""

    at: float


def main(arguments: list[str]) -> None:
    """Run one of the two until it is killed."""
    match arguments:
        case ["poll", url, pid]:
            _poll(url, int(pid))
        case _:
            _train()


def _poll(url: str, pid: int) -> None:
    was_noticed = False
    while True:
        noticed = _noticed(url)
        if noticed and not was_noticed:
            os.kill(pid, signal.SIGTERM)
        was_noticed = noticed
        time.sleep(POLL_SECONDS)


def _noticed(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - the harness's own loopback server
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def _train() -> None:
    signal.signal(signal.SIGTERM, lambda *_: send(BaselineSignalled(time.monotonic())))
    send(BaselineTraining())
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
