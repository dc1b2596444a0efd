"""Reads jobs from manifests and command lines.

People write manifests: a part that is missing, or that has another type than expected, is read as absent.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from servicekit.kubernetes.client import Resource
from supervisor.check.command import KUBEAI_RUN, Launch, launches_in
from supervisor.check.job import HUGE, CheckedJob, CheckedKind, CheckedRole, VolumeMount
from supervisor.jobs.registry import KINDS


def at(value: object, *path: str) -> object:
    """Returns the value at that path of names; None if there is none."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def mapping(value: object, *path: str) -> Mapping[str, object]:
    """Returns the mapping at that path; an empty one if there is none."""
    found = at(value, *path)
    return {str(name): each for name, each in found.items()} if isinstance(found, Mapping) else {}


def items(value: object, *path: str) -> Sequence[object]:
    """Returns the list at that path; an empty one if there is none."""
    found = at(value, *path)
    return found if isinstance(found, list) else ()


def text(value: object, *path: str) -> str:
    """Returns the text at that path, also of a number; empty if there is none."""
    found = at(value, *path)
    return "" if found is None or isinstance(found, Mapping | list | bool) else str(found)


def number(value: object, *path: str) -> float | None:
    """Returns the number at that path; None if there is none."""
    found = at(value, *path)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if abs(found) < HUGE else None  # YAML also has infinities, and numbers that are none.


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestShape:
    """The manifest of one kind.

    Attributes:
        resource: The API resource.
        replica_specs: The field of the spec with one template for each role; empty if there is none.
        leaders: The roles without which the job cannot go on, in lower case.
        budget: The path of the number of retries in the spec.
        short_names: Further names that kubectl takes for it.
    """

    resource: Resource
    replica_specs: str = ""
    leaders: frozenset[str] = frozenset()
    budget: tuple[str, ...] = ("runPolicy", "backoffLimit")
    short_names: tuple[str, ...] = ()


def _kubeflow(version: str, kind: str) -> Resource:
    return Resource(group="kubeflow.org", version=version, kind=kind, plural=f"{kind.lower()}s", namespaced=True)


SHAPES: Mapping[CheckedKind, ManifestShape] = {
    CheckedKind.TRAINING_JOB: ManifestShape(
        resource=Resource(
            group="kai.alibabacloud.com", version="v1alpha1", kind="TrainingJob", plural="trainingjobs", namespaced=True
        ),
        replica_specs="etReplicaSpecs",
        leaders=frozenset({"launcher"}),
        budget=("backoffLimit",),
    ),
    CheckedKind.MPI_JOB: ManifestShape(
        resource=_kubeflow("v2beta1", "MPIJob"), replica_specs="mpiReplicaSpecs", leaders=frozenset({"launcher"})
    ),
    CheckedKind.PYTORCH_JOB: ManifestShape(
        resource=_kubeflow("v1", "PyTorchJob"), replica_specs="pytorchReplicaSpecs", leaders=frozenset({"master"})
    ),
    CheckedKind.TF_JOB: ManifestShape(
        resource=_kubeflow("v1", "TFJob"), replica_specs="tfReplicaSpecs", leaders=frozenset({"chief", "master"})
    ),
    CheckedKind.VOLCANO_JOB: ManifestShape(
        resource=Resource(group="batch.volcano.sh", version="v1alpha1", kind="Job", plural="jobs", namespaced=True),
        budget=("maxRetry",),
        short_names=("vcjob", "vj"),
    ),
    CheckedKind.JOB: ManifestShape(
        resource=Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True),
        budget=("backoffLimit",),
    ),
    CheckedKind.JOB_SET: ManifestShape(
        resource=Resource(
            group="jobset.x-k8s.io", version="v1alpha2", kind="JobSet", plural="jobsets", namespaced=True
        ),
        budget=("failurePolicy", "maxRestarts"),
    ),
    CheckedKind.TRAIN_JOB: ManifestShape(
        resource=Resource(
            group="trainer.kubeflow.org", version="v1alpha1", kind="TrainJob", plural="trainjobs", namespaced=True
        ),
        budget=("failurePolicy", "maxRestarts"),
    ),
}


