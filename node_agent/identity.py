"""This node's name, uid and machine. The uid comes from the settings, or from the first source that knows it."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import fields, replace

import structlog

from node_agent.notices import Subject, SubjectKind
from node_agent.sources import NodeIdentity, PriceClass


class ThisNode:
    """The subject of every notice about this node, once its uid is known.

    Args:
        name: The node's name.
        uid: Empty: the first source that knows it calls `resolve`.
        on_described: Called after each description of the machine.
    """

    def __init__(self, name: str, uid: str, on_described: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._on_described = on_described
        self._known = asyncio.Event()
        self._described = asyncio.Event()
        self._subject: Subject | None = None
        self._machine = NodeIdentity("")
        if uid:
            self._set_uid(uid)

    @property
    def subject(self) -> Subject | None:
        """None until the uid is known."""
        return self._subject

    @property
    def machine(self) -> NodeIdentity:
        """The machine as sources and labels have described it so far; its uid is not the subject's."""
        return self._machine

    def describe(self, machine: NodeIdentity) -> None:
        """Takes a description of the machine. Each fact that came first stays, and a second cloud's is ignored."""
        if not (self._machine.cloud and machine.cloud and machine.cloud != self._machine.cloud):
            self._machine = _merged(self._machine, machine)
        self._described.set()
        self._on_described()

    def resolve(self, identity: NodeIdentity) -> None:
        """Takes a source's identity of the machine. The uid that came first stays."""
        self.describe(identity)
        structlog.get_logger().info(
            "node.identified",
            uid=identity.uid,
            region=identity.region,
            zone=identity.zone,
            instance_type=identity.instance_type,
            cloud=identity.cloud,
            price_class=identity.price_class.name.lower(),
        )
        if self._subject is None:
            self._set_uid(identity.uid)

    async def wait_subject(self, within: float) -> Subject | None:
        """Waits for the uid, at most that many seconds."""
        await _wait(self._known, within)
        return self._subject

    async def wait_described(self, within: float) -> None:
        """Waits for the first description of the machine, at most that many seconds."""
        await _wait(self._described, within)

    def _set_uid(self, uid: str) -> None:
        self._subject = Subject(SubjectKind.NODE, self.name, uid)
        self._known.set()


def _merged(known: NodeIdentity, told: NodeIdentity) -> NodeIdentity:
    names = [field.name for field in fields(NodeIdentity)]
    unknown = [name for name in names if getattr(known, name) in {"", PriceClass.UNKNOWN}]
    return replace(known, **{name: getattr(told, name) for name in unknown})


async def _wait(event: asyncio.Event, within: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
