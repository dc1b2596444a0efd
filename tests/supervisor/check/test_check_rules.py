"""Each rule finds the bad manifest of each kind that it is about, and nothing in the good ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor.check.checking import RULES
from supervisor.check.job import NO_FACTS, CheckedFacts, CheckedKind, FindingSeverity
from supervisor.cluster.annotations import MAX_WAIT, ON_LOSS, PREFIX, SPOT
from tests.supervisor.check.check_manifests import (
    ALLOWED,
    ARENA,
    GOOD,
    GOOD_COMMANDS,
    HOROVODRUN,
    MANAGED,
    TORCHRUN,
    Manifest,
    changed,
    found,
    ids,
    template,
)

_TRAINING, _MPI, _PYTORCH, _TF, _VOLCANO, _JOB, _JOB_SET, _TRAIN_JOB = GOOD
_TEMPLATES = {
    _TRAINING: "spec.etReplicaSpecs.worker.template",
    _MPI: "spec.mpiReplicaSpecs.Worker.template",
    _PYTORCH: "spec.pytorchReplicaSpecs.Worker.template",
    _TF: "spec.tfReplicaSpecs.Worker.template",
    _VOLCANO: "spec.tasks.0.template",
    _JOB: "spec.template",
    _JOB_SET: "spec.replicatedJobs.0.template.spec.template",
    _TRAIN_JOB: "items.0.spec.template.spec.replicatedJobs.0.template.spec.template",
}
_OBJECTS = [kind for kind in GOOD if kind is not _TRAIN_JOB]
"""The kinds whose manifest is one object."""
_LAUNCHERS = {
    _TRAINING: "spec.etReplicaSpecs.launcher.template",
    _MPI: "spec.mpiReplicaSpecs.Launcher.template",
    _PYTORCH: "spec.pytorchReplicaSpecs.Master.template",
}
_COMMANDS = {**_TEMPLATES, **{kind: _LAUNCHERS[kind] for kind in (_TRAINING, _MPI)}}
_YES, _NO = True, False
_POLICY = "spec.elasticPolicy"
_UNDONE: Manifest = {
    "name": "resnet",
    "namespace": "training",
    "labels": {"karmada.io/managed": "true"},
    "annotations": {MANAGED: "true", f"{PREFIX}suspended-by": "elastic-job-supervisor"},
}
_QUEUED = {"kueue.x-k8s.io/queue-name": "gpus"}


@dataclass(frozen=True, slots=True)
class Bad:
    """A change of a good manifest that a rule must find."""

    rule: str
    kind: CheckedKind
    path: str
    value: Any
    facts: CheckedFacts = NO_FACTS

    @property
    def manifest(self) -> Manifest:
        return changed(GOOD[self.kind](), self.path, self.value)


def _script(kind: CheckedKind, command: str) -> tuple[CheckedKind, str, list[str]]:
    return kind, f"{_COMMANDS[kind]}.spec.containers.0.args", [command]


def _each(
    rule: str, paths: dict[CheckedKind, str], below: str, value: Any, facts: CheckedFacts = NO_FACTS
) -> list[Bad]:
    return [Bad(rule, kind, f"{path}.{below}", value, facts) for kind, path in paths.items()]


def _stored(volume: Manifest) -> list[Bad]:
    """A checkpoint in a volume of the pods that train."""
    pod = {
        "containers": [
            {
                "name": "main",
                "command": ["python", "train.py", "--checkpoint-dir=/ckpt/run"],
                "volumeMounts": [{"name": "a", "mountPath": "/ckpt"}],
            }
        ],
        "volumes": [{"name": "a", **volume}],
    }
    return [Bad("checkpoint-on-node", kind, f"{path}.spec", pod) for kind, path in _TEMPLATES.items()]


_STANDALONE = "torchrun --standalone --nproc-per-node=8 train.py"
_C10D = "torchrun --rdzv-backend=c10d --rdzv-endpoint=worker-0:29400 --nnodes=1:4 --max-restarts=9 train.py"
_NO_RESTARTS = "torchrun --rdzv-backend=etcd-v2 --rdzv-endpoint=etcd:2379 --nnodes=1:4 train.py"
_FIXED = "torchrun --nnodes 4 --rdzv_backend kubeai train.py"
_SIZES = {"fixed-processes", "fixed-nodes", "no-room-to-shrink"}
_TRAIN_TORCH = [_PYTORCH, _TF, _VOLCANO, _JOB]

BAD: Sequence[Bad] = [
    Bad("kind-not-supervised", _JOB, "spec.completionMode", "NonIndexed"),
    Bad("kind-not-supervised", _JOB, "spec.parallelism", 2),
    Bad("kind-not-supervised", _JOB_SET, "spec.replicatedJobs.0.template.spec.completionMode", "NonIndexed"),
    Bad("kind-not-supervised", _JOB_SET, "spec.replicatedJobs.0.template.spec.parallelism", 2),
    *_each("pods-not-opted-in", _TEMPLATES, "metadata.annotations", None),
    *(
        Bad("annotation-ignored", kind, "metadata.annotations", {MANAGED: "true", MAX_WAIT: "soon"})
        for kind in _OBJECTS
    ),
    *_each("annotation-ignored", _TEMPLATES, "metadata.annotations", {MANAGED: "true", f"{PREFIX}min-worker": "2"}),
    *_each("annotation-ignored", _TEMPLATES, "metadata.annotations", {MANAGED: "True"}),
    *(Bad("hub-undid-suspension", kind, "metadata", _UNDONE) for kind in _OBJECTS if kind is not _TRAINING),
    *_each("grace-too-short", _TEMPLATES, "spec.terminationGracePeriodSeconds", 5),
    *_each(
        "grace-too-short", _TEMPLATES, "spec.terminationGracePeriodSeconds", None, CheckedFacts(checkpoint_seconds=45.0)
    ),
    *(Bad("flag-not-read", kind, "spec.suspend", _NO, CheckedFacts(unread_seconds=31.0)) for kind in GOOD),
    *(Bad("no-rank-zero", kind, "spec.suspend", _NO, CheckedFacts(ranks="No process is rank 0.")) for kind in GOOD),
    *_stored({"emptyDir": {}}),
    *_stored({"hostPath": {"path": "/mnt"}}),
    *(Bad("exit-code-hidden", *_script(kind, "python train.py || true")) for kind in GOOD),
    Bad("one-success-ends-job", _TF, "spec.suspend", _NO),
    Bad("loss-fails-job", _PYTORCH, "spec.pytorchReplicaSpecs.Worker.restartPolicy", "Never"),
    Bad("loss-fails-job", _TF, "spec.enableDynamicWorker", None),
    Bad("loss-fails-job", _TF, "spec.tfReplicaSpecs.PS", {"template": template()}),
    Bad("worker-not-replaced", _TRAINING, "spec.etReplicaSpecs.worker.restartPolicy", None),
    Bad("failure-is-final", _TRAINING, "spec.restartPolicy", "Never"),
    Bad("failure-is-final", _JOB_SET, "spec.failurePolicy", None),
    Bad("failure-is-final", _TRAIN_JOB, "items.0.spec.template.spec.failurePolicy", None),
    *(Bad("no-retries", kind, "spec.backoffLimit", 0) for kind in (_TRAINING, _JOB)),
    *(Bad("no-retries", kind, "spec.runPolicy.backoffLimit", 0) for kind in (_MPI, _PYTORCH, _TF)),
    Bad("no-retries", _JOB_SET, "spec.failurePolicy.maxRestarts", 0),
    Bad("no-retries", _TRAIN_JOB, "items.0.spec.template.spec.failurePolicy.maxRestarts", 0),
    Bad("no-retries", _VOLCANO, "spec.maxRetry", 0),
    *(Bad("no-torchrun-restarts", *_script(kind, _NO_RESTARTS)) for kind in _TRAIN_TORCH),
    Bad("no-torchrun-restarts", _PYTORCH, _POLICY, {}),
    Bad("eviction-counts", _JOB, "spec.podFailurePolicy", None),
    Bad("eviction-counts", _JOB, "spec.podFailurePolicy.rules.0.action", "Count"),
    Bad("eviction-fails-job", _JOB, "spec.podFailurePolicy.rules.0.action", "FailJob"),
    Bad("preemption-ends-processes", _PYTORCH, "metadata.labels", _QUEUED),
    Bad("eviction-restarts-job", _VOLCANO, "spec.policies.0", {"event": "PodEvicted", "action": "RestartJob"}),
    Bad("eviction-restarts-job", _VOLCANO, "spec.policies.0", {"events": ["*"], "action": "AbortJob"}),
    Bad("eviction-restarts-job", _VOLCANO, "spec.tasks.0.policies", [{"event": "PodFailed", "action": "TerminateJob"}]),
    Bad("rendezvous-standalone", _PYTORCH, f"{_POLICY}.standalone", _YES),
    *(Bad("rendezvous-standalone", *_script(kind, _STANDALONE)) for kind in (_PYTORCH, _TF, _VOLCANO)),
    Bad("rendezvous-store-on-worker", _PYTORCH, f"{_POLICY}.rdzvBackend", None),
    *(Bad("rendezvous-store-on-worker", *_script(kind, _C10D)) for kind in _TRAIN_TORCH),
    *(Bad("rendezvous-notices-late", *_script(kind, _NO_RESTARTS)) for kind in _TRAIN_TORCH),
    Bad("fixed-processes", *_script(_TRAINING, f"{ARENA} -np 8 python train.py")),
    Bad("fixed-processes", *_script(_TRAINING, "horovodrun --num-proc=8 python train.py")),
    Bad("fixed-processes", *_script(_MPI, f"{HOROVODRUN} -np 4 python train.py")),
    Bad("fixed-processes", *_script(_MPI, "mpirun --allow-run-as-root -np 4 python train.py")),
    *(Bad("fixed-nodes", *_script(kind, _FIXED)) for kind in _TRAIN_TORCH),
    Bad("fixed-nodes", _PYTORCH, _POLICY, None),
    *(Bad("static-hosts", *_script(kind, "horovodrun -np $N python train.py")) for kind in (_TRAINING, _MPI)),
    Bad("static-hosts", *_script(_MPI, "mpirun -np $N python train.py")),
    Bad("slots-unknown", *_script(_MPI, HOROVODRUN.replace("--slots-per-host 1 ", "") + " python train.py")),
    Bad("no-room-to-shrink", _TRAINING, "spec.etReplicaSpecs.worker.minReplicas", 8),
    Bad("no-room-to-shrink", _TRAINING, "spec.etReplicaSpecs.worker.minReplicas", None),
    Bad("no-room-to-shrink", _MPI, "metadata.annotations", {MANAGED: "true"}),
    Bad("no-room-to-shrink", _PYTORCH, f"{_POLICY}.minReplicas", 4),
    Bad("gang-above-minimum", _PYTORCH, "spec.runPolicy.schedulingPolicy.minAvailable", 4),
    Bad("gang-above-minimum", _MPI, "spec.runPolicy.schedulingPolicy.minAvailable", 5),
    Bad("gang-above-minimum", _VOLCANO, "metadata.annotations", {MANAGED: "true", f"{PREFIX}min-workers": "1"}),
    *(
        Bad("gang-above-minimum", kind, "spec.suspend", _NO, CheckedFacts(gang="PodGroup a demands it."))
        for kind in GOOD
    ),
    *_each("launcher-on-spot", _LAUNCHERS, "spec.nodeSelector", {"karpenter.sh/capacity-type": "spot"}),
    *_each("launcher-on-spot", _LAUNCHERS, "metadata.labels", {"alibabacloud.com/compute-qos": "best-effort"}),
]

BAD_COMMANDS = [
    ("rank-unknown", "kubeai-run --job a --max-workers 4 -- kubeai-each-host -- python train.py"),
    ("exit-code-hidden", "sh -c 'torchrun --rdzv-backend=kubeai --nnodes=1:4 train.py; exit 0'"),
    ("save-grace-too-short", "kubeai-run --job a --max-workers 4 --save-grace 10 -- python train.py"),
    ("no-retries", "kubeai-run --job a --max-workers 4 --back-off-limit=0 -- python train.py"),
    ("no-torchrun-restarts", "torchrun --rdzv-backend=c10d --rdzv-endpoint=a:1 --nnodes=1:4 train.py"),
    (
        "rendezvous-standalone",
        f"kubeai-run --job a --max-workers 4 -- kubeai-each-host -- {TORCHRUN} --standalone t.py",
    ),
    ("rendezvous-standalone", f"PET_STANDALONE=1 {TORCHRUN} train.py"),
    ("rendezvous-store-on-worker", "python -m torch.distributed.run --rdzv_backend c10d --nnodes 1:2 train.py"),
    ("rendezvous-notices-late", "PET_RDZV_BACKEND=c10d PET_MAX_RESTARTS=9 torchrun --nnodes 1:2 train.py"),
    ("fixed-processes", "kubeai-run --job a --max-workers 4 -- horovodrun -np 4 python train.py"),
    ("fixed-nodes", "torchrun --rdzv-backend=kubeai --nnodes=4:4 train.py"),
    ("static-hosts", "horovodrun -np {workers} -H a:1,b:1 python train.py"),
    ("no-room-to-shrink", "kubeai-run --job a --min-workers 4 --max-workers 4 -- python train.py"),
]


@pytest.mark.parametrize("kind", GOOD)
def test_nothing_is_found_in_a_good_manifest(kind: CheckedKind) -> None:
    assert ids(found(GOOD[kind]())) == ALLOWED.get(kind, set())


@pytest.mark.parametrize("line", GOOD_COMMANDS)
def test_nothing_is_found_in_a_good_command_line(line: str) -> None:
    assert not found(line)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.rule}-{bad.kind}-{bad.path.rpartition('.')[2]}")
def test_a_bad_manifest_is_found(bad: Bad) -> None:
    (first, *_) = [each for each in found(bad.manifest, bad.facts) if each.rule == bad.rule]
    assert first.job == f"{bad.kind} training/resnet"
    assert first.where


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        (_PYTORCH, "spec.runPolicy.suspend", _YES),
        (_VOLCANO, "spec.tasks.0.replicas", 0),
        (_JOB, "spec.suspend", _YES),
        (_JOB, "metadata.labels", {}),
        (_JOB, "metadata.annotations", {MANAGED: "true"}),
    ],
)
def test_a_job_that_is_suspended_as_its_mark_says_is_none_that_a_hub_resumed(
    kind: CheckedKind, path: str, value: Any
) -> None:
    made = changed(GOOD[kind](), "metadata", _UNDONE)
    assert "hub-undid-suspension" in ids(found(made))
    assert "hub-undid-suspension" not in ids(found(changed(made, path, value)))


@pytest.mark.parametrize(("rule", "line"), BAD_COMMANDS)
def test_a_bad_command_line_is_found(rule: str, line: str) -> None:
    assert rule in ids(found(line))


@pytest.mark.parametrize(
    ("command", "is_found"),
    [
        ("torchrun train.py", True),
        ("trap 'kill -TERM $child' TERM; python train.py & child=$!; wait", True),
        ("tini -- python train.py", True),
        ("python train.py", False),
        ("horovodrun -np 4 python train.py", False),
    ],
)
def test_a_launcher_that_passes_sigterm_on_is_found_under_a_queue(
    command: str,
    is_found: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Not without a queue, which preempts nothing, and not where a hook gives the processes time before SIGTERM."""
    made = changed(GOOD[_JOB](), "spec.template.spec.containers.0.args", [command])
    queued = changed(made, "metadata.labels", _QUEUED)
    slept = changed(queued, "spec.template.spec.containers.0.lifecycle", {"preStop": {"sleep": {"seconds": 20}}})
    told = ["preemption-ends-processes" in ids(found(each)) for each in (made, queued, slept)]
    assert told == [False, is_found, False]


