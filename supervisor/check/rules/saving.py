"""Rules about whether the supervisor supervises the job, and whether the job can save before a reclaim."""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator

from supervisor.check.command import KUBEAI_RUN
from supervisor.check.job import (
    ASSUMED_CHECKPOINT_SECONDS,
    JOB_SETS,
    CheckedFacts,
    CheckedJob,
    CheckedKind,
    CheckedRole,
    FindingSeverity,
    JobProblem,
    rule,
)
from supervisor.check.manifests import mapping, number, text, training_jobs
from supervisor.cluster.annotations import MANAGED, OURS, SUSPENDED_BY, opts_in, opts_out, ours
from supervisor.jobs.annotated import misreadings
from supervisor.jobs.manifest import HUB_LABEL
from supervisor.jobs.registry import ANNOTATIONS


@rule("kind-not-supervised", FindingSeverity.WARNING, "a job that the supervisor does not look after")
def kind_not_supervised(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    # The places and specs of the Jobs of Kubernetes in a manifest, and their mode where none is written.
    jobs: list[tuple[str, object, str]] = [("spec", job.spec, "NonIndexed")] if job.kind is CheckedKind.JOB else []
    for path, replicated in training_jobs(job.spec) if job.kind is CheckedKind.JOB_SET else ():
        jobs.append((f"spec.{path}", mapping(replicated, "template", "spec"), "Indexed"))
    for place, spec, mode in jobs:
        together, all_of_them = number(spec, "parallelism"), number(spec, "completions")
        is_indexed = (text(spec, "completionMode") or mode) == "Indexed"
        if not is_indexed or (1 if together is None else together) != all_of_them:
            yield JobProblem(
                place,
                "The supervisor looks after Jobs whose pods have an index and run at the same time, so nothing saves "
                "this job before a reclaim.",
                "Make completionMode Indexed, and parallelism equal to completions.",
            )


@rule("not-opted-in", FindingSeverity.ERROR, "a job without the annotation that opts in")
def not_opted_in(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    # One that opts out in so many words is meant to be left alone.
    if job.kind is not CheckedKind.COMMAND and not job.opts_in and not opts_out(job.annotations):
        yield JobProblem(
            "metadata.annotations",
            "The job does not opt in, so the supervisor leaves it alone and nothing saves it before a reclaim.",
            f'Add the annotation {MANAGED}: "true" to the job and to each pod template.',
        )


@rule("annotation-ignored", FindingSeverity.WARNING, "an annotation that is misspelt, or whose value is not understood")
def annotation_ignored(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    found = [ours(each) for each in (job.annotations, *(role.annotations for role in job.roles))]
    for wrong in misreadings(found, ANNOTATIONS):
        yield JobProblem("metadata.annotations", str(wrong), "Correct or remove it.")


@rule("hub-undid-suspension", FindingSeverity.ERROR, "a job whose hub has undone the supervisor's suspension")
def hub_undid_suspension(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    is_marked = job.labels.get(HUB_LABEL) == "true" and job.annotations.get(SUSPENDED_BY) == OURS
    # An annotation suspends a TrainingJob, and hubs keep annotations.
    if is_marked and not job.suspended and job.kind is not CheckedKind.TRAINING_JOB:
        yield JobProblem(
            "metadata.annotations",
            "The hub that has created the job undid its suspension, so the supervisor leaves the job alone and nothing "
            "saves it before a reclaim.",
            f"Install the chart job-supervisor-hub at the hub, then remove the annotation {SUSPENDED_BY}.",
        )


@rule("pods-not-opted-in", FindingSeverity.ERROR, "pod templates without the annotation that opts in")
def pods_not_opted_in(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    """The webhook sees pods, and the controllers copy annotations only from templates to pods."""
    for role in job.roles if job.opts_in else ():
        if not opts_in(role.annotations):
            yield JobProblem(
                f"{role.path}.template.metadata.annotations",
                f"The pods of {role.name} do not opt in, so they get no token and their processes cannot be told "
                "of a reclaim.",
                f'Add the annotation {MANAGED}: "true" to the template.',
            )


_KUBERNETES_GRACE_SECONDS = 30.0
_SAVE_GRACE_SECONDS = 60.0
_LONG_UNREAD_SECONDS = 30.0


@rule("grace-too-short", FindingSeverity.ERROR, "pods that are killed before a checkpoint is written")
def grace_too_short(job: CheckedJob, facts: CheckedFacts) -> Iterator[JobProblem]:
    needed, source = _checkpoint(facts)
    for role in job.roles if job.kind is not CheckedKind.COMMAND else ():
        written = number(role.pod, "terminationGracePeriodSeconds")
        grace = _KUBERNETES_GRACE_SECONDS if written is None else written
        if grace < needed:
            default = " (the default)" if written is None else ""
            yield JobProblem(
                f"{role.path}.template.spec.terminationGracePeriodSeconds",
                f"The pods of {role.name} are killed {grace:g} s{default} after an eviction or preemption begins, but "
                f"a checkpoint takes {needed:g} s{source}.",
                f"Set it to the time of a checkpoint and of one step, for example {needed * 2:g}.",
            )


@rule("save-grace-too-short", FindingSeverity.ERROR, "kubeai-run that ends its command before a checkpoint is written")
def save_grace_too_short(job: CheckedJob, facts: CheckedFacts) -> Iterator[JobProblem]:
    needed, source = _checkpoint(facts)
    for _, launch in job.launches(KUBEAI_RUN):
        try:
            written = launch.option("--save-grace")
            default = "" if written else " (the default)"
            grace = float(written or _SAVE_GRACE_SECONDS)
        except ValueError:
            continue
        if grace < needed:
            yield JobProblem(
                "kubeai-run --save-grace",
                f"kubeai-run gives {grace:g} s{default} for a checkpoint after SIGTERM, but one takes {needed:g} s"
                f"{source}.",
                f"Use --save-grace {needed * 2:g}.",
            )


@rule("flag-not-read", FindingSeverity.WARNING, "a running script that does not ask whether to stop")
def flag_not_read(_job: CheckedJob, facts: CheckedFacts) -> Iterator[JobProblem]:
    if facts.unread_seconds is not None and facts.unread_seconds >= _LONG_UNREAD_SECONDS:
        yield JobProblem(
            "training script",
            f"A process has not asked for {facts.unread_seconds:.0f} s whether to stop, so it would not notice a "
            "reclaim in time.",
            "Call should_stop(step) or check_alive() after every step, also in evaluations.",
        )


def _checkpoint(facts: CheckedFacts) -> tuple[float, str]:
    """How long a checkpoint takes, and where that number comes from."""
    if facts.checkpoint_seconds is None:
        return ASSUMED_CHECKPOINT_SECONDS, " unless you say otherwise with --checkpoint"
    return facts.checkpoint_seconds, " as measured" if facts.measured else ""


_RANK_FIX = "Pass rank= to kubeai's init(), or set RANK in each process."
_RANK_VARIABLES = frozenset({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "JAX_PROCESS_ID", "TF_CONFIG"})
_EACH_HOST = "kubeai-each-host"


@rule("no-rank-zero", FindingSeverity.ERROR, "a running job of which no process, or more than one, is rank 0")
def no_rank_zero(_job: CheckedJob, facts: CheckedFacts) -> Iterator[JobProblem]:
    if facts.ranks:
        yield JobProblem("the running processes", facts.ranks, _RANK_FIX)


@rule("rank-unknown", FindingSeverity.HINT, "a script in several processes, to which nothing gives a rank")
def rank_unknown(job: CheckedJob, facts: CheckedFacts) -> Iterator[JobProblem]:
    for role in () if facts.ranks else job.roles:
        # A script that is started as it is. A module behind `-m` may be a launcher.
        is_plain = any(
            launch.program == "python"
            and launch.words[:1] != ("-m",)
            and not _RANK_VARIABLES & {*role.environment, *launch.environment}
            for launch in role.launches
        )
        if is_plain and not _gives_ranks(job, role):
            yield JobProblem(
                role.path or _EACH_HOST,
                "Several processes run the script, and no launcher or controller gives them a rank. Unless the script "
                "does, no process is rank 0, which answers a stop.",
                _RANK_FIX,
            )


def _gives_ranks(job: CheckedJob, role: CheckedRole) -> bool:
    """Whether the job has a single process, or its controller gives each process a rank."""
    if job.kind is CheckedKind.COMMAND:
        return not any(launch.program == _EACH_HOST for launch in role.launches)
    if job.kind is CheckedKind.JOB:
        return role.replicas <= 1 or text(job.spec, "completionMode") == "Indexed"
    return job.kind not in JOB_SETS or len(job.roles) == 1


_OPTION = re.compile(r"--?[\w-]*(?:checkpoint|ckpt)[\w-]*|--(?:output|save)[_-]?(?:dir|path)?", re.IGNORECASE)
_VARIABLE = re.compile(r"\w*(?:CHECKPOINT|CKPT)\w*", re.IGNORECASE)
_LOST = {
    "emptyDir": "a volume that is deleted with its pod (emptyDir)",
    "ephemeral": "a volume that is deleted with its pod (ephemeral)",
    "hostPath": "a directory of the machine that goes (hostPath)",
}
_HAS_LAUNCHER = (CheckedKind.TRAINING_JOB, CheckedKind.MPI_JOB)


@rule("checkpoint-on-node", FindingSeverity.ERROR, "checkpoints in a volume that is lost with its pod or machine")
def checkpoint_on_node(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for role in job.roles:
        mounts = role.mounts
        if role.leads and job.kind in _HAS_LAUNCHER:  # It starts the processes in the workers' pods.
            mounts = tuple(mount for each in job.roles if not each.leads for mount in each.mounts)
        for path in _paths(role):
            # The mount that the path is in is the longest one, as mounts may lie in others.
            around = [
                each
                for each in mounts
                if each.path == "/" or f"{path}/".startswith(f"{posixpath.normpath(each.path)}/")
            ]
            mount = max(around, key=lambda each: len(each.path), default=None)
            if mount is not None and mount.volume in _LOST:
                yield JobProblem(
                    role.path,
                    f"Checkpoints in {path} are written to {_LOST[mount.volume]}, so a resumed job does not find them.",
                    f"Mount a volume that all nodes share at {mount.path}, such as a PersistentVolumeClaim "
                    "with ReadWriteMany.",
                )


def _paths(role: CheckedRole) -> Iterable[str]:
    """The absolute paths of checkpoints in options and variables."""
    found: list[str] = []
    for written in role.texts:
        try:
            words = shlex.split(written)
        except ValueError:  # A quotation that does not end.
            words = written.split()
        for at, word in enumerate(words):
            option, equals, value = word.partition("=")
            if _OPTION.fullmatch(option):
                found.append(value if equals else "".join(words[at + 1 : at + 2]))
    found += [value for name, value in role.environment.items() if _VARIABLE.fullmatch(name)]
    return dict.fromkeys(posixpath.normpath(path) for path in found if path.startswith("/"))
