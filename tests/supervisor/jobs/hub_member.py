"""A job's object in a member of a hub that compares it with its own after every write, as Karmada does."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jsonpatch
import msgspec

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.ids import cluster_job
from supervisor.jobs.kind import AnyKind, ClusterContext, JobState, KindContext

NAME = "bert"


class HubMember:
    """Plays the client of a kind's jobs for the one job of a hub.

    Attributes:
        taken_back: After each write that the hub would undo, the job as it was written, and as the hub would have it.
        writes: The number of requests that have changed the object.
    """

    def __init__(self, kind: AnyKind, spec: Mapping[str, Any], annotations: Mapping[str, str]) -> None:
        self.kind = kind
        self.hub_spec = copy.deepcopy(dict(spec))
        metadata = {"name": NAME, "namespace": "team", "uid": "job-uid", "resourceVersion": "7"}
        labels = {"karmada.io/managed": "true"}
        self.object: dict[str, Any] = {
            "metadata": {**metadata, "labels": labels, "annotations": dict(annotations)},
            "spec": copy.deepcopy(dict(spec)),
            "status": {},
        }
        self.taken_back: list[Any] = []
        self.writes = 0
        self.read = self._decoded(self.object)

    @property
    def annotations(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.object["metadata"]["annotations"])

    @property
    def state(self) -> JobState[Any]:
        """The job without pods, whose controller says that it is suspended where it is."""
        says = [{"type": "Suspended", "status": "True"}] if self.read.suspended else []
        if not self.kind.hub.phase:
            self.object["status"]["conditions"] = says
        self.read = self._decoded(self.object)
        return JobState.of(self.kind, cluster_job("team", self.kind.name, NAME), self.read, [])

    def actions(self, *, suspends: bool = True) -> Any:
        cluster = ClusterContext(
            server=cast("Any", None),
            pods=cast("Any", None),
            snapshot=cast("Any", None),
            may_act=lambda: True,
            on_change=lambda: None,
            clock=Clock(),
            bulkhead=Bulkhead(Clock()),
        )
        return self.kind.actions(
            KindContext(
                cluster=cluster,
                client=cast("Any", self),
                wrote=lambda _: None,
                state=lambda _: self.state,
                namesakes=lambda _: False,
                suspends=suspends,
            )
        )

    async def merge(
        self, _read: Any, content: Mapping[str, Any], part: str = "", *, metadata: Mapping[str, Any] | None = None
    ) -> Any:
        """Plays `ResourceClient.merge`."""
        del part
        return self._wrote(_merged(self.object, {**content, "metadata": metadata or {}}))

    async def patch(self, _read: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
        """Plays `ResourceClient.patch`."""
        return self._wrote(jsonpatch.apply_patch(self.object, list(operations)))

    def _wrote(self, changed: dict[str, Any]) -> Any:
        self.writes += 1
        self.object = changed
        # The hub wants its own spec, in which it leaves the fields that its customization retains.
        wanted = copy.deepcopy(self.hub_spec)
        for field in self.kind.hub.written:
            if field.mark in self.annotations:
                _keep(wanted, changed["spec"], field.path, field.only)
        self.read, desired = self._decoded(changed), self._decoded({**changed, "spec": wanted})
        if desired != self.read:  # An absent field and its default are the same.
            self.taken_back.append((self.read, desired))
        assert not self.read.taken_back, "a mark without its suspension is how a job looks whose hub has undone it"
        return self.read

    def _decoded(self, manifest: Mapping[str, Any]) -> Any:
        return self.kind.decode(msgspec.json.encode(manifest))


def _keep(wanted: Any, seen: Any, path: Sequence[str], only: object) -> None:
    name, *further = path
    if name.startswith("["):
        key = name.strip("[]")
        for to in wanted:
            for each in seen:
                if to[key] == each[key]:
                    _keep(to, each, further, only)
    elif further:
        _keep(wanted.setdefault(name, {}), seen.get(name, {}), further, only)
    elif only is None and name not in seen:
        wanted.pop(name, None)
    elif only is None or seen.get(name) == only:
        wanted[name] = seen[name]


def _merged(value: Any, changes: Any) -> Any:
    """The value after an RFC 7396 merge patch."""
    if not isinstance(changes, Mapping):
        return changes
    merged = dict(value) if isinstance(value, Mapping) else {}
    for name, change in changes.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), change)
    return merged