def kind_of(group: str, name: str) -> CheckedKind | None:
    """Finds the kind with that API group and name; None if the rules cannot check it."""
    named = ((kind, shape.resource) for kind, shape in SHAPES.items())
    return next((kind for kind, resource in named if (resource.group, resource.kind) == (group, name)), None)


SUPERVISED: Mapping[str, CheckedKind] = {
    kind.name: found for kind in KINDS if (found := kind_of(kind.resource.group, kind.resource.kind)) is not None
}
"""The kinds that the supervisor looks after on a cluster, by their names in the names of jobs."""


def training_jobs(spec: object) -> Iterator[tuple[str, object]]:
    """Yields the paths and templates of the Jobs that train.

    A Job that others wait for has ended before the training.
    """
    jobs = items(spec, "replicatedJobs")
    dependencies = [each for job in jobs for each in items(job, "dependsOn")]
    ended = {text(each, "name") for each in dependencies if text(each, "status") == "Complete"}
    for number, job in enumerate(jobs):
        if text(job, "name") not in ended:
            yield f"replicatedJobs[{number}].template.spec", job


_GROUP = "trainer.kubeflow.org"
_STEP, _TRAINER = f"{_GROUP}/trainjob-ancestor-step", "trainer"
_DEFAULT = "ClusterTrainingRuntime"
_OVERRIDDEN = ("image", "command", "args")


@dataclass(frozen=True, slots=True)
class RuntimeReference:
    """The runtime that a TrainJob names. It is in the TrainJob's namespace, or cluster-scoped."""

    kind: str
    name: str
    resource: Resource | None
    """The API resource; None if Trainer has no such kind."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


_RUNTIMES = {
    kind: Resource(group=_GROUP, version="v1alpha1", kind=kind, plural=f"{kind.lower()}s", namespaced=kind != _DEFAULT)
    for kind in ("TrainingRuntime", _DEFAULT)
}


def is_runtime(document: object) -> bool:
    """Whether a document is a runtime, and so no job."""
    return text(document, "apiVersion").startswith(f"{_GROUP}/") and text(document, "kind") in _RUNTIMES


def runtime_of(trainjob: object) -> RuntimeReference | None:
    """The runtime that a document names; None if it is no TrainJob, or names none."""
    reference = at(trainjob, "spec", "runtimeRef")
    if text(trainjob, "kind") != "TrainJob" or not text(reference, "name"):
        return None
    kind = text(reference, "kind") or _DEFAULT
    return RuntimeReference(kind, text(reference, "name"), _RUNTIMES.get(kind))


def jobset_spec(trainjob: object, documents: Iterable[object]) -> Mapping[str, object]:
    """The spec of the JobSet that a controller makes from a TrainJob, with the patches that it has for its runtime.

    Empty if its runtime is not in the documents.
    """
    reference = runtime_of(trainjob)
    named = None if reference is None else (reference.kind, reference.name)
    runtimes = (each for each in documents if is_runtime(each))
    runtime = next((each for each in runtimes if (text(each, "kind"), text(each, "metadata", "name")) == named), None)
    spec, trainer = mapping(runtime, "spec", "template", "spec"), mapping(trainjob, "spec", "trainer")
    if not spec:
        return {}
    for patch in items(trainjob, "spec", "runtimePatches"):
        spec = mapping(_merged(spec, at(patch, "trainingRuntimeSpec", "template", "spec")))
    return {**spec, "replicatedJobs": [_with_trainer(job, trainer) for job in items(spec, "replicatedJobs")]}


def _merged(value: object, patch: object) -> object:
    """A value with a strategic merge patch of Kubernetes, as far as a runtime has such: items are known by names."""
    if isinstance(value, Mapping) and isinstance(patch, Mapping):
        return {**value, **{name: _merged(value.get(name), each) for name, each in patch.items()}}
    if isinstance(value, list) and isinstance(patch, list) and all(text(each, "name") for each in (*value, *patch)):
        patched, known = {text(each, "name"): each for each in patch}, {text(each, "name") for each in value}
        kept = [_merged(each, patched.get(text(each, "name"))) for each in value]
        return [*kept, *(each for name, each in patched.items() if name not in known)]
    return value if patch is None else patch


def _with_trainer(job: object, trainer: Mapping[str, object]) -> object:
    """A replicated job with the trainer's command and variables from the TrainJob."""
    if text(job, "template", "metadata", "labels", _STEP) != _TRAINER:
        return job
    pod = mapping(job, "template", "spec", "template", "spec")
    own = {name: trainer[name] for name in _OVERRIDDEN if name in trainer}
    containers = [
        {**mapping(each), **own, "env": [*items(each, "env"), *items(trainer, "env")]}
        for each in items(pod, "containers")
    ]
    return _replaced(job, ("template", "spec", "template", "spec"), {**pod, "containers": containers})


