"""Runs the supervisor's command without its record: no entry is made, and nothing is written into a database."""

import sys
from unittest.mock import patch

from supervisor.__main__ import main
from supervisor.observability.journal import Change
from supervisor.observability.record.recorder import Recorder

_FOREVER = 1e6
"""Seconds."""


def _ignore(_recorder: Recorder, _change: Change) -> None:
    """Takes the place of `Recorder.on_change`."""


async def _idle(_recorder: Recorder) -> float:
    """Takes the place of `Recorder.once`."""
    return _FOREVER


if __name__ == "__main__":
    with patch.multiple(Recorder, on_change=_ignore, once=_idle):
        sys.exit(main())
