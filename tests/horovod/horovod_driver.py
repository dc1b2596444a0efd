"""`horovodrun`, also of an installation without a compiled core; same arguments, run by the Python that has Horovod.

All that is decided, started, noticed and blacklisted is the real elastic driver's doing; what it logs about
blacklisting is written to the event log as well.
"""

import logging
import os
import re

from simulator.events import EventLog, JobEventKind

# Horovod's own words, at the one place where it blacklists a host.
_BLACKLISTING = re.compile(r"blacklist failing host: (\S+)")


class _Record(logging.Handler):
    """Writes an event for each host that the driver says it blacklists."""

    def __init__(self, run: int, events: EventLog) -> None:
        super().__init__()
        self._run = run
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        if (found := _BLACKLISTING.search(record.getMessage())) is not None:
            self._events.write(JobEventKind.HOST_BLACKLISTED, run=self._run, host=found[1])


def _main() -> None:
    # Here, because Horovod starts each of its helpers by importing this file again.
    from horovod.runner import launch  # type: ignore[import-not-found] # noqa: PLC0415  # It has its own environment.

    with EventLog.from_environment("launcher") as events:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger().addHandler(_Record(int(os.environ.get("KUBEAI_RUN", "1")), events))
        if os.environ.get("HOROVOD_COLLECTIVES") != "gloo":
            # It asks whether the workers' core was built with gloo; our workers do without that core.
            launch.gloo_built = lambda **_: True
        launch.run_commandline()


if __name__ == "__main__":
    _main()
