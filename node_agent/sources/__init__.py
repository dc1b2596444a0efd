"""Where announcements come from. Each source is one module here; this is what they have in common."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from node_agent.notices import SourceName


class SourceUnavailable(Exception):  # noqa: N818 - it names what is so; an unknown is no error of the agent's
    """The source gave no usable answer: the state is unknown. The text is the reason, for people."""


@dataclass(frozen=True, slots=True)
class Clear:
    """The source says that nothing is announced.

    Attributes:
        warning: What it warns of all the same, for people: no notice, and no job is touched for it.
    """

    warning: str = ""


@dataclass(frozen=True, slots=True)
class Noticed:
    """The source says that the node will be reclaimed.

    Attributes:
        announced: The instant that the source named; None where it names none.
        seconds_left: Seconds from this answer until then. A source that names no instant gives its usual lead, which
            counts from the first of these answers; None: it has none, and the supervisor's default stands in.
        message: For people; free of anything that changes from poll to poll.
    """

    announced: datetime | None
    seconds_left: float | None
    message: str


Answer = Clear | Noticed


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The machine under this node, as its cloud knows it. What a cloud does not tell is empty."""

    uid: str
    region: str = ""
    zone: str = ""
    instance_type: str = ""


class Source(Protocol):
    """One place that announces reclaims of this node.

    The caller bounds each call in time by cancelling it, and never makes two at once.
    """

    @property
    def name(self) -> SourceName:
        """Part of every notice's id."""

    async def identify(self) -> NodeIdentity | None:
        """Who this node is; None where this source never knows.

        Raises:
            SourceUnavailable: Not known now; ask again.
        """

    async def poll(self) -> Answer:
        """Ask once.

        Raises:
            SourceUnavailable: No usable answer.
        """

    async def close(self) -> None:
        """Give back what the source holds open."""
