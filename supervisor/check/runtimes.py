"""TrainJobs of Kubeflow Trainer: what their runtime describes, with their own command in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from servicekit.kubernetes.client import Resource
from supervisor.check.values import Value, at, items, mapping, text

_GROUP = "trainer.kubeflow.org"
_STEP, _TRAINER = f"{_GROUP}/trainjob-ancestor-step", "trainer"
_DEFAULT = "ClusterTrainingRuntime"
_OVERRIDDEN = ("image", "command", "args")


@dataclass(frozen=True, slots=True)
class RuntimeReference:
    """The runtime that a TrainJob names, which is in its own namespace or in none."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def resource(self) -> Resource | None:
        """The API resource; None if Trainer has no such kind."""
        return _RUNTIMES.get(self.kind)

    def is_of(self, document: Value) -> bool:
        """Whether the document is this runtime."""
        named = (text(document, "kind"), text(document, "metadata", "name"))
        return is_runtime(document) and named == (self.kind, self.name)


def _runtime(kind: str, *, namespaced: bool) -> Resource:
    return Resource(group=_GROUP, version="v1alpha1", kind=kind, plural=f"{kind.lower()}s", namespaced=namespaced)


_RUNTIMES = {
    "TrainingRuntime": _runtime("TrainingRuntime", namespaced=True),
    _DEFAULT: _runtime(_DEFAULT, namespaced=False),
}


def is_runtime(document: Value) -> bool:
    """Whether a document is a runtime, which is no job itself."""
    return text(document, "apiVersion").startswith(f"{_GROUP}/") and text(document, "kind") in _RUNTIMES


def runtime_of(trainjob: Value) -> RuntimeReference | None:
    """The runtime that a document names; None if it is no TrainJob, or names none."""
    reference = at(trainjob, "spec", "runtimeRef")
    if text(trainjob, "kind") != "TrainJob" or not text(reference, "name"):
        return None
    return RuntimeReference(text(reference, "kind") or _DEFAULT, text(reference, "name"))


def jobset_spec(trainjob: Value, documents: Iterable[Value]) -> Mapping[str, Value]:
    """The spec of the JobSet that becomes of a TrainJob; empty if its runtime is not among the documents."""
    reference = runtime_of(trainjob)
    runtime = next((each for each in documents if reference is not None and reference.is_of(each)), None)
    spec, trainer = mapping(runtime, "spec", "template", "spec"), mapping(trainjob, "spec", "trainer")
    if not spec:
        return {}
    return {**spec, "replicatedJobs": [_with_trainer(job, trainer) for job in items(spec, "replicatedJobs")]}


def _with_trainer(job: Value, trainer: Mapping[str, Value]) -> Value:
    """A replicated job, in which the trainer's command and variables are those of the TrainJob."""
    if text(job, "template", "metadata", "labels", _STEP) != _TRAINER:
        return job
    pod = mapping(job, "template", "spec", "template", "spec")
    containers = [_overridden(each, trainer) for each in items(pod, "containers")]
    return _replaced(job, ("template", "spec", "template", "spec"), {**pod, "containers": containers})


def _overridden(container: Value, trainer: Mapping[str, Value]) -> Value:
    own = {name: trainer[name] for name in _OVERRIDDEN if name in trainer}
    return {**mapping(container), **own, "env": [*items(container, "env"), *items(trainer, "env")]}


def _replaced(value: Value, path: tuple[str, ...], new: Value) -> Value:
    if not path:
        return new
    first, *rest = path
    return {**mapping(value), first: _replaced(at(value, first), tuple(rest), new)}