def _replaced(value: object, path: tuple[str, ...], new: object) -> object:
    if not path:
        return new
    first, *rest = path
    return {**mapping(value), first: _replaced(at(value, first), tuple(rest), new)}


_RENDEZVOUS_PORT = "23456"


def jobs_in(*documents: object, beside: Iterable[object] = ()) -> Iterator[CheckedJob]:
    """The jobs in a document, which may be a List; nothing for other objects.

    A TrainJob has roles only if its runtime is in these documents, or in those `beside` them.
    """
    objects = [each for document in documents for each in _objects(document)]
    runtimes = [*objects, *(each for document in beside for each in _objects(document))]
    for each in objects:
        group = text(each, "apiVersion").rpartition("/")[0]
        kind = kind_of(group, text(each, "kind"))
        if kind is None:
            continue
        job = CheckedJob(
            kind=kind,
            name=text(each, "metadata", "name") or text(each, "metadata", "generateName"),
            namespace=text(each, "metadata", "namespace"),
            annotations=_texts(each, "metadata", "annotations"),
            labels=_texts(each, "metadata", "labels"),
            spec=mapping(each, "spec"),
            roles=tuple(_roles(kind, each)),
        )
        job = replace(job, suspended=_is_suspended(job))
        if kind is CheckedKind.TRAIN_JOB:  # Its pods are those of the JobSet that its runtime describes.
            spec, path = jobset_spec(each, runtimes), f"{runtime_of(each)}: spec.template.spec"
            job = replace(job, spec=spec, spec_path=path, roles=tuple(_replicated_jobs(spec, path)))
        yield job


def _objects(document: object) -> Iterator[object]:
    if text(document, "kind").endswith("List"):
        for each in items(document, "items"):
            yield from _objects(each)
    else:
        yield document


def job_of_command(line: str) -> CheckedJob:
    """The job that a command line starts.

    Raises:
        ValueError: It does not split into words, as with a quotation that does not end.
    """
    words = shlex.split(line)
    launches = launches_in(words)
    name = next(
        (found for each in launches if (found := each.option("--job"))), launches[0].program if launches else ""
    )
    role = CheckedRole(name="command", path="", texts=(line,), launches=launches)
    return CheckedJob(kind=CheckedKind.COMMAND, name=name, roles=(role,))


def job_of_bounds(name: str, least: int, most: int) -> CheckedJob:
    """A job of kubeai-run of which only its numbers of workers are known."""
    launch = Launch(KUBEAI_RUN, ("--min-workers", str(least), "--max-workers", str(most)))
    return CheckedJob(
        kind=CheckedKind.COMMAND, name=name, roles=(CheckedRole(name="command", path="", launches=(launch,)),)
    )


def _is_suspended(job: CheckedJob) -> bool:
    """Whether a field of its spec suspends the job, or as a Volcano Job sizes of 0."""
    says = (at(job.spec, "suspend"), at(job.spec, "runPolicy", "suspend"))
    has_no_size = job.kind is CheckedKind.VOLCANO_JOB and not any(role.replicas for role in job.roles)
    return True in says or has_no_size


