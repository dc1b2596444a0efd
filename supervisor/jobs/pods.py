"""Acts on the pods of a job, in the same way for every kind."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from servicekit.failpoints import failpoint
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from supervisor.cluster.objects import Pod
from supervisor.failpoints import At

_CONCURRENCY = 20
"""Concurrent writes: a job may have thousands of pods."""

_LAST_GRACE_SECONDS = 1
"""The grace period of a pod whose machine is gone in a moment anyway."""

STOP_PORT = 9009
"""The port on which processes with the first SDK serve `GET /stop`."""

_STOP_TIMEOUT_SECONDS = 2.0
_STOP_CONCURRENCY = 50
_STOP_REQUEST = b"GET /stop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def delete_pods(client: ResourceClient[Pod], pods: Collection[Pod]) -> None:
    """Deletes exactly these pods, and no later pod of the same name.

    Raises:
        ApiError: A pod could not be deleted.
    """
    for pod in pods:
        try:
            await client.delete_unconditionally(pod, _LAST_GRACE_SECONDS)
        except (NotFoundError, ConflictError):
            continue
        failpoint(At.POD_REMOVED)


async def write_metadata(
    client: ResourceClient[Pod], changes: Collection[tuple[Pod, Mapping[str, object]]]
) -> list[tuple[Pod, ApiError]]:
    """Merges metadata into each of these pods; returns those that could not be written, each with the error.

    A pod that is gone, or that was replaced by one that is listed, is none of these.
    """
    turns, failures = asyncio.Semaphore(_CONCURRENCY), list[tuple[Pod, ApiError]]()

    async def write(pod: Pod, metadata: Mapping[str, object]) -> None:
        async with turns:
            try:
                await client.merge(pod, {}, metadata=metadata)
            except (NotFoundError, ConflictError):
                return
            except ApiError as error:
                failures.append((pod, error))

    async with asyncio.TaskGroup() as group:
        for pod, metadata in changes:
            group.create_task(write(pod, metadata))
    return failures


async def request_stop(addresses: Collection[str], port: int = STOP_PORT) -> int:
    """Asks the process with the first SDK at each address to stop at its next `check_alive()`, as it has no stream.

    Returns how many accepted. An address without such a process is not a failure. The answer is `ok` without a status
    line.
    """
    turns = asyncio.Semaphore(_STOP_CONCURRENCY)

    async def request(address: str) -> bool:
        async with turns:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                    reader, writer = await asyncio.open_connection(address, port)
                    try:
                        writer.write(_STOP_REQUEST)
                        return b"ok" in await reader.read(1024)
                    finally:
                        writer.transport.abort()
        return False

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(request(address)) for address in addresses]
    return sum(task.result() for task in tasks)
