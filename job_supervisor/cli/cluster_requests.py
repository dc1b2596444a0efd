"""What a person asks of a cluster's job or node: annotations of its object, written with that person's permissions."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from job_supervisor.cli.errors import UsageError
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.annotations import DRAIN, DRAIN_AT, DRAIN_CORDONED, STOP, SUSPEND
from supervisor.cluster.objects import NODES
from supervisor.domain.ids import JobName, bare_name, kind_of, namespace
from supervisor.domain.job import RequestKind

_ANNOTATIONS = {RequestKind.SUSPEND: SUSPEND, RequestKind.STOP: STOP}


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


class _NodeMetadata(Metadata, frozen=True, rename="camel"):
    annotations: Mapping[str, str] | None = None


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata
    spec: _NodeSpec = _NodeSpec()


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


async def drain_node(server: ApiServer, name: str, until: datetime, text: str) -> None:
    """Annotates and cordons a node.

    Raises:
        ApiError: See `ResourceClient.merge`.
    """
    node = await _nodes(server).get(ObjectKey("", name))
    annotations = {DRAIN: text, DRAIN_AT: until.isoformat(timespec="seconds")}
    if not node.spec.unschedulable:
        annotations[DRAIN_CORDONED] = "true"
    await _nodes(server).merge(node, {"spec": {"unschedulable": True}}, metadata={"annotations": annotations})


async def undrain_node(server: ApiServer, name: str) -> None:
    """Removes the annotations of a drain, and the cordon if it came with the drain.

    Raises:
        ApiError: See `ResourceClient.merge`.
    """
    node = await _nodes(server).get(ObjectKey("", name))
    cordoned_here = DRAIN_CORDONED in (node.metadata.annotations or {})
    spec = {"spec": {"unschedulable": None}} if cordoned_here else {}
    annotations = dict.fromkeys((DRAIN, DRAIN_AT, DRAIN_CORDONED))
    await _nodes(server).merge(node, spec, metadata={"annotations": annotations})


def _nodes(server: ApiServer) -> ResourceClient[_Node]:
    return ResourceClient(server, NODES, lambda data: msgspec.json.decode(data, type=_Node))


def _changes(kind: RequestKind | None, text: str) -> Mapping[str, str | None]:
    if kind is None:
        return dict.fromkeys(_ANNOTATIONS.values())
    return {_ANNOTATIONS[kind]: text}
