"""A rank of a simulated job: it uses the SDK's own state and messages, and the simulation takes turns for its threads.

The training thread calls the SDK's `should_stop` and `should_checkpoint`. Where they would wait, the rank waits for its
next turn.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from kubeai.elastic import gates
from kubeai.elastic.agreement import RankPosition
from kubeai.elastic.messages import (
    AgreementReply,
    ProcessHello,
    ProcessReport,
    ProcessReportKind,
    StepPurpose,
    parse_line,
)
from kubeai.elastic.monitor import Monitor
from kubeai.elastic.reporter import StepTimer

from tests.agreement.agreement_network import DelayedStream, Network

COMMIT_SECONDS = 2.0
_TICK_SECONDS = 0.5
_UNREAD_SECONDS = 10.0
_ASKED = (StepPurpose.STOP, StepPurpose.CHECKPOINT)
_CELLS = ("_step", "_gates", "_stop_gate", "_checkpoint_gate", "_regroup_gate", "_arrive")


class _Waits(Exception):  # noqa: N818 - the training thread waits
    """The call waits at its gate."""


class RankJob(Protocol):
    """What a rank needs of the world around it."""

    def connect(
        self, rank: "SimulatedRank", hello: Mapping[str, Any], opened: Callable[[], None]
    ) -> DelayedStream | None: ...

    def deliver(self, rank: "SimulatedRank", body: Mapping[str, Any]) -> bool: ...

    def arbitrate(self, epoch: int, *, go_through: bool) -> bool | None: ...

    def is_ready(self, rank: "SimulatedRank") -> None: ...

    def begins_save(self, rank: "SimulatedRank", purpose: StepPurpose) -> None: ...


class SimulatedRank:
    def __init__(self, number: int, world_size: int, network: Network, job: RankJob, *, collective: bool) -> None:
        self.number = number
        self.monitor = Monitor()
        self.step = 0
        self.is_dead = False
        self.frozen_until = 0.0
        """Its interpreter does nothing before."""
        self.cut_until = 0.0
        """Nothing comes through before."""
        self.passed = {StepPurpose.STOP: 0, StepPurpose.CHECKPOINT: 0}
        """The last step at which each function returned False."""
        self.acted: list[tuple[StepPurpose, int, int]] = []
        """Purpose, epoch and step of each agreed stop and checkpoint."""
        self.has_stopped_alone = False
        self.waits: list[float] = []
        """How long the calls waited."""
        self._network = network
        self._job = job
        self._clock = StepTimer()
        self._cells: dict[str, Any] = {
            "_step": None,
            "_gates": dict(gates._gates),
            "_stop_gate": gates.ALWAYS,
            "_checkpoint_gate": gates.ALWAYS,
            "_regroup_gate": gates.ALWAYS,
            "_arrive": self._arrive,
        }
        self._questions: deque[StepPurpose] = deque()
        self._waits_for: RankPosition | None = None
        self._waits_since = 0.0
        self._stream: DelayedStream | None = None
        self._attempts = 0
        self._posting: set[str] = set()
        self._repeat_at = 0.0
        if collective:
            self.monitor.set_member(collective=True)
        self.monitor.set_rank(number, world_size)

    @property
    def is_stopped(self) -> bool:
        """Whether it has been told to stop, alone or with all others."""
        return self.has_stopped_alone or any(purpose is StepPurpose.STOP for purpose, _, _ in self.acted)

    @property
    def is_reachable(self) -> bool:
        return not self.is_dead and self._now >= self.cut_until

    def start(self) -> None:
        self.connect()
        self._tick()

    # The training thread.

    def finish_step(self) -> None:
        """Finishes a step and asks both questions."""
        if self._is_frozen(self.finish_step):
            return
        self.step += 1
        self._questions.extend(_ASKED)
        self._ask()

    def finish_save(self) -> None:
        """Has written the checkpoint of the present step, and goes on, or leaves."""
        if self._is_frozen(self.finish_save):
            return
        with self._turn():
            self.monitor.checkpoint_saved(self.step, None)
        self._pump()
        if self.is_stopped:
            self._leave()
        else:
            self._ask()

    def _ask(self) -> None:
        while self._questions:
            purpose = self._questions[0]
            try:
                with self._turn():
                    asked = gates.should_stop if purpose is StepPurpose.STOP else gates.should_checkpoint
                    wants = asked(self.step)
            except _Waits:
                return
            self._questions.popleft()
            self._end_wait()
            self._pump()
            if wants:
                self._act(purpose)
                return
            self.passed[purpose] = self.step
        self._job.is_ready(self)

    def _act(self, purpose: StepPurpose) -> None:
        position = self.monitor.agreements.held.positions.get(purpose)
        if self.monitor.state.is_agreed and position is not None:
            self.acted.append((purpose, position.agreement.epoch, self.step))
        elif purpose is StepPurpose.STOP:
            self.has_stopped_alone = True
        if purpose is StepPurpose.STOP:
            self._questions.clear()
        self._job.begins_save(self, purpose)

    def _arrive(self, purpose: StepPurpose, step: int) -> bool:
        """`AgreedStep.arrive`, but for the way it waits."""
        self.monitor.join(purpose)
        position = self.monitor.wait_at(purpose, step, 0.0)
        if self._must_wait(position):
            raise _Waits
        if position is not None:
            outcome = self._job.arbitrate(position.agreement.epoch, go_through=position.is_committed)
            if self.monitor.settle(position, outcome=outcome):
                return True
        return self.monitor.wants_alone(purpose)

    def _must_wait(self, position: RankPosition | None) -> bool:
        if position is None or position.is_committed or self.monitor.state.directive.is_final:
            return False
        if self._waits_for is None:
            assert self.step >= (position.agreement.step or 0), "waits before the step"
            self._waits_for, self._waits_since = position, self._now
            self._network.timeline.after(COMMIT_SECONDS, self._wake)
        return position is self._waits_for and self._now < self._waits_since + COMMIT_SECONDS

    def _end_wait(self) -> None:
        if self._waits_for is not None:
            self.waits.append(self._now - self._waits_since)
            self._waits_for = None

    def _wake(self) -> None:
        if self._waits_for is not None and not self._is_frozen(self._wake):
            self._ask()

    # The listener.

    def connect(self) -> None:
        """Opens a stream, again and again."""
        if self.is_dead or self._is_frozen(self.connect):
            return
        monitor = self.monitor
        hello = ProcessHello(monitor.member, monitor.step, monitor.agreements.held.newest())

        def opened() -> None:
            self._attempts = 0
            self.monitor.set_stream(hello.member)
            self._pump()

        self._stream = self._job.connect(self, {**self._identity(), "pid": 1, **hello.fields()}, opened)
        if self._stream is None:
            self._attempts += 1
            self._network.timeline.after(self._network.pause(self._attempts), self.connect)

    def cut(self) -> None:
        """Loses its stream."""
        if self._stream is not None:
            self._stream.cut()

    def lost(self) -> None:
        """Notices that its stream has ended."""
        self.monitor.set_stream(None)
        self._network.timeline.after(self._network.pause(0), self.connect)

    def receive(self, message: Mapping[str, Any]) -> None:
        """Applies a line."""
        if self.is_dead or self._is_frozen(lambda: self.receive(message)):
            return
        with self._turn():
            self.monitor.receive(parse_line(message))
        self._pump()
        self._wake()

    # The threads that report.

    def _tick(self) -> None:
        if self.is_dead:
            return
        pace = self._clock.sample(self._cells["_step"], self._now)
        is_unread = pace.unread_seconds is not None and pace.unread_seconds >= _UNREAD_SECONDS
        if is_unread and self.monitor.is_awaited and self._now >= self._repeat_at:
            self._repeat_at = self._now + _UNREAD_SECONDS
            self.monitor.repeat_replies()
        self._pump()
        self._network.timeline.after(_TICK_SECONDS, self._tick)

    def _pump(self) -> None:
        """Sends what is to be said, one message of each thread at a time."""
        reply = self.monitor.next_reply()
        if reply is not None:
            self._post("reply", self._reply, lambda: self.monitor.confirm_reply(reply))
        report = self.monitor.next_report()
        if report is not None:
            self._post("report", report.fields, lambda: self.monitor.confirm(report))

    def _leave(self) -> None:
        self._post("left", lambda: self.monitor.left().fields(), lambda: None)

    def _reply(self) -> Mapping[str, Any]:
        position = self.monitor.next_reply()
        assert position is not None
        while self.monitor.saves:
            self._clock.saves.append(self.monitor.saves.popleft())
        pace = self._clock.sample(self._cells["_step"], self._now)
        generation = self.monitor.state.directive.generation
        reply = AgreementReply(position, self._cells["_step"], pace)
        return ProcessReport(ProcessReportKind.AGREEMENT, self.monitor.member, None, generation, reply).fields()

    def _post(
        self, thread: str, fields: Callable[[], Mapping[str, Any]], confirm: Callable[[], None], attempt: int = 0
    ) -> None:
        if thread in self._posting or self.is_dead or self._now < self.frozen_until:
            return
        self._posting.add(thread)
        body = {**self._identity(), "run": 1, **fields()}

        def answered(is_confirmed: bool) -> None:  # noqa: FBT001 - the result
            if is_confirmed:
                confirm()
                again()
            else:
                self._network.timeline.after(self._network.pause(attempt), again)

        def again() -> None:
            self._posting.discard(thread)
            if thread == "left" and attempt >= 0 and not self._is_left:
                self._post(thread, fields, confirm, attempt + 1)
            self._pump()

        if thread == "left":
            confirm = self._has_left
        self._network.post(lambda: self._job.deliver(self, body), answered)

    _is_left = False

    def _has_left(self) -> None:
        self._is_left = True

    def _identity(self) -> Mapping[str, Any]:
        return {"process": f"process-{self.number}", "host": f"n{self.number + 1}"}

    @property
    def _now(self) -> float:
        return self._network.timeline.now

    def _is_frozen(self, turn: Callable[[], None]) -> bool:
        """Whether this turn comes later, because the process does nothing now."""
        if self._now < self.frozen_until:
            self._network.timeline.after(self.frozen_until - self._now, turn)
            return True
        return self.is_dead

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The step and the gates are variables of a module: this rank's are in place meanwhile."""
        for name, value in self._cells.items():
            setattr(gates, name, value)
        try:
            yield
        finally:
            self._cells = {name: getattr(gates, name) for name in _CELLS}
