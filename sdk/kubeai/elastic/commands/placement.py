"""The decision of kubeai-each-host: a pure function from what is known of each host to what is done next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Collection, Mapping, Sequence


@dataclass(frozen=True)
class Place:
    """The command on one host.

    Attributes:
        running: It runs.
        code: Exit code of its last end; None before the first one.
        failures: Ends with another code than 0 since the host came.
        due: When it may be started again after a failure, by the monotonic clock.
        ending: It was asked to end, as the host is no longer granted.
        away: Since its end, the host was excluded or not granted, so what returns is another machine.
    """

    running: bool = False
    code: int | None = None
    failures: int = 0
    due: float = 0.0
    ending: bool = False
    away: bool = False

    def started(self) -> Place:
        """Return the place with the command running."""
        return replace(self, running=True, away=False, failures=0 if self.away else self.failures)

    def ended(self, code: int, due: float) -> Place:
        """Return the place after an end with this code; `due` is when it may be started again."""
        if self.ending:
            return Place(code=code, away=True)
        return replace(self, running=False, code=code, failures=self.failures + (code != 0), due=due)


@dataclass(frozen=True)
class Plan:
    """What is done next.

    Attributes:
        start: Hosts on which the command is started now.
        end: Hosts on which it is asked to end, because they are no longer granted.
        places: The hosts that are still of interest.
        at: When to look again, if nothing happens before; None = not needed.
        code: The exit code, once everything has ended.
    """

    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)
    at: float | None = None
    code: int | None = None


def plan(
    places: Mapping[str, Place], granted: Sequence[str], excluded: Collection[str], restarts: int, now: float
) -> Plan:
    """Decide what to do.

    Args:
        places: What is known of each host.
        granted: The hosts of the job, the excluded ones among them.
        excluded: The hosts that will be reclaimed.
        restarts: How often a failed command is started again on the same machine.
        now: The monotonic clock, in seconds.
    """
    kept = _kept(places, granted, excluded)
    end = tuple(host for host, place in kept.items() if place.ending and not places[host].ending)
    # A command that ended well says that the job has. The others are about to end.
    if _has_succeeded(kept):
        waiting: dict[str, float] = {}
    else:
        waiting = {host: _due(kept[host]) for host in granted if _is_wanted(kept[host], host in excluded, restarts)}
    later = [due for due in waiting.values() if due > now]
    code = None if waiting or any(place.running for place in kept.values()) else _code(kept, restarts)
    start = tuple(host for host, due in waiting.items() if due <= now)
    return Plan(start, end, kept, min(later) if later else None, code)


def _kept(places: Mapping[str, Place], granted: Sequence[str], excluded: Collection[str]) -> dict[str, Place]:
    """Return all granted hosts and those whose command still runs."""
    kept = {
        host: place if host in granted else replace(place, ending=True)
        for host, place in places.items()
        if place.running or host in granted
    }
    for host in granted:
        place = kept.setdefault(host, Place())
        if host in excluded and place.code is not None and not place.running:
            kept[host] = replace(place, away=True)
    return kept


def _has_succeeded(places: Mapping[str, Place]) -> bool:
    return any(place.code == 0 and not place.away for place in places.values())


def _is_wanted(place: Place, excluded: bool, restarts: int) -> bool:  # noqa: FBT001 - a private predicate
    """Whether a command that does not run is to be started, now or later.

    It is started on an excluded host too, where it waits for a withdrawal, but only once: that machine may be gone.
    """
    if place.running:
        return False
    if place.code is None:
        return True
    return not excluded and (place.away or place.failures <= restarts)


def _due(place: Place) -> float:
    return 0.0 if place.away or place.code is None else place.due


def _code(places: Mapping[str, Place], restarts: int) -> int | None:
    """Return the exit code if commands have ended for good; None as long as there is only something to wait for."""
    if _has_succeeded(places):
        return 0
    failed = [place.code for place in places.values() if place.failures > restarts and not place.away]
    return failed[0] if failed else None
