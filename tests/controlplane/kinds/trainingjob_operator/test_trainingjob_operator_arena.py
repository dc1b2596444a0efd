"""A job and scalings as Arena writes them, under our operator."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.trainingjob_operator.trainingjob_operator_process import defined, operating
from tests.controlplane.operator.operator_jobs import OperatorJobs, names
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

_LABELS = {"app": "etjob", "release": "j", "createdBy": "etjob"}


@pytest.fixture
def jobs(api: Api, namespace: Namespace, tmp_path: Path) -> OperatorJobs:
    return OperatorJobs(api, namespace, tmp_path)


async def submit(jobs: OperatorJobs, workers: int = 2) -> None:
    """A job of workers with two GPUs each. Lists of its templates are null where nothing was asked for."""

    def template(**container: Any) -> dict[str, Any]:
        first = {"name": "et", "image": "none", "env": None, "volumeMounts": None, **container}
        spec = {"nodeSelector": {OWNER_LABEL: jobs.namespace.name}, "volumes": None, "containers": [first]}
        return {"metadata": {"name": "j", "labels": _LABELS, "annotations": None}, "spec": spec}

    launcher = {"replicas": 1, "template": template(command=["sh", "-c", "horovodrun …"])}
    limited = {"requests": {GPU: "2"}, "limits": {GPU: "2"}}
    worker = {"replicas": workers, "minReplicas": 1, "maxReplicas": 4, "template": template(resources=limited)}
    body = {"backoffLimit": 6, "cleanPodPolicy": "Running", "etReplicaSpecs": {"launcher": launcher, "worker": worker}}
    await jobs.make("j", body, labels=_LABELS)


async def test_its_gpus_are_its_slots_and_its_pods_keep_the_labels_that_arena_looks_for(
    cluster: RunningCluster, namespace: Namespace, jobs: OperatorJobs
) -> None:
    await defined(cluster)
    await namespace.node()
    async with operating(cluster, namespace.name):
        await submit(jobs)
        await jobs.phase("j", "Running")
        assert (await jobs.config("j"))["hostfile"] == "j-worker-0:2\nj-worker-1:2\n"
        pods = await jobs.has_pods("j", *names("j", range(2)))
        asked = {**_LABELS, "group-name": "kai.alibabacloud.com"}
        assert all(asked.items() <= pod["metadata"]["labels"].items() for pod in pods.values())
        assert pods["j-launcher"]["metadata"]["labels"]["training-job-role"] == "launcher"


async def test_the_script_of_a_scaling_is_told_its_workers_and_fails_the_scaling_where_it_cannot_run(
    cluster: RunningCluster, namespace: Namespace, jobs: OperatorJobs, tmp_path: Path
) -> None:
    """The first launcher takes no commands; the job is looked after nevertheless."""
    (tmp_path / "scaler.sh").write_text('printf "%s " "$WHO" "$@" >> "$0.told"\n', encoding="ascii")
    asked = {"script": f"{tmp_path}/scaler.sh --by", "env": [{"name": "WHO", "value": "me"}], "timeout": 60}
    await defined(cluster)
    await namespace.node()
    async with operating(cluster, namespace.name):
        await submit(jobs)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleOut", "j-1", "j", toAdd={"count": 1}, **asked)
        await over(jobs, "ScaleOut", "j-1", "ScaleFailed")
        await jobs.phase("j", "Running", currentWorkers=names("j", range(2), launcher=False))

        await namespace.runs_commands("j-launcher", EDL=str(tmp_path))
        await jobs.scale("ScaleOut", "j-2", "j", toAdd={"count": 1}, **asked)
        await over(jobs, "ScaleOut", "j-2", "ScaleSucceeded")
        await jobs.scale("ScaleIn", "j-3", "j", toDelete={"count": 2}, **asked)
        await over(jobs, "ScaleIn", "j-3", "ScaleSucceeded")
    told = (tmp_path / "scaler.sh.told").read_text(encoding="ascii")
    assert told == "me --by j-worker-3:2 me --by j-worker-1:2,j-worker-3:2 "


async def test_keys_that_a_deleted_job_of_the_name_has_left_are_made_anew_when_they_go(
    cluster: RunningCluster, api: Api, namespace: Namespace, jobs: OperatorJobs
) -> None:
    """The job is created while the garbage collector has not come to the Secret; without keys its pods never start."""
    secrets = f"{namespace.path}/secrets"
    await defined(cluster)
    left = await api.create(secrets, {"metadata": {"name": "j"}, "data": {}})
    async with operating(cluster, namespace.name):
        await submit(jobs)
        await jobs.has_pods("j", *names("j", range(2), launcher=False))
        await api.delete(f"{secrets}/j")

        async def made_anew() -> bool:
            found = {one["metadata"]["name"]: one for one in (await api.get(secrets))["items"]}
            return "j" in found and found["j"]["metadata"]["uid"] != left["metadata"]["uid"]

        await until(made_anew, "the job has keys of its own")


async def over(jobs: OperatorJobs, kind: str, name: str, phase: str) -> None:
    async def ended() -> bool:
        return await jobs.scale_phase(kind, name) in ("ScaleSucceeded", "ScaleFailed")

    await until(ended, f"{name} is over")
    assert await jobs.scale_phase(kind, name) == phase
