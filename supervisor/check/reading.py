"""Reads jobs from manifests and command lines."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from supervisor.check.command import KUBEAI_RUN, Launch, launches_in
from supervisor.check.job import CheckedJob, Kind, Mount, Role
from supervisor.check.jobset import training_jobs
from supervisor.check.kinds import SHAPES, Shape, kind_of
from supervisor.check.runtimes import jobset_spec, runtime_of
from supervisor.check.values import Value, at, items, mapping, number, text

_RENDEZVOUS_PORT = "23456"
_NO_VOLUME = ""


def jobs_in(*documents: Value, beside: Iterable[Value] = ()) -> Iterator[CheckedJob]:
    """The jobs of documents, which may be Lists; nothing for other objects.

    A TrainJob has roles only if its runtime is in these documents, or in those `beside` them.
    """
    objects = [each for document in documents for each in _objects(document)]
    runtimes = [*objects, *(each for document in beside for each in _objects(document))]
    for each in objects:
        group = text(each, "apiVersion").rpartition("/")[0]
        kind = kind_of(group, text(each, "kind"))
        if kind is Kind.TRAIN_JOB:
            yield _train_job(each, runtimes)
        elif kind is not None:
            yield _job(kind, each)


def _objects(document: Value) -> Iterator[Value]:
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
    role = Role(name="command", path="", texts=(line,), launches=launches)
    return CheckedJob(kind=Kind.COMMAND, name=name, roles=(role,))


def job_of_bounds(name: str, least: int, most: int) -> CheckedJob:
    """A job of kubeai-run of which only its numbers of workers are known."""
    launch = Launch(KUBEAI_RUN, ("--min-workers", str(least), "--max-workers", str(most)))
    return CheckedJob(kind=Kind.COMMAND, name=name, roles=(Role(name="command", path="", launches=(launch,)),))


def _train_job(document: Value, runtimes: Sequence[Value]) -> CheckedJob:
    """Its pods are those of the JobSet that its runtime describes."""
    spec, path = jobset_spec(document, runtimes), f"{runtime_of(document)}: spec.template.spec"
    roles = tuple(_replicated_jobs(spec, path))
    return replace(_job(Kind.TRAIN_JOB, document), spec=spec, spec_path=path, roles=roles)


def _job(kind: Kind, document: Value) -> CheckedJob:
    return CheckedJob(
        kind=kind,
        name=text(document, "metadata", "name") or text(document, "metadata", "generateName"),
        namespace=text(document, "metadata", "namespace"),
        annotations=_texts(document, "metadata", "annotations"),
        labels=_texts(document, "metadata", "labels"),
        spec=mapping(document, "spec"),
        roles=tuple(_roles(kind, document)),
    )


def _roles(kind: Kind, document: Value) -> Iterator[Role]:
    spec, shape = at(document, "spec"), SHAPES[kind]
    if kind is Kind.JOB:
        yield _role("pod", "spec", spec)
    if kind is Kind.JOB_SET:
        yield from _replicated_jobs(spec, "spec")
    for number_, task in enumerate(items(spec, "tasks") if kind is Kind.VOLCANO_JOB else ()):
        yield _role(text(task, "name") or f"task {number_}", f"spec.tasks[{number_}]", task)
    added = _rendezvous_variables(document) if kind is Kind.PYTORCH_JOB else {}
    for name, replicas in mapping(spec, shape.replica_specs).items() if shape.replica_specs else ():
        yield _role(name, f"spec.{shape.replica_specs}.{name}", replicas, shape, added)


def _replicated_jobs(spec: Value, place: str) -> Iterator[Role]:
    for path, job in training_jobs(spec):
        yield _role(text(job, "name") or path, f"{place}.{path}", at(job, "template", "spec"))


def _role(
    name: str, path: str, replicas: Value, shape: Shape | None = None, added: Mapping[str, str] | None = None
) -> Role:
    template, pod = at(replicas, "template"), mapping(replicas, "template", "spec")
    size = number(replicas, "replicas")
    containers = items(pod, "containers")
    return Role(
        name=name,
        path=path,
        leads=shape is not None and name.lower() in shape.leaders,
        replicas=1 if size is None else int(size),
        restart_policy=text(replicas, "restartPolicy"),
        annotations=_texts(template, "metadata", "annotations"),
        labels=_texts(template, "metadata", "labels"),
        pod=pod,
        environment={**(added or {}), **dict(pair for each in containers for pair in _variables(each))},
        texts=tuple(" ".join(_command(each)) for each in containers),
        launches=tuple(launch for each in containers for launch in _launches(each)),
        mounts=tuple(_mounts(pod)),
    )


def _launches(container: Value) -> tuple[Launch, ...]:
    return launches_in(_command(container))


def _command(container: Value) -> list[str]:
    return [str(word) for part in ("command", "args") for word in items(container, part)]


def _variables(container: Value) -> Iterator[tuple[str, str]]:
    for each in items(container, "env"):
        if at(each, "value") is not None:
            yield text(each, "name"), text(each, "value")


def _mounts(pod: Mapping[str, Value]) -> Iterator[Mount]:
    volumes = {text(each, "name"): _type(each) for each in items(pod, "volumes")}
    for container in items(pod, "containers"):
        for mount in items(container, "volumeMounts"):
            yield Mount(path=text(mount, "mountPath"), volume=volumes.get(text(mount, "name"), _NO_VOLUME))


def _type(volume: Value) -> str:
    """The type of a volume, such as `emptyDir`: the name of its only other field."""
    return next((name for name in mapping(volume) if name != "name"), "emptyDir")


def _rendezvous_variables(document: Value) -> Mapping[str, str]:
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


def _texts(value: Value, *path: str) -> Mapping[str, str]:
    return {name: each if isinstance(each, str) else text(each) for name, each in mapping(value, *path).items()}