@pytest.mark.parametrize(("backend", "is_found"), [("kubeai", False), ("c10d", True), (None, True)])
def test_an_agent_that_waits_when_its_host_leaves_ends_no_job(
    backend: str | None,
    is_found: bool,  # noqa: FBT001 - a column of the table
) -> None:
    made = changed(GOOD[_PYTORCH](), "spec.pytorchReplicaSpecs.Master", None)
    assert ("one-success-ends-job" in ids(found(changed(made, f"{_POLICY}.rdzvBackend", backend)))) is is_found


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.rule in _SIZES], ids=lambda bad: f"{bad.rule}-{bad.kind}")
def test_a_job_that_holds_its_number_of_workers_may_name_one_number(bad: Bad) -> None:
    assert bad.rule not in ids(found(changed(bad.manifest, "metadata.annotations", {MANAGED: "true", ON_LOSS: "hold"})))


@pytest.mark.parametrize(("rule", "line"), [each for each in BAD_COMMANDS if each[0] in _SIZES])
def test_a_command_that_holds_its_number_of_workers_may_name_one_number(rule: str, line: str) -> None:
    holds = "kubeai-run --job a --max-workers 4 --on-loss hold"
    command = line.partition(" -- ")[2] or line
    assert rule not in ids(found(f"{holds} --min-workers 4 -- {command}"))


