"""Who this node is: its name from the settings, its uid from the settings or from the first source that knows it."""

import asyncio

import structlog

from node_agent.notices import Subject, SubjectKind
from node_agent.sources import NodeIdentity


class ThisNode:
    """The subject of every notice about this node, once its uid is known.

    Args:
        name: The node's name.
        uid: Empty: from the first source that knows it.
    """

    def __init__(self, name: str, uid: str) -> None:
        self.name = name
        self._known = asyncio.Event()
        self._subject: Subject | None = None
        if uid:
            self._settle(uid)

    @property
    def subject(self) -> Subject | None:
        """None until the uid is known."""
        return self._subject

    def resolve(self, identity: NodeIdentity) -> None:
        """A source knows the machine; the uid that was there first stays."""
        structlog.get_logger().info(
            "node.identified",
            uid=identity.uid,
            region=identity.region,
            zone=identity.zone,
            instance_type=identity.instance_type,
        )
        if self._subject is None:
            self._settle(identity.uid)

    async def wait_subject(self, within: float) -> Subject | None:
        """Wait for the uid, at most so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self._known.wait()
        except TimeoutError:
            return None
        return self._subject

    def _settle(self, uid: str) -> None:
        self._subject = Subject(SubjectKind.NODE, self.name, uid)
        self._known.set()
