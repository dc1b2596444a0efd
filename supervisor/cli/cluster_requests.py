"""What a person asks of a cluster's job or node: annotations of its object, written with that person's permissions."""

from collections.abc import Mapping

import msgspec

from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cli.errors import UsageError
from supervisor.cluster.annotations import STOP, SUSPEND
from supervisor.domain.ids import JobName, bare_name, kind_of, namespace
from supervisor.domain.job import RequestKind

_ANNOTATIONS = {RequestKind.SUSPEND: SUSPEND, RequestKind.STOP: STOP}


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


async def ask_job(server: ApiServer, job: JobName, kind: RequestKind | None, by: str, reason: str) -> None:
    """Annotates the object of a job; None removes every request.

    Raises:
        UsageError: No object on the cluster stands for the job.
        ApiError: See `ResourceClient.merge`.
    """
    # Imported here: the kinds' code is not needed for anything else.
    from supervisor.jobs.registry import resources  # noqa: PLC0415

    resource = resources().get(kind_of(job))
    if resource is None:
        raise UsageError(
            f"{job} was started by kubeai-run: ask the supervisor itself, with --address and --token-file."
        )
    client = ResourceClient(server, resource, lambda data: msgspec.json.decode(data, type=_Object))
    found = await client.get(ObjectKey(namespace(job), bare_name(job)))
    await client.merge(found, {}, metadata={"annotations": _changes(kind, f"{by}: {reason}")})


def _changes(kind: RequestKind | None, text: str) -> Mapping[str, str | None]:
    if kind is None:
        return dict.fromkeys(_ANNOTATIONS.values())
    return {_ANNOTATIONS[kind]: text}
