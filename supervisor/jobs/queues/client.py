"""A client for jobs that a queue manages."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.objects import Object

R = TypeVar("R", bound=Object)

_SUSPEND = "suspend"


class QueuedJobClient(ResourceClient[R]):
    """Leaves a job's field `suspend` out of every write: the queue owns it, and takes back what others write there."""

    async def merge(
        self, read: R, content: Mapping[str, object], part: str = "", *, metadata: Mapping[str, object] | None = None
    ) -> R:
        return await super().merge(read, _without_suspend(content), part, metadata=metadata)

    async def patch(self, read: R, operations: Sequence[Mapping[str, object]]) -> R:
        kept = [each for each in operations if not str(each.get("path")).endswith(f"/{_SUSPEND}")]
        return await super().patch(read, kept)


def _without_suspend(content: Mapping[str, object]) -> Mapping[str, object]:
    return {
        name: _without_suspend(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if name != _SUSPEND
    }
