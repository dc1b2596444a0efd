"""The interface to a supervisor or a cluster, whichever the command connects to."""

from collections.abc import Container
from typing import Protocol

import msgspec

from job_supervisor.cli.history import Past
from job_supervisor.cli.status import Status
from servicekit.kubernetes.client import Resource
from supervisor.domain.ids import JobName
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import SubjectKind


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a drill; `name` of a pod is `namespace/name`."""

    kind: SubjectKind
    name: str


class Backend(Protocol):
    """A supervisor or a cluster. Every method raises a `CliError` if it fails."""

    async def status(self) -> Status:
        """Reads the present status."""

    async def manifest(self, resource: Resource, namespace: str, name: str) -> object | None:
        """The object of a job as the cluster has it, without a namespace that of the context; None if none is shown."""

    async def labelled(self, selector: str) -> Container[JobName]:
        """The names of the jobs whose objects have labels that match."""

    async def past(self, status: Status, job: JobName | None) -> Past:
        """What is known of the past beside the status; adds to its `unseen` what cannot be read."""

    async def subject(self, text: str) -> Subject:
        """Resolves `node/NAME`, `pod/NAME` or `NAME`."""

    async def begin(self, subject: Subject, lead: float, by: str) -> None:
        """Starts a drill or moves the deadline of an existing one; returns once a supervisor has accepted it."""

    async def ask(self, job: JobName, kind: RequestKind | None, by: str, reason: str) -> None:
        """Asks something of a job, or with None takes it back; returns once a supervisor knows of it."""

    async def drain(self, node: Subject, lead: float, by: str, reason: str) -> None:
        """Drains a node, or changes by when and why; returns once a supervisor has accepted it."""

    async def undrain(self, node: Subject) -> None:
        """Ends the drain of a node; that there is none is not an error."""

    async def end(self, subject: Subject | None) -> list[Subject]:
        """Ends the drill on a subject early, or all drills; returns the subjects whose drill ended."""
