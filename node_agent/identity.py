"""This node's name and uid. The uid comes from the settings, or from the first source that knows it."""

import asyncio

import structlog

from node_agent.notices import Subject, SubjectKind
from node_agent.sources import NodeIdentity


class ThisNode:
    """The subject of every notice about this node, once its uid is known.

    Args:
        name: The node's name.
        uid: Empty: the first source that knows it calls `resolve`.
    """

    def __init__(self, name: str, uid: str) -> None:
        self.name = name
        self._known = asyncio.Event()
        self._subject: Subject | None = None
        if uid:
            self._set_uid(uid)

    @property
    def subject(self) -> Subject | None:
        """None until the uid is known."""
        return self._subject

    def resolve(self, identity: NodeIdentity) -> None:
        """Takes a source's identity of the machine. The uid that came first stays."""
        structlog.get_logger().info(
            "node.identified",
            uid=identity.uid,
            region=identity.region,
            zone=identity.zone,
            instance_type=identity.instance_type,
        )
        if self._subject is None:
            self._set_uid(identity.uid)

    async def wait_subject(self, within: float) -> Subject | None:
        """Waits for the uid, at most that many seconds."""
        try:
            async with asyncio.timeout(within):
                await self._known.wait()
        except TimeoutError:
            return None
        return self._subject

    def _set_uid(self, uid: str) -> None:
        self._subject = Subject(SubjectKind.NODE, self.name, uid)
        self._known.set()
