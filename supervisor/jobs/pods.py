"""Actions on pods that all kinds share."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from servicekit.failpoints import failpoint
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from supervisor.cluster.annotations import DIRECTIVE
from supervisor.cluster.objects import Pod
from supervisor.domain.order import DirectiveKind
from supervisor.failpoints import At

_CONCURRENCY = 20
"""Concurrent writes: a job may have thousands of pods."""

_LAST_GRACE_SECONDS = 1
"""The grace period of a pod whose machine is gone in a moment anyway."""


async def delete(client: ResourceClient[Pod], pods: Collection[Pod]) -> None:
    """Deletes exactly these pods, and not later ones of the same names.

    Raises:
        ApiError: A pod could not be deleted.
    """
    for pod in pods:
        try:
            await client.delete_unconditionally(pod, _LAST_GRACE_SECONDS)
        except (NotFoundError, ConflictError):
            continue
        failpoint(At.POD_REMOVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDirective:
    """A directive for the processes of a pod that have no stream; docs/reference/wire.md has the form."""

    run: int
    generation: int
    kind: DirectiveKind
    reason: str

    def __str__(self) -> str:
        return f"{self.run} {self.generation} {self.kind} {self.reason}"


async def annotate(client: ResourceClient[Pod], pods: Collection[Pod], directive: PodDirective) -> str:
    """Sets a directive as an annotation of these pods; returns the first failure, empty if there is none.

    It does not raise: the annotation is a second path for processes without a stream.
    """
    text, turns, failures = str(directive), asyncio.Semaphore(_CONCURRENCY), list[str]()

    async def write(pod: Pod) -> None:
        async with turns:
            try:
                await client.merge(pod, {}, metadata={"annotations": {DIRECTIVE: text}})
            except (NotFoundError, ConflictError):
                return
            except ApiError as error:
                failures.append(f"{pod.key.name}: {error}")

    async with asyncio.TaskGroup() as group:
        for pod in pods:
            if pod.annotations.get(DIRECTIVE) != text:
                group.create_task(write(pod))
    return next(iter(failures), "")
