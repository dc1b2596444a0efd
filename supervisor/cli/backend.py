"""Where to ask, whichever way that is reached."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from supervisor.cli.status import Status
from supervisor.domain.notice import SubjectKind


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill is about; `name` of a pod is `namespace/name`."""

    kind: SubjectKind
    name: str


class Backend(Protocol):
    """One supervisor, or one cluster. Everything here raises a `CliError` where it cannot be done."""

    async def status(self) -> Status:
        """What is so now."""

    async def subject(self, text: str) -> Subject:
        """What somebody means by `node/NAME`, `pod/NAME` or `NAME`."""

    async def begin(self, subject: Subject, lead: float, by: str) -> None:
        """Begins a drill, or moves the deadline of the one there is; returns once a supervisor has taken it in."""

    async def end(self, subject: Subject | None) -> list[Subject]:
        """Ends a drill before its time, or all of them; which there were."""


Backends = AbstractAsyncContextManager[Backend]