@pytest.mark.parametrize("kind", [_TRAINING, _MPI])
def test_a_job_that_opts_in_nowhere_is_found(kind: CheckedKind) -> None:
    """And is not told of its templates as well."""
    made = changed(GOOD[kind](), "metadata.annotations", None)
    for path in (_TEMPLATES[kind], _LAUNCHERS[kind]):
        made = changed(made, f"{path}.metadata.annotations", None)
    assert "not-opted-in" in ids(found(made))
    assert "pods-not-opted-in" not in ids(found(made))


def test_a_job_that_opts_out_is_meant_to_be_left_alone() -> None:
    """Whatever its templates say; so none of its pods has to opt in either."""
    for annotations in ({MANAGED: "false"}, {MANAGED: "false", SPOT: "true"}, {SPOT: "false"}):
        made = changed(GOOD[_TRAINING](), "metadata.annotations", annotations)
        assert not ids(found(made)) & {"not-opted-in", "pods-not-opted-in", "annotation-ignored"}


def test_every_rule_has_a_bad_manifest_or_command_line() -> None:
    tried = {bad.rule for bad in BAD} | {rule for rule, _ in BAD_COMMANDS} | {"not-opted-in"}
    assert tried == {rule.id for rule in RULES}


def test_the_worst_is_first() -> None:
    made = changed(
        changed(GOOD[_TRAINING](), "spec.restartPolicy", "Never"), "spec.etReplicaSpecs.worker.minReplicas", 8
    )
    made = changed(made, f"{_TEMPLATES[_TRAINING]}.metadata.annotations", None)
    assert [each.severity for each in found(made)] == list(FindingSeverity)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.rule}-{bad.kind}-{bad.path.rpartition('.')[2]}")
def test_problem_and_fix_are_sentences(bad: Bad) -> None:
    for each in found(bad.manifest, bad.facts):
        assert each.problem.endswith(".")
        assert each.fix.endswith(".")


def test_a_measured_checkpoint_is_called_so() -> None:
    facts = CheckedFacts(checkpoint_seconds=42.0, measured=True)
    (first, *_) = found(GOOD[_MPI](), facts)
    assert "a checkpoint takes 42 s as measured" in first.problem
    assert "killed 30 s (the default)" in first.problem


@pytest.mark.parametrize("has_servers", [False, True])
def test_a_tfjob_is_not_told_to_hide_its_workers_from_each_other(
    has_servers: bool,  # noqa: FBT001 - pytest names it
) -> None:
    """With enableDynamicWorker a worker sees parameter servers alone, and a strategy that needs the others fails."""
    made = changed(GOOD[_TF](), "spec.enableDynamicWorker", None)
    if has_servers:
        made = changed(made, "spec.tfReplicaSpecs.PS", {"template": template()})
    fixes = [each.fix for each in found(made) if each.rule == "loss-fails-job" and "Worker" in each.where]
    assert [fix.startswith("Set spec.enableDynamicWorker") for fix in fixes] == [has_servers]
