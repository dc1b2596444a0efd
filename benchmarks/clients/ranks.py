"""One simulated rank of a job in lockstep, with the SDK's rules, `kubeai.elastic.agreement`, and without I/O."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from kubeai.elastic.agreement import HeldPositions, RankPosition
from kubeai.elastic.messages import RankAnswer, StepPurpose, parse_agreement

from benchmarks.clients.lockstep import Lockstep


class RanksRun(msgspec.Struct, frozen=True):
    """What the ranks of a run have in common."""

    job: str
    hosts: list[str]
    world_size: int
    clock: Lockstep

    @property
    def ranks_per_host(self) -> int:
        return self.world_size // len(self.hosts)


class LoadRank:
    """What a rank knows, and when it learnt it (CLOCK_MONOTONIC; 0: never).

    Attributes:
        process: Its name on the wire.
        late_seconds: How late its answers are sent.
        ready: Done once it has received its first directive.
        committed: The step that it has committed itself to.
    """

    def __init__(self, run: RanksRun, number: int, late_seconds: float) -> None:
        self.process = f"{run.job}-{number}"
        self.late_seconds = late_seconds
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.committed: asyncio.Future[int] = loop.create_future()
        self.asked_at = 0.0
        self.proposed_at: dict[tuple[int, int], float] = {}
        self.committed_at = 0.0
        self._run = run
        self._number = number
        self._held = HeldPositions()

    def hello(self) -> Mapping[str, Any]:
        """Return the hello of its stream."""
        return {**self._identity(), "pid": 1, "step": None, "sdk": "benchmark"}

    def receive(self, message: Mapping[str, Any], now: float) -> RankPosition | None:
        """Handle a line, and return what is to be answered, if anything is."""
        if message.get("type") != "directive":
            return None
        if not self.ready.done():
            self.ready.set_result(None)
        before = self._held.positions.get(StepPurpose.STOP)
        self._held = self._held.receive(parse_agreement(message["agreement"]), self._run.clock.finished(now))
        position = self._held.positions.get(StepPurpose.STOP)
        if position is None or position == before:
            return None
        self._note(position, now)
        return position

    def report(self, message: Mapping[str, Any], position: RankPosition) -> Mapping[str, Any]:
        """Return the answer to a line, with the present step."""
        agreement, clock = position.agreement, self._run.clock
        about = {"kind": "agreement", "run": message["run"], "generation": message["generation"]}
        answer = {"epoch": agreement.epoch, "purpose": agreement.purpose, "at_step": agreement.step}
        present = {"step": clock.finished(time.monotonic()), "step_seconds": clock.step_seconds}
        return {**self._identity(), **about, **answer, **present, "answer": position.answer}

    def _note(self, position: RankPosition, now: float) -> None:
        self.asked_at = self.asked_at or now
        step = position.agreement.step
        if position.answer is RankAnswer.ACCEPTED and step is not None:
            self.proposed_at[position.agreement.epoch, step] = now
        if position.answer is RankAnswer.COMMITTED and step is not None and not self.committed.done():
            self.committed_at = now
            self.committed.set_result(step)

    def _identity(self) -> Mapping[str, Any]:
        run = self._run
        common = {"process": self.process, "host": run.hosts[self._number // run.ranks_per_host]}
        return {**common, "rank": self._number, "world_size": run.world_size, "agrees": ["stop"], "collective": True}
