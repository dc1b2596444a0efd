"""Real agents and training processes use only the files that a kubelet mounts into their pods."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from supervisor.domain.job import AcknowledgementKind, Phase, Stop, SupervisedJob
from tests.controlplane.identity.identity_world import IdentityPods, job_of, supervising
from tests.node_agent.agent_process import agent
from tests.sdk.sdk_scripts import SDK, TRAINING
from tests.supervisor.store.store_behaviour import put_job
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import until


def told_to_stop(known: SupervisedJob | None) -> SupervisedJob:
    """The job, whose rank 0 is told to stop now."""
    assert known is not None
    generation = known.decision.generation + 1
    stop = Stop(run=known.observed.run, generation=generation, since=time.time())
    return replace(known, decision=replace(known.decision, generation=generation, phase=Phase.STOPPING, stop=stop))


def ended(known: SupervisedJob | None) -> SupervisedJob:
    assert known is not None
    return replace(known, observed=replace(known.observed, running=False))


def trained(directory: Path) -> "subprocess.Popen[bytes]":
    """A training process as sshd starts it, but for where its identity is."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "KUBEAI_DIR": str(directory), "PYTHONPATH": str(SDK)}
    command = [sys.executable, "-u", "-c", textwrap.dedent(TRAINING).replace("init()", "init(rank=lambda: 0)")]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def mounted(directory: Path, **files: str) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


async def test_a_training_process_is_stopped_saves_and_is_let_go(
    here: InstalledPlace, pods: IdentityPods, tmp_path: Path
) -> None:
    owner = await pods.owner("train")
    token = await pods.token(await pods.pod("worker-0", owner))
    async with here.opened() as store, supervising(here, tmp_path / "supervisor") as running:
        await put_job(store, job_of(owner, "worker-0", run=5))
        await running.knows(owner.job)
        with trained(mounted(tmp_path / "kubeai", address=running.peers.http, token=token)) as process:
            try:
                await store.put_job(owner.job, told_to_stop)

                async def answered() -> Any:
                    return store.snapshot().jobs[owner.job].observed.acknowledgement

                answer = await until(answered, "its answer")
                assert (answer.kind, answer.run) == (AcknowledgementKind.LEFT, 5)
                assert process.poll() is None
                await store.put_job(owner.job, ended)
                assert process.wait(30) == 255
                assert process.stderr is not None
                assert b"the job stops" in process.stderr.read()
            finally:
                process.kill()


async def test_an_agent_needs_no_token_but_its_pods(here: InstalledPlace, pods: IdentityPods, tmp_path: Path) -> None:
    token = await pods.token(await pods.agent("node8"))
    files = mounted(tmp_path / "agent", token=token, announced="")
    async with supervising(here, tmp_path / "supervisor") as running:
        settings = {
            "NODE_AGENT_NODE_NAME": "node8",
            "NODE_AGENT_NODE_UID": "machine-8",
            "NODE_AGENT_SUPERVISOR": running.peers.grpc,
            "NODE_AGENT_TOKEN_FILE": str(files / "token"),
            "NODE_AGENT_SOURCES": "file",
            "NODE_AGENT_FILE_PATH": str(files / "announced"),
        }
        async with agent({**os.environ, **settings}):
            soon = datetime.now(UTC) + timedelta(minutes=5)
            (files / "announced").write_text(f"{soon:%Y-%m-%dT%H:%M:%SZ}")

            async def announced() -> bool:
                return [each["spec"]["subject"]["name"] for each in await here.notices()] == ["node8"]

            await until(announced, "the agent's notice")
