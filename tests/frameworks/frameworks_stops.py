"""Plays the supervisor of a job of `frameworks_rounds.Rounds` that stops, and whose hosts have state keepers."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubeai.elastic.testing import FakeSupervisor, Line
from kubeai.torch.state_keeper import KeptState, read_note

from tests.frameworks.frameworks_keepers import RunningKeeper, state_keeper
from tests.frameworks.frameworks_rounds import Rounds

AHEAD = 6
"""Steps from those that ranks have told to the one at which they stop."""
MEGABYTE = 1 << 20
RESUMES = 75
"""How a process exits that has stopped."""
_ANSWERS = "saved", "kept", "failed"


@dataclass
class StoppingJob:
    """A job each of whose hosts has a state keeper."""

    rounds: Rounds
    supervisor: FakeSupervisor
    keepers: Mapping[str, RunningKeeper]
    _epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _before: int = 0

    def agree_to_stop(self, *leaving: str, seconds_left: float | None) -> int:
        """Have all ranks of the present round agree on a step, at which they stop; returns it.

        Args:
            leaving: Names of the hosts that have a notice.
            seconds_left: Until these are gone.
        """
        for attempt in itertools.count():
            poll, proposal = next(self._epochs), next(self._epochs)
            self.supervisor.propose(poll)
            steps = [int(each["step"]) for each in self._agreed(poll)]
            step = max(steps) + AHEAD * (1 << attempt)
            self.supervisor.propose(proposal, step)
            if {each["answer"] for each in self._agreed(proposal)} == {"accepted"}:
                break
        self._before = len(self.supervisor.reports)
        notice = {"id": "n", "source": "test", "host": "a host", "seconds_left": seconds_left}
        committed = {"epoch": proposal, "purpose": "stop", "step": step, "committed": True}
        for rank, name in enumerate(self.rounds.members):
            self.supervisor.direct(
                rank,
                directive="STOP",
                agreement=committed,
                seconds_left=seconds_left,
                notice={**notice, "own": name in leaving} if leaving else None,
                max_wait=600.0,
            )
        return step

    def stop(self, *leaving: str, seconds_left: float | None) -> int:
        """Let all ranks of the present round stop at one step; returns it. See `agree_to_stop`."""
        names = self.rounds.members
        step = self.agree_to_stop(*leaving, seconds_left=seconds_left)
        self.supervisor.wait_for(lambda: len(self.answers(step)) == len(names), 120)
        self.release()
        self.rounds.until_dead(*names, status=RESUMES)
        return step

    def release(self) -> None:
        """Let the processes exit that have answered the stop."""
        self.supervisor.direct(directive="STOP", release=True)

    def answers(self, step: int) -> list[str]:
        """Return how each rank has answered the last stop, which is at this step, in any order."""
        return sorted(self.answers_of_hosts(step).values())

    def answers_of_hosts(self, step: int) -> dict[str, str]:
        """Return by the names of hosts how each has answered the last stop, which is at this step."""
        bodies = [each.body for each in self.supervisor.reports[self._before :]]
        reports = [each for each in bodies if each.get("kind") in _ANSWERS and each["step"] == step]
        return {self.rounds.members[each["rank"]]: each["kind"] for each in reports}

    def saved_steps(self) -> list[int]:
        """Return the steps of the checkpoints."""
        return sorted(int(path.name.removeprefix("step-")) for path in self._directory.glob("step-*"))

    def note(self) -> KeptState | None:
        """Return what is written beside the checkpoints of a state that is kept."""
        return read_note(self._directory)

    def has_all_parts(self, step: int) -> bool:
        """Return whether the state after a step is noted, and the state keepers have all of its parts."""
        note = self.note()
        if note is None or note.step != step:
            return False
        state, directories = hashlib.sha256(note.name.encode()).hexdigest(), self._directories()
        found = [{path.name.partition(".")[2] for path in directories[part.keeper].iterdir()} for part in note.parts]
        return all(f"{state}.{number}" in names for number, names in enumerate(found))

    def kept_bytes(self, names: str = "abcd") -> list[int]:
        """Return how many bytes the state keepers of these hosts have."""
        return [self.keepers[name].kept_bytes() for name in names]

    def _directories(self) -> dict[str, Path]:
        return {keeper.address: keeper.directory for keeper in self.keepers.values()}

    def _agreed(self, epoch: int) -> list[Line]:
        ranks = len(self.rounds.members)
        self.supervisor.wait_for(lambda: len(self.supervisor.answers_of(epoch)) == ranks)
        return list(self.supervisor.answers_of(epoch).values())

    @property
    def _directory(self) -> Path:
        return self.rounds.root / "checkpoints"


@contextlib.contextmanager
def stopping_job(root: Path, rounds: Rounds, names: str, size: int) -> Iterator[StoppingJob]:
    """Run a supervisor, and a state keeper for each host.

    Args:
        root: Where their files are.
        rounds: Of the job, whose processes are told of both. The block starts them.
        names: Of the hosts.
        size: Bytes for which each state keeper has room.
    """
    (root / "identity").mkdir()
    with contextlib.ExitStack() as stack:
        supervisor = stack.enter_context(FakeSupervisor())
        supervisor.write_identity(root / "identity")
        keepers = {name: stack.enter_context(state_keeper(root / f"keeper-{name}", size)) for name in names}
        addresses = {name: {"KUBEAI_KEEPER": keeper.address} for name, keeper in keepers.items()}
        told = replace(rounds, variables={"KUBEAI_DIR": str(root / "identity")}, variables_of=addresses)
        yield StoppingJob(stack.enter_context(told), supervisor, keepers)
