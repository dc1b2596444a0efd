"""Rounds of a rendezvous, and the supervisor's lines about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class MalformedLine(ValueError):  # noqa: N818 - the name describes the line
    """A line of type `rendezvous`, or a round in it, lacks a required field. It has no effect."""


@dataclass(frozen=True)
class StoreAddress:
    """Where the members of a round reach its TCPStore."""

    address: str
    port: int


@dataclass(frozen=True)
class RoundMember:
    """One elastic agent of a round. `member` is its random id, `address` its `HOST:PORT` for the other members."""

    member: str
    host: str
    address: str
    processes: int


@dataclass(frozen=True)
class Round:
    """Who trains together. Rounds are numbered from 1 in ascending order; member 0 holds the store.

    In an `in_process` round the processes of the round before go on without a restart. `store` is None until member 0
    has opened it.
    """

    number: int
    members: tuple[RoundMember, ...]
    in_process: bool = False
    store: StoreAddress | None = None

    @property
    def world_size(self) -> int:
        """The number of worker processes."""
        return sum(member.processes for member in self.members)

    @property
    def is_uniform(self) -> bool:
        """Whether all members have the same number of processes."""
        return len({member.processes for member in self.members}) == 1

    def index_of(self, member: str) -> int | None:
        """Return the index of a member id, None if it is not part of the round."""
        return next((index for index, one in enumerate(self.members) if one.member == member), None)

    def base_rank(self, index: int) -> int:
        """Return the rank of the first process of the member at `index`."""
        return sum(member.processes for member in self.members[:index])

    def fields(self) -> dict[str, Any]:
        """Return the round as JSON, as it is in a line."""
        return {
            "number": self.number,
            "in_process": self.in_process,
            "members": [vars(member) for member in self.members],
            "store": None if self.store is None else vars(self.store),
        }


@dataclass(frozen=True)
class Line:
    """A validated line of type `rendezvous`.

    `wanted` is the number of the newest round, `round` the newest one that this member is part of. `starts`: it is not
    yet part of the newest round, but starts its workers, which join later. `release`: exit with this code.
    """

    run: int
    wanted: int
    round: Round | None = None
    starts: bool = False
    release: int | None = None
    reason: str = ""


def parse_line(message: Mapping[str, Any]) -> Line:
    """Return a line of type `rendezvous`. Raises MalformedLine."""
    try:
        found, release = message.get("round"), message.get("release")
        return Line(
            _int(message["run"], 0),
            _int(message["wanted"], 0),
            None if found is None else parse_round(found),
            starts=bool(message.get("starts")),
            release=None if release is None else _int(release, 0),
            reason=str(message.get("reason", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedLine(f"{type(error).__name__}: {error}") from error


def parse_round(fields: Mapping[str, Any]) -> Round:
    """Return a round from its JSON. Raises MalformedLine."""
    try:
        store = fields.get("store")
        members = tuple(_member(one) for one in fields["members"])
        _int(len(members), 1)
        return Round(
            _int(fields["number"], 1),
            members,
            bool(fields.get("in_process")),
            None if store is None else StoreAddress(str(store["address"]), _int(store["port"], 1)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedLine(f"{type(error).__name__}: {error}") from error


def _member(fields: Mapping[str, Any]) -> RoundMember:
    processes = _int(fields["processes"], 1)
    return RoundMember(str(fields["member"]), str(fields["host"]), str(fields["address"]), processes)


def _int(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is no integer from {least} on")
    return value
