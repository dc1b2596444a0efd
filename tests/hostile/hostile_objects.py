"""Objects of a cluster as tenants may write them: honest ones of every kind, and extreme values in each place."""

import copy
import json
import random
import resource
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import strategies as st

from supervisor.cluster import annotations as names
from supervisor.domain.notice import LEAD_ANNOTATION
from supervisor.jobs.kind import AnyKind
from tests.testkit.yaml_text import documents

UID = "uid-of-the-job"
NAMESPACE = "team"
MADE = "2023-11-14T22:20:00Z"
NOW = 1_700_000_400.0

_EXAMPLES = Path(__file__).parent.parent.parent / "examples"
_HUGE = "an integer of 5,000 digits"
_HUGE_JSON = "1" + "0" * 5000
"""Python reads no integer of more than 4,300 digits from text, and writes none."""

NUMBERS: list[Any] = [
    0,
    -1,
    1,
    1.5,
    5e-324,
    1e308,
    -0.0,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**64,
    10**9,
    250_000_000_000,
    _HUGE,
]
INSTANTS = [
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+12:00",
    "1969-12-31T23:59:59Z",
    "2023-11-14T22:20:00.999999999999Z",
    "2023-02-30T00:00:00Z",
    "2023-11-14",
]
TEXTS = [
    *(
        "",
        " ",
        "true",
        "false",
        "0",
        "-1",
        "5e-324",
        "1e309",
        "inf",
        "nan",
        "1" * 9,
        "9" * 10,
        "9" * 5000,
        "٣",
        "1_000",
    ),
    *("\ud800", "a\nb", "a\0b", "\u202e", "x" * 100_000, "é" * 254, "..", "team/job.other", "a: b", "$workers"),
    *("--max-np " + "9" * 5000 + " discover_hosts.sh", "--max-np 1e999 discover_hosts.sh", "host:" + "9" * 5000),
    *INSTANTS,
]
ODD: list[Any] = [*NUMBERS, *TEXTS, None, True, False, [], {}, [1], [None], {"a": 1}, ["a"] * 3]
SERVERS = frozenset({"uid", "resourceVersion", "apiVersion", "kind", "creationTimestamp"})
"""Fields that only the API server writes."""

_ANNOTATIONS = sorted(
    value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and "/" in value and value != names.PREFIX
)
_OPTED_IN = {names.MANAGED: "true", names.MIN_WORKERS: "2"}


def metadata(name: str, annotations: Mapping[str, str] = {}, **more: Any) -> dict[str, Any]:
    made = {"namespace": NAMESPACE, "uid": UID, "resourceVersion": "7", "creationTimestamp": MADE}
    return {"name": name, **made, "annotations": dict(annotations), "labels": {"a": "b"}, **more}


@cache
def _example(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = documents((_EXAMPLES / f"{kind}.yaml").read_text(encoding="utf-8"))[-1]
    return found


def honest_job(kind: AnyKind) -> dict[str, Any]:
    """The manifest that users copy, as the API server returns it."""
    example = copy.deepcopy(_example(kind.name))
    given = {**_OPTED_IN, names.MAX_WAIT: "3600", **example["metadata"].get("annotations", {})}
    conditions = [{"type": "Suspended", "status": "False", "lastTransitionTime": MADE}]
    status: dict[str, Any] = {"conditions": conditions, "startTime": MADE}
    if kind.name == "trainingjob":
        # It was resumed with fewer workers than it asked for, so that its launcher's command is read as well.
        workers = [f"resnet-worker-{index}" for index in range(4)]
        status |= {"phase": "Running", "targetWorkers": workers, "currentWorkers": workers}
        given[names.REQUESTED] = "6"
    return {**example, "metadata": metadata("resnet", given), "status": status}


def honest_pod(kind: AnyKind, index: int) -> dict[str, Any]:
    """A running pod of such a job, with the labels of all kinds."""
    owner = {"apiVersion": f"{kind.resource.group}/v1", "kind": kind.resource.kind, "name": "resnet", "uid": UID}
    labels = {
        "training-job-role": "worker",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/job-role": "worker",
        "training.kubeflow.org/job-name": "resnet",
        "volcano.sh/task-spec": "worker",
        "jobset.sigs.k8s.io/jobset-name": "resnet",
        "jobset.sigs.k8s.io/jobset-uid": UID,
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    running = {"name": "main", "state": {"running": {"startedAt": MADE}}}
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "m"}
    return {
        "metadata": {
            **metadata(f"resnet-worker-{index}", {names.MANAGED: "true"}),
            "uid": f"uid-of-pod-{index}",
            "labels": labels,
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {
            "nodeName": "node-1",
            "hostname": "",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "100m"}}}
            ],
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{**condition, "lastTransitionTime": MADE}],
            "containerStatuses": [running],
        },
    }


