"""The clock of a process. Its instants do not jump when the system's clock is set."""

import time
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class BootTime:
    """The instant of the machine's boot by a process's clock.

    Attributes:
        boot: The id of the boot; empty where the machine does not tell.
        at: Unix seconds.
    """

    boot: str
    at: float


class Clock:
    """Unix seconds that never jump within a process.

    The system's clock is read once, at construction, and carried forward by the time since the machine's boot: a step
    of the system's clock (NTP, an administrator) moves no deadline of a running process. Time during which the machine
    was suspended counts.
    """

    __slots__ = ("_booted_at",)

    def __init__(self) -> None:
        self._booted_at = self.wall() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> float:
        """Returns Unix seconds."""
        return self._booted_at + time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Returns Unix seconds of the system's clock, with its steps, to compare with what others have just read."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary point; only differences mean anything."""
        return time.monotonic()

    @property
    def boot_time(self) -> BootTime:
        """Returns the boot from which `now` counts."""
        try:
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            boot = ""
        return BootTime(boot, self._booted_at)

    def move(self, seconds: float) -> None:
        """Shifts `now`; to be called before anything depends on it."""
        self._booted_at += seconds
