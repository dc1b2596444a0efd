"""Jobs of the real frameworks: four processes on CPUs under torchrun, kubeai-run, a supervisor and node agents.

script = Script(frameworks, example("ddp.py"), (str(tmp_path / "checkpoint"), "60"))
whole = await run_alone(tmp_path / "alone", replace(script, arguments=…))
async with training(tmp_path, script) as job:
    await job.suspend_and_resume(step=20)
    assert_goes_on_exactly(whole, await job.finish())
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from kubeai.elastic.testing import FakeSupervisor

from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import CloudChild, Leftover, end, environment, leftovers, spawn
from simulator.cloud.schedule import ScheduledNotice, Withdraw
from simulator.cloud.trace import Node
from simulator.harness import ReplayWorld, ServiceSettings, world
from simulator.services import JobProcess, ServedJobPlan
from simulator.status import ReadJobStatus
from tests.frameworks.frameworks_losses import Curve, curves, steps_of
from tests.testkit.waiting import until, wait_until

PROCESSES = 4
LEAD = 40.0
"""Seconds from a notice to the end of its host. A busy machine takes some ten for an agreement and a save."""
_AHEAD = 12
"""Steps to a faked agreement: a busy machine takes as long for two rounds."""
RUN_SECONDS = 240.0
"""A run takes 10 to 40 s, nearly all of it for the imports of four processes on two cores."""

# What the supervisor says of a stop while ranks are on their way to a step.
_AGREEING = re.compile(r"stop at one step|save after step")
_CHECKOUT = Path(__file__).parents[2]
_DOOMED = Node("node2")


def example(name: str) -> Path:
    """The path of an example of the SDK."""
    return _CHECKOUT / "sdk" / "examples" / name


@dataclass(frozen=True, slots=True)
class FrameworksScript:
    """A training script as its user would start it, with four processes.

    Attributes:
        home: The environment that has the frameworks.
        path: The script.
        arguments: Its arguments.
        processes: How many torchrun starts.
        step_seconds: Minimum duration of a step in the first run, in which a test disturbs the job.
        cut_off: A rank that cannot reach the supervisor.
        agrees: Whether ranks stop at one agreed step, or each as soon as it is told.
        variables: Further variables of its environment.
    """

    home: Path
    path: Path
    arguments: tuple[str, ...] = ()
    processes: int = PROCESSES
    step_seconds: float = 0.1
    cut_off: int | None = None
    agrees: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        # On a port of its own: the oldest torch else takes one that is always the same, as another job may have.
        torchrun = [str(self.home / "bin" / "python"), "-m", "torch.distributed.run", "--standalone"]
        process = str(Path(__file__).with_name("frameworks_process.py"))
        return [*torchrun, "--nproc-per-node", str(self.processes), process, str(self.path), *self.arguments]

    def environment(self, losses: Path) -> dict[str, str]:
        return {
            "PYTHONPATH": os.pathsep.join([str(_CHECKOUT / "sdk"), str(_CHECKOUT)]),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            # Torch's rendezvous hangs with it when it is made again.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "KERAS_BACKEND": "torch",
            "DS_ACCELERATOR": "cpu",
            # Else it is cpu:0, to which the oldest torch loads no checkpoint.
            "ACCELERATE_TORCH_DEVICE": "cpu",
            # DeepSpeed compiles an operator at its first use on CPUs.
            "TORCH_EXTENSIONS_DIR": str(self.home / "torch_extensions"),
            "HF_HUB_OFFLINE": "1",
            "FRAMEWORKS_LOSSES": str(losses),
            "FRAMEWORKS_STEP_SECONDS": str(self.step_seconds),
            **({} if self.cut_off is None else {"FRAMEWORKS_CUT_OFF": str(self.cut_off)}),
            **({} if self.agrees else {"FRAMEWORKS_DISAGREE": "1"}),
            **self.variables,
        }


async def run_alone(root: Path, script: FrameworksScript, seconds: float = RUN_SECONDS) -> Curve:
    """Run the script to its end, without a supervisor and undisturbed; returns its losses."""
    losses = _losses(root)
    at_once = replace(script, step_seconds=0.0)
    with _spawned(root, at_once, losses, {"KUBEAI_DIR": os.devnull}) as child:
        assert await child.wait(seconds) == 0, child.tail()
    (curve,) = curves(losses)
    return curve


@dataclass(frozen=True, slots=True)
class FakedTraining:
    """The script under torchrun, which speaks with a fake supervisor.

    Attributes:
        supervisor: Sends what the test tells it to.
        child: torchrun.
        losses: Directory of the recorded losses.
        processes: How many torchrun has started.
        run: The number of this run.
    """

    supervisor: FakeSupervisor
    child: CloudChild
    losses: Path
    processes: int
    run: int

    async def until_step(self, step: int) -> None:
        """Wait until all ranks have begun so many steps."""
        await _until_step(self.child, self.losses, self.processes, self.run, step)

    async def until_begun(self, rank: int, step: int) -> None:
        """Wait until a rank has begun so many steps, or the training has ended."""

        def begun() -> bool:
            found = curves(self.losses)
            return not self.child.running or len(found[self.run - 1].get(rank, ())) >= step

        await until(begun, self.child.tail, seconds=RUN_SECONDS, every=0.01)

    def agree_on(self, is_wanted: Callable[[int], bool]) -> int:
        """Agree with all ranks to stop at a step that is wanted, some way ahead; returns it. Blocks."""
        supervisor = self.supervisor
        supervisor.propose(1)
        known = supervisor.wait_for(lambda: self._answered(1))
        step: int = next(filter(is_wanted, count(max(answer["step"] for answer in known) + _AHEAD)))
        supervisor.propose(2, step)
        answers = supervisor.wait_for(lambda: self._answered(2))
        assert {answer["answer"] for answer in answers} == {"accepted"}
        supervisor.commit(2, step)
        return step

    def until_left(self) -> None:
        """Wait until all ranks are about to exit. Blocks."""
        self.supervisor.wait_for(lambda: len(self.supervisor.reports_of("left")) >= self.processes)

    async def end(self, seconds: float = 60.0) -> int:
        """Release all ranks; returns torchrun's exit code."""
        self.supervisor.direct(directive="STOP", release=True)
        return await self.child.wait(seconds)

    def curves(self) -> list[Curve]:
        """The losses of each run so far."""
        return curves(self.losses)

    def _answered(self, epoch: int) -> list[dict[str, Any]]:
        answers = list(self.supervisor.answers_of(epoch).values())
        return answers if len(answers) == self.processes else []


