"""Runs a script that prints its losses as one process of a job, records them, and disturbs it as a test asks.

    FRAMEWORKS_RANK=0 FRAMEWORKS_PROCESSES=2 frameworks_printing.py SCRIPT ARGUMENT …

The script is unchanged: it prints a line with the loss in each step.
"""

import os
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TextIO

from tests.frameworks.frameworks_rank import disturb, losses_recorded

_LOSS = re.compile(r"^rank \d+ step \d+ loss (\S+)$", re.MULTILINE)


class _PrintedLosses:
    """Passes on what is printed, and records the losses in it."""

    def __init__(self, out: TextIO, record: Callable[[float], None]) -> None:
        self._out = out
        self._record = record

    def write(self, text: str) -> int:
        written = self._out.write(text)
        for loss in _LOSS.findall(text):
            self._record(float.fromhex(loss))
        return written

    def flush(self) -> None:
        self._out.flush()


if __name__ == "__main__":
    _rank = int(os.environ["FRAMEWORKS_RANK"])
    disturb(_rank, int(os.environ["FRAMEWORKS_PROCESSES"]))
    sys.argv = sys.argv[1:]
    with losses_recorded(_rank) as _record, redirect_stdout(_PrintedLosses(sys.stdout, _record)):
        runpy.run_path(sys.argv[0], run_name="__main__")