def honest_node() -> dict[str, Any]:
    given = {names.DRAIN: "ops: for a while", names.DRAIN_AT: "2023-11-14T23:00:00Z"}
    expired = {"type": "InstanceExpired", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": MADE}
    planned = {**expired, "type": "MaintenancePlanned"}
    return {
        "metadata": {
            **metadata("node-1", given),
            "labels": {"cloud.google.com/scheduled-maintenance-time": "1700000500"},
        },
        "spec": {
            "unschedulable": False,
            "taints": [{"key": "a", "effect": "NoSchedule", "value": ""}],
            "providerID": "p",
        },
        "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}, "conditions": [expired, planned]},
    }


def honest_event() -> dict[str, Any]:
    return {
        "metadata": metadata("event", {LEAD_ANNOTATION: "60"}),
        "involvedObject": {"kind": "Pod", "name": "resnet-worker-0", "uid": "uid-of-pod-0"},
        "reason": "SpotToBeReleased",
        "message": "m",
        "firstTimestamp": MADE,
        "lastTimestamp": MADE,
        "eventTime": MADE,
        "series": {"lastObservedTime": MADE},
        "reportingComponent": "",
    }


Place = tuple[str | int, ...]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in an object that a tenant can write."""
    items: Sequence[tuple[str | int, Any]] = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, each in items:
        if key not in SERVERS:
            yield (*above, key)
            yield from places(each, (*above, key))


def put(found: Any, place: Place, value: Any) -> None:
    """Replace the value at a place. A place that is no more changes nothing."""
    *above, last = place
    for key in above:
        try:
            found = found[key]
        except (LookupError, TypeError):
            return
    is_there = isinstance(found, dict) or (isinstance(found, list) and isinstance(last, int) and last < len(found))
    if is_there:
        found[last] = value


@st.composite
def bent(draw: st.DrawFn, honest: Mapping[str, Any]) -> dict[str, Any]:
    """An honest object in which up to three values are odd, and perhaps one of our annotations."""
    changed = copy.deepcopy(dict(honest))
    for place in draw(st.lists(st.sampled_from(list(places(changed))), min_size=0, max_size=3)):
        put(changed, place, copy.deepcopy(draw(st.sampled_from(ODD))))
    for name in draw(st.lists(st.sampled_from(_ANNOTATIONS), min_size=0, max_size=3)):
        put(changed, ("metadata", "annotations", name), draw(st.sampled_from(TEXTS)))
    return changed


def each_odd(honest: Mapping[str, Any]) -> Iterator[tuple[Place, Any, dict[str, Any]]]:
    """Yield an honest object with odd values in each place, and in each of our annotations, one at a time.

    The API server keeps the type of a value, so a number is replaced by numbers, and a text by texts.
    """
    given = [("metadata", "annotations", name) for name in _ANNOTATIONS if "annotations" in honest["metadata"]]
    for place in dict.fromkeys([*places(honest), *given]):
        for value in _odd(_at(honest, place)):
            changed = copy.deepcopy(dict(honest))
            put(changed, place, copy.deepcopy(value))
            yield place, value, changed


def _at(found: Any, place: Place) -> Any:
    for key in place:
        found = found.get(key, "") if isinstance(found, dict) else found[key]
    return found


def _odd(honest: object) -> Sequence[Any]:
    match honest:
        case bool():
            return [not honest, None]
        case int() | float():
            return [*NUMBERS, None]
        case str():
            return [*TEXTS, None]
        case list():
            return [[], None, [None], honest[:1] * 3]
        case _:
            return [{}, None]


def random_odd(chance: random.Random, honest: Mapping[str, Any]) -> dict[str, Any]:
    """An honest object with up to three odd values, as `bent`, without hypothesis."""
    changed = copy.deepcopy(dict(honest))
    for place in chance.sample(list(places(changed)), chance.randint(0, 2)):
        put(changed, place, copy.deepcopy(chance.choice(_odd(_at(honest, place)))))
    put(changed, ("metadata", "annotations", chance.choice(_ANNOTATIONS)), chance.choice(TEXTS))
    return changed


def as_json(found: Any) -> bytes:
    """The object as the API server would send it, also with an integer that Python cannot write."""
    return json.dumps(found).replace(json.dumps(_HUGE), _HUGE_JSON).encode()


class SlowError(Exception):
    """A single object took too much time."""


@contextmanager
def bounded(seconds: float = 1.0, mebibytes: int = 256) -> Iterator[None]:
    """Raise SlowError in a block that takes more CPU time, or MemoryError in one that takes more memory."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise SlowError(f"more than {seconds:g} s of CPU time for one object")

    before = signal.signal(signal.SIGVTALRM, late)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, limits[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@dataclass(slots=True)
class OddFaults:
    """Collects the errors of many odd objects, each once for the line that raised it."""

    found: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def of(self, place: object, value: object) -> Iterator[None]:
        """Keep an error of the block, which may also take too much time or memory."""
        try:
            with bounded():
                yield
        except Exception as error:  # noqa: BLE001 - they are all faults
            last = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{type(error).__name__} at {last.filename}:{last.lineno}"
            self.found.setdefault(line, f"{line}: {str(error)[:120]}; with {str(value)[:60]!r} in {place}")

    def none(self) -> None:
        assert not self.found, "\n".join(self.found.values())
