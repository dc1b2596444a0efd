"""Runs processes with a wrong system clock and a right monotonic clock, by libfaketime from Debian."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.testkit.packages import PackageUnavailable, require

_LIBRARY = "*/faketime/libfaketimeMT.so.1"


def library() -> Path:
    """Return libfaketime's path; install it where it is missing and can be installed.

    Raises:
        PackageUnavailable: This machine has none.
    """
    found = _find()
    if found is None:
        require({"faketime": "faketime"})
        found = _find()
    if found is None:
        raise PackageUnavailable("faketime was installed and its library cannot be found")
    return found


def skew(preloaded: Path, seconds: float) -> dict[str, str]:
    """Variables of a process whose system clock is so many seconds ahead."""
    return {**_variables(preloaded), "FAKETIME": f"{seconds:+g}"}


@dataclass(frozen=True, slots=True)
class SteppedClock:
    """A system clock that can be stepped under a running process.

    Attributes:
        library: libfaketime.
        file: Holds the seconds by which the clock is ahead.
    """

    library: Path
    file: Path

    def step(self, seconds: float) -> None:
        """Sets by how much the clock is ahead from now on."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{seconds:+g}\n", encoding="ascii")
        new.replace(self.file)

    @property
    def variables(self) -> Mapping[str, str]:
        cached = {"FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_NO_CACHE": "1"}
        return {**_variables(self.library), **cached}


def _variables(preloaded: Path) -> dict[str, str]:
    # Timers and durations count by the monotonic clock, which no administrator and no NTP steps.
    return {"LD_PRELOAD": str(preloaded), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _find() -> Path | None:
    return next(Path("/usr/lib").glob(_LIBRARY), None)
