"""Command lines and manifests are read as controllers and shells read them, and whatever else they hold."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.check.checking import check
from supervisor.check.command import launches_in
from supervisor.check.job import CheckedKind
from supervisor.check.manifests import job_of_command, jobs_in
from tests.supervisor.check.check_manifests import GOOD, OPTED_IN, Manifest, changed, found, ids, read, template

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

_WORDS = ["torchrun", "sh", "-c", "--", "'", '"', "$(", ")", "|", ";", "&", "=", "-np", "4"]


def _paths(value: object, path: str = "") -> list[str]:
    """Every path in a manifest."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [each for name, inner in items for each in _paths(inner, f"{path}.{name}" if path else str(name))]
    return [path, *below] if path else below


@settings(deadline=None)
@given(data=st.data(), kind=st.sampled_from(list(GOOD)), value=_VALUES)
def test_a_part_of_any_type_is_read(data: st.DataObject, kind: str, value: object) -> None:
    made = {name: each for key, build in GOOD.items() if key == kind for name, each in build().items()}
    path = data.draw(st.sampled_from([each for each in _paths(made) if "annotations." not in each]))
    for job in jobs_in(changed(made, path, value)):
        check(job)


@settings(deadline=None)
@given(line=st.text(max_size=80) | st.lists(st.sampled_from(_WORDS)).map(" ".join))
def test_any_command_line_is_read(line: str) -> None:
    launches_in(["sh", "-c", line])
    with suppress(ValueError):
        check(job_of_command(line))


@pytest.mark.parametrize(
    ("words", "programs"),
    [
        (["horovodrun", "-np", "4", "python", "train.py"], ["horovodrun"]),
        (["/usr/bin/mpiexec", "-n", "4"], ["mpirun"]),
        (["bash", "-lc", "set -e\ncd /a && exec torchrun --nnodes 2 \\\n  train.py # sh"], ["set", "cd", "torchrun"]),
        (["sh", "-c", "A=1 python3 -m torch.distributed.run train.py | tee log"], ["torchrun", "tee"]),
        (
            ["kubeai-run", "--job", "a", "--", "kubeai-each-host", "--", "torchrun"],
            ["kubeai-run", "kubeai-each-host", "torchrun"],
        ),
        (["sh", "-c", "torchrun 'train.py"], ["torchrun"]),
        (["A=1"], []),
        ([], []),
    ],
)
def test_launchers_are_found(words: list[str], programs: list[str]) -> None:
    assert [launch.program for launch in launches_in(words)] == programs


def test_the_last_option_counts_in_either_spelling() -> None:
    (launch,) = launches_in(["torchrun", "--rdzv_backend", "c10d", "--rdzv-backend=kubeai", "train.py", "--nnodes=7"])
    assert launch.option("--rdzv-backend") == "kubeai"
    assert launch.option("--nnodes") is None


def test_a_shell_in_a_shell_is_read_until_some_depth() -> None:
    script = "torchrun train.py"
    for _ in range(9):
        script = "sh -c '" + script.replace("'", "'\\''") + "'"
    assert launches_in(["sh", "-c", script]) == ()


def _pytorch_job(**policy: object) -> Manifest:
    worker = {"replicas": 3, "template": template()}
    spec = {"elasticPolicy": policy, "pytorchReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": spec}


def test_a_pytorch_job_has_the_settings_that_its_operator_gives_it() -> None:
    """Also with the command of the image, which the manifest does not show."""
    (agent,) = read(_pytorch_job(minReplicas=2)).elastic_agents()
    assert (agent.backend, agent.endpoint, agent.nodes, agent.max_restarts) == ("c10d", "a-worker-0:23456", "2:3", 0)
    policy = {"maxRestarts": 3, "rdzvBackend": "kubeai", "rdzvHost": "h", "rdzvPort": 1, "standalone": True}
    (agent,) = read(_pytorch_job(**policy)).elastic_agents()
    assert (agent.backend, agent.endpoint, agent.max_restarts, agent.standalone) == ("kubeai", "h:1", 3, True)


