"""What `dev` says on the terminal: a sentence a line, with the seconds since its start."""

import sys
import time

from job_supervisor.cli.text import printable
from supervisor.observability.views import JobView

_started = time.monotonic()


def say(text: str) -> None:
    """Prints a sentence."""
    seconds = f"{time.monotonic() - _started:5.1f} s  "
    first, *others = text.splitlines()
    sys.stdout.write("".join(printable(line) + "\n" for line in (seconds + first, *others)))
    sys.stdout.flush()


class JobNarrator:
    """Says each new phase and reason of a job once."""

    def __init__(self) -> None:
        self._said = ("", "")

    def follow(self, job: JobView) -> None:
        """Says what is new."""
        now = (job.phase, job.reason)
        if now != self._said:
            self._said = now
            say(f"The job is {job.phase}: {job.reason}")