@contextmanager
def faked(root: Path, script: FrameworksScript, run: int = 1) -> Iterator[FakedTraining]:
    """Start the script with a fake supervisor, as one run of a job. Processes that still run at the end are killed."""
    directory = root / f"identity-{run}"
    directory.mkdir()
    losses = _losses(root)
    with FakeSupervisor() as supervisor:
        supervisor.write_identity(directory, run=run)
        identity = {"KUBEAI_DIR": str(directory), "KUBEAI_RUN": str(run)}
        with _spawned(root, script, losses, identity) as child:
            yield FakedTraining(supervisor, child, losses, script.processes, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FrameworksPlan(ServedJobPlan):
    """The script on two hosts, both of which it needs."""

    script: FrameworksScript

    def command(self, paths: CloudPaths, supervisor_url: str, token: Path) -> list[str]:
        framework = ("--framework", "torchrun", "--save-grace", "20")
        return [*self._run(paths, supervisor_url, token), *framework, "--", *self.script.command()]


@dataclass(frozen=True, slots=True)
class FrameworksTraining:
    """A job of the script in a world of its own.

    Attributes:
        world: Its supervisor, hosts and agents.
        job: The job under kubeai-run.
        losses: Directory of the recorded losses.
        processes: How many the job has.
    """

    world: ReplayWorld
    job: JobProcess
    losses: Path
    processes: int

    def curves(self) -> list[Curve]:
        """The losses of each run so far."""
        return curves(self.losses)

    async def until_step(self, step: int, run: int = 1) -> None:
        """Wait until all ranks of the run have begun so many steps of it."""
        await _until_step(self.job.child, self.losses, self.processes, run, step)

    async def notice(self, lead: float = LEAD) -> None:
        """Announce that a host, and half of the ranks with it, is gone after `lead` seconds."""
        await self.world.play([ScheduledNotice(0, _DOOMED, lead, "group")])

    async def until_agreeing(self, seconds: float = RUN_SECONDS) -> ReadJobStatus:
        """Wait until the ranks are asked for a step, or have agreed on one that they have not reached."""
        return await self._until(lambda job: bool(_AGREEING.search(job.reason)), "agreeing", seconds)

    async def until_suspended(self, seconds: float = RUN_SECONDS) -> ReadJobStatus:
        """Wait until the job is suspended."""
        return await self._until(lambda job: job.phase == "Suspended", "suspended", seconds)

    async def give_back(self) -> None:
        """Withdraw the notice, so that the job gets its host back."""
        await self.world.play([Withdraw(0, _DOOMED)])

    async def suspend_and_resume(self, step: int, lead: float = LEAD) -> None:
        """Announce a reclaim at a step, wait until the job is suspended, and give it its host back."""
        await self.until_step(step)
        await self.notice(lead)
        await self.until_suspended()
        await self.give_back()

    async def finish(self, seconds: float = RUN_SECONDS) -> list[Curve]:
        """Wait for the end of the job; returns the losses of its runs."""
        assert await self.job.wait(seconds) == 0, self.job.child.tail()
        return self.curves()

    def stall(self, *ranks: int) -> None:
        """Let these ranks stand still in front of their next step."""
        for rank in ranks:
            (self.losses / f"stall-{rank}").touch()

    def go_on(self) -> None:
        """Let all ranks go on."""
        for file in self.losses.glob("stall-*"):
            file.unlink()

    async def status(self) -> ReadJobStatus:
        status = (await self.world.status()).job(self.job.plan.name)
        assert status is not None
        return status

    async def _until(self, condition: Callable[[ReadJobStatus], bool], what: str, seconds: float) -> ReadJobStatus:
        def holds(job: ReadJobStatus | None) -> bool:
            self.job.child.check()
            return job is not None and condition(job)

        name = self.job.plan.name
        status = await self.world.until(lambda status: holds(status.job(name)), f"{name} to be {what}", seconds)
        found = status.job(name)
        assert found is not None
        return found


@asynccontextmanager
async def training(
    root: Path, script: FrameworksScript, settings: Mapping[str, str] | None = None
) -> AsyncIterator[FrameworksTraining]:
    """Start a job of the script in a new world; `settings` are variables of its supervisor.

    The job is stopped as soon as that is certain, as just in time it would be done before. At the end everything is
    stopped. A process that survives that is an error.
    """
    losses = _losses(root)
    settings = {"JOB_SUPERVISOR_JUST_IN_TIME": "false", **(settings or {})}
    async with world(root / "world", ["node1", _DOOMED], settings=ServiceSettings(settings)) as one:
        job = one.start_job(_FrameworksPlan(min_workers=2, max_workers=2, script=script), script.environment(losses))
        yield FrameworksTraining(one, job, losses, script.processes)


def undisturbed(script: FrameworksScript) -> FrameworksScript:
    """The same script without disturbance."""
    return replace(script, cut_off=None, agrees=True)


def _losses(root: Path) -> Path:
    directory = root / "losses"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


async def _until_step(child: CloudChild, losses: Path, processes: int, run: int, step: int) -> None:
    def begun() -> bool:
        child.check()
        found = curves(losses)
        return len(found) >= run and len(found[run - 1]) == processes and steps_of(found[run - 1]) >= step

    await until(begun, child.tail, seconds=RUN_SECONDS, every=0.05)


@contextmanager
def _spawned(root: Path, script: FrameworksScript, losses: Path, variables: Mapping[str, str]) -> Iterator[CloudChild]:
    env = environment(root, {**script.environment(losses), **variables})
    child = spawn("torchrun", script.command(), env, root / "logs" / "torchrun.log")
    try:
        yield child
    finally:
        # Torchrun's workers have sessions of their own, and the next one may be starting.
        wait_until(lambda: not _killed(root) and not child.running, "no process to be left")


def _killed(root: Path) -> list[Leftover]:
    left = leftovers(root)
    for one in left:
        end(one.pid, root)
    return left