def _roles(kind: CheckedKind, document: object) -> Iterator[CheckedRole]:
    spec, shape = at(document, "spec"), SHAPES[kind]
    if kind is CheckedKind.JOB:
        yield _role("pod", "spec", spec)
    if kind is CheckedKind.JOB_SET:
        yield from _replicated_jobs(spec, "spec")
    for number_, task in enumerate(items(spec, "tasks") if kind is CheckedKind.VOLCANO_JOB else ()):
        yield _role(text(task, "name") or f"task {number_}", f"spec.tasks[{number_}]", task)
    added = _rendezvous_variables(document) if kind is CheckedKind.PYTORCH_JOB else {}
    for name, replicas in mapping(spec, shape.replica_specs).items() if shape.replica_specs else ():
        yield _role(name, f"spec.{shape.replica_specs}.{name}", replicas, shape, added)


def _replicated_jobs(spec: object, place: str) -> Iterator[CheckedRole]:
    for path, job in training_jobs(spec):
        yield _role(text(job, "name") or path, f"{place}.{path}", at(job, "template", "spec"))


def _role(
    name: str, path: str, replicas: object, shape: ManifestShape | None = None, added: Mapping[str, str] | None = None
) -> CheckedRole:
    template, pod = at(replicas, "template"), mapping(replicas, "template", "spec")
    size = number(replicas, "replicas")
    containers = items(pod, "containers")
    commands = [[str(word) for part in ("command", "args") for word in items(each, part)] for each in containers]
    variables = {
        text(one, "name"): text(one, "value")
        for each in containers
        for one in items(each, "env")
        if at(one, "value") is not None
    }
    # The type of a volume, such as `emptyDir`, is the name of its only other field.
    volumes = {
        text(each, "name"): next((name for name in mapping(each) if name != "name"), "emptyDir")
        for each in items(pod, "volumes")
    }
    return CheckedRole(
        name=name,
        path=path,
        leads=shape is not None and name.lower() in shape.leaders,
        replicas=1 if size is None else int(size),
        restart_policy=text(replicas, "restartPolicy"),
        annotations=_texts(template, "metadata", "annotations"),
        labels=_texts(template, "metadata", "labels"),
        pod=pod,
        environment={**(added or {}), **variables},
        texts=tuple(" ".join(command) for command in commands),
        launches=tuple(launch for command in commands for launch in launches_in(command)),
        mounts=tuple(
            VolumeMount(path=text(mount, "mountPath"), volume=volumes.get(text(mount, "name"), ""))
            for each in containers
            for mount in items(each, "volumeMounts")
        ),
    )


def _rendezvous_variables(document: object) -> Mapping[str, str]:
    """The variables that training-operator gives to the pods of a PyTorchJob, which torchrun reads."""
    spec = at(document, "spec")
    roles = mapping(spec, "pytorchReplicaSpecs")
    policy = mapping(spec, "elasticPolicy")
    sizes = [number(role, "replicas") for role in roles.values()]
    total = sum(1 if size is None else int(size) for size in sizes)
    if "elasticPolicy" not in mapping(spec):
        return {"PET_NNODES": str(total)}
    least, most = (number(policy, name) for name in ("minReplicas", "maxReplicas"))
    host = text(policy, "rdzvHost") or f"{text(document, 'metadata', 'name')}-worker-0"
    found = {
        "PET_NNODES": f"{int(least or 1)}:{int(most or total)}",
        "PET_RDZV_BACKEND": text(policy, "rdzvBackend") or "c10d",
        "PET_RDZV_ENDPOINT": f"{host}:{text(policy, 'rdzvPort') or _RENDEZVOUS_PORT}",
        "PET_MAX_RESTARTS": text(policy, "maxRestarts"),
        "PET_STANDALONE": "1" if at(policy, "standalone") is True else "",
    }
    return {name: value for name, value in found.items() if value}


def _texts(value: object, *path: str) -> Mapping[str, str]:
    return {name: each if isinstance(each, str) else text(each) for name, each in mapping(value, *path).items()}
