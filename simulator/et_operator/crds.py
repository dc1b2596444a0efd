"""Our own CRDs of TrainingJob, ScaleIn and ScaleOut, which allow whatever the real ones allow."""

import asyncio
import contextlib

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from simulator.et_operator.objects import SCALE_INS, SCALE_OUTS, TRAINING_JOBS

_DEFINITIONS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
)


_POLL_SECONDS = 0.1


class _Definition(msgspec.Struct, frozen=True):
    metadata: Metadata


async def create_crds(server: ApiServer) -> None:
    """Create missing CRDs and return once they are served, which takes a moment.

    Raises:
        ApiError: One could not be created.
    """
    definitions = ResourceClient(server, _DEFINITIONS, lambda data: msgspec.json.decode(data, type=_Definition))
    for kind in (TRAINING_JOBS, SCALE_INS, SCALE_OUTS):
        with contextlib.suppress(ConflictError):
            await definitions.create(ObjectKey("", f"{kind.plural}.{kind.group}"), {"spec": _spec(kind)})
    for kind in (TRAINING_JOBS, SCALE_INS, SCALE_OUTS):
        await _until_served(ResourceClient(server, kind, lambda data: msgspec.json.decode(data, type=_Definition)))


async def _until_served(client: ResourceClient[_Definition]) -> None:
    while True:
        with contextlib.suppress(NotFoundError, ApiUnavailableError):
            await client.list()
            return
        await asyncio.sleep(_POLL_SECONDS)


def _spec(kind: Resource) -> dict[str, object]:
    whatever = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": whatever, "status": whatever}}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}],
    }
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
    }
    return {"group": kind.group, "scope": "Namespaced", "names": names, "versions": [version]}