def test_a_variable_of_the_container_is_a_fixed_number() -> None:
    made = GOOD[next(kind for kind in GOOD if kind == "MPIJob")]()
    container = made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    container |= {"args": [container["args"][0].replace("$(wc -l </etc/mpi/hostfile)", "${SIZE}")]}
    assert "fixed-processes" not in ids(found(made))
    container["env"] = [{"name": "SIZE", "value": "4"}]
    assert "fixed-processes" in ids(found(made))


def test_lists_have_their_jobs_and_other_objects_none() -> None:
    """Also a list in a list, as a TrainJob and its runtime are one here."""
    jobs = [build() for build in GOOD.values()]
    (service, wrong) = {"apiVersion": "v1", "kind": "Service"}, {"apiVersion": "apps/v1", "kind": "Job"}
    made = {"apiVersion": "v1", "kind": "List", "items": [*jobs, service, wrong, None, 7]}
    assert [job.kind for job in jobs_in(made)] == list(GOOD)


def test_a_train_job_has_the_pods_of_its_runtime_with_its_own_command() -> None:
    made = changed(
        GOOD[CheckedKind.TRAIN_JOB](), "items.1.spec.trainer.command", ["torchrun", "--standalone", "train.py"]
    )
    made = changed(made, "items.1.spec.trainer.args", [])
    (role,) = read(changed(made, "items.1.spec.trainer.env", [{"name": "SIZE", "value": "4"}])).roles
    assert role.path == "ClusterTrainingRuntime torch: spec.template.spec.replicatedJobs[0].template.spec"
    assert role.texts == ("torchrun --standalone train.py",)
    assert role.environment == {"SIZE": "4"}


def test_a_train_job_has_the_patches_of_its_runtime_before_its_own_command() -> None:
    """What Trainer 2.2 and later merge: items of lists by their names, and other values as they are."""
    sidecar, main = {"name": "log", "image": "log"}, {"name": "main", "env": [{"name": "SIZE", "value": "4"}]}
    metadata = {"annotations": OPTED_IN}
    pods = {"metadata": metadata, "spec": {"containers": [sidecar, main], "tolerations": [{"key": "spot"}]}}
    unknown = {"manager": "example.com/b", "trainingRuntimeSpec": {"template": {"spec": None}}}
    patch = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": pods}}}]}
    patches = [{"manager": "example.com/a", "trainingRuntimeSpec": {"template": {"spec": patch}}}, unknown, None, 7]
    made = changed(GOOD[CheckedKind.TRAIN_JOB](), "items.1.spec.runtimePatches", patches)
    made = changed(made, "items.0.spec.template.spec.replicatedJobs.0.template.spec.template.metadata", None)
    (role,) = read(changed(made, "items.1.spec.trainer.env", [{"name": "RANKS", "value": "8"}])).roles
    assert role.annotations == OPTED_IN
    assert role.environment == {"SIZE": "4", "RANKS": "8"}
    assert len(role.texts) == 2


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("items.0.metadata.name", "other"),
        ("items.0.kind", "TrainingRuntime"),
        ("items.0.apiVersion", "v1"),
        ("items.1.spec.runtimeRef", None),
    ],
)
def test_without_its_runtime_nothing_is_said_of_the_pods_of_a_train_job(path: str, value: object) -> None:
    made = changed(
        changed(GOOD[CheckedKind.TRAIN_JOB](), "items.0.spec.template.spec.failurePolicy", None), path, value
    )
    assert not found(made)
    assert not read(made).roles


def test_a_job_that_prepares_the_training_needs_nothing() -> None:
    """Others wait for it to complete."""
    made = GOOD[CheckedKind.JOB_SET]()
    (worker,) = made["spec"]["replicatedJobs"]
    fetch = {"name": "fetch", "template": {"spec": {"template": {"spec": {"containers": [{"name": "main"}]}}}}}
    after = [{"name": "fetch", "status": "Complete"}]
    assert not found(changed(made, "spec.replicatedJobs", [fetch, {**worker, "dependsOn": after}]))
    assert ids(found(changed(made, "spec.replicatedJobs", [fetch, worker]))) >= {"kind-not-supervised"}
