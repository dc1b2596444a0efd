"""The interface of all sources of announcements. Each source is a module of this package."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from node_agent.notices import NoticeClass, SourceName


class SourceUnavailable(Exception):  # noqa: N818 - it names what is so; an unknown is no error of the agent's
    """The source gave no usable answer, so its state is unknown. The text is the reason, for people."""


class ServiceBusy(SourceUnavailable):
    """A service is there and refuses to answer now: it may be any cloud's."""


class MetadataMode(enum.StrEnum):
    """Whether requests to the metadata service carry a session token."""

    # Without a token until a request is refused for the lack of one, with tokens from then on.
    AUTO = "auto"
    PLAIN = "plain"
    HARDENED = "hardened"


@dataclass(frozen=True, slots=True)
class Clear:
    """Nothing is announced."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """The node will be reclaimed.

    Attributes:
        announced: The instant that the source named; None where it names none.
        seconds_left: Seconds from this answer until then. A source that names no instant gives its usual lead, which
            counts from the first of these answers; None: it has none, and the supervisor's default stands in.
        message: For people; it must not have anything that changes from poll to poll.
        cancellable: Whether the cloud can still call the reclaim off.
    """

    announced: datetime | None
    seconds_left: float | None
    message: str
    notice_class: NoticeClass = NoticeClass.SUDDEN
    cancellable: bool = False


Answer = Clear | Noticed


class PriceClass(enum.Enum):
    """How the machine is paid for. SPOT: the cloud can reclaim it."""

    UNKNOWN = enum.auto()
    SPOT = enum.auto()
    ON_DEMAND = enum.auto()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The machine under this node, as its cloud or the node's labels describe it. An unknown field is empty.

    Attributes:
        uid: The machine's id; empty in a description by labels.
        cloud: Named as its source.
        spot_strategy: The cloud's own word for how the price is set.
    """

    uid: str
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    cloud: str = ""
    price_class: PriceClass = PriceClass.UNKNOWN
    spot_strategy: str = ""


class Source(Protocol):
    """A source of announcements about this node.

    The caller cancels a call that takes too long, and never makes two calls at once.
    """

    @property
    def name(self) -> SourceName:
        """Part of every notice's id."""

    async def identify(self) -> NodeIdentity | None:
        """Returns this node's identity; None where this source never knows it.

        Raises:
            SourceUnavailable: It is not known now; ask again.
        """

    async def poll(self) -> Answer:
        """Asks once for announcements.

        Raises:
            SourceUnavailable: There was no usable answer.
        """

    async def close(self) -> None:
        """Releases connections and files."""


class CloudSource(Source, Protocol):
    """A source that can tell whether the metadata service that answers is its own cloud's."""

    async def recognize(self) -> bool:
        """Returns whether the answer has the signature of this cloud.

        Raises:
            SourceUnavailable: There was no usable answer.
        """
