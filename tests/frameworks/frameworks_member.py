"""Tells a process of `frameworks_rounds.Rounds` what its test wants, and records what the process does."""

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubeai.elastic import regroup

_STARTING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RoundsMember:
    """Holds what a test tells this process by arguments, and reads what it tells later by files.

    Attributes:
        kind: What it trains.
        root: Where the files of all processes are.
        steps: How many steps.
        step_seconds: The shortest time for one.
        name: Of this process.
        host: The name of the first process of its host.
    """

    kind: str
    root: Path
    steps: int
    step_seconds: float
    name: str
    host: str

    @classmethod
    def from_arguments(cls) -> "RoundsMember":
        kind, root, steps, step_seconds, host = sys.argv[1:]
        local_rank = os.environ.get("LOCAL_RANK", "0")
        name = host if local_rank == "0" else host + local_rank
        return cls(kind, Path(root), int(steps), float(step_seconds), name, host)

    def is_told(self, what: str, *, once: bool = False) -> bool:
        """Return whether there is a file `what` for this process, which is then removed if it counts once."""
        told = self.root / f"{what}-{self.name}"
        found = told.exists()
        if found and once:
            told.unlink(missing_ok=True)
        return found

    def take_time(self) -> None:
        """Give a step the duration that the test wants, or a longer one while another process starts.

        So the training does not end before that process is there, however busy the machine is.
        """
        time.sleep(_STARTING_SECONDS if (self.root / "starting").exists() else self.step_seconds)

    def record(self, **fields: Any) -> None:
        """Append a line to the record of this process."""
        with (self.root / f"steps-{self.name}.jsonl").open("a", encoding="ascii") as lines:
            lines.write(json.dumps({"at": time.time(), **fields}) + "\n")

    def finish(self, parameters: dict[str, Any]) -> None:
        """Record all parameters, each exactly."""
        exact = {name: [each.hex() for each in value.flatten().tolist()] for name, value in parameters.items()}
        self.record(event="finished", parameters=exact)

    def pause_by_files(self) -> None:
        """Play the supervisor's part at an agreed step: all ranks pause at the step that the file `agreed` names."""
        gate = _FileGate(self)
        vars(regroup).update(should_regroup=gate.should_regroup, report_holding=gate.report_holding)
        self._tell_of_early_groups()

    def _tell_of_early_groups(self) -> None:
        """Say in files when this process is connected for a round, and record whether the round used it."""
        from kubeai.torch import early_group, group  # noqa: PLC0415 - only here is torch needed

        connect, take = early_group.EarlyGroup._connect, early_group.EarlyGroup.taken_for
        made_by_torch = vars(group)["made_by_torch"]

        def connecting(early: Any) -> None:
            connect(early)
            (self.root / f"early-{early.foretold.round.number}-{early.foretold.epoch}-{self.name}").touch()

        def taking(early: Any, entered: Any) -> Any:
            connected = take(early, entered)
            self.record(event="early group", round=entered.number, connected=connected is not None)
            return connected

        def making(connected: Any) -> Any:
            self.record(event="group", early=connected is not None)
            return made_by_torch(connected)

        setattr(early_group.EarlyGroup, "_connect", connecting)  # noqa: B010 - a method of a class
        setattr(early_group.EarlyGroup, "taken_for", taking)  # noqa: B010
        vars(group).update(made_by_torch=making)


def resources() -> dict[str, int]:
    """Return what this process has: descriptors, threads, those of Python among them, and bytes of resident memory."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = len(list(Path("/proc/self/task").iterdir()))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {"descriptors": descriptors, "threads": threads, "python": threading.active_count(), "resident": resident}


class _FileGate:
    """Says in a file at which step this process pauses."""

    def __init__(self, member: RoundsMember) -> None:
        self._member = member
        self._step = 0

    def should_regroup(self, step: int) -> bool:
        self._step = step
        try:
            return str(step) in (self._member.root / "agreed").read_text(encoding="ascii").split()
        except OSError:
            return False

    def report_holding(self) -> None:
        (self._member.root / f"holding-{self._step}-{self._member.name}").touch()
