"""The settings of torchrun, from its options and from the variables that stand for them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from supervisor.check.command import TORCHRUN, Launch
from supervisor.check.job import CheckedJob, Kind, Role
from supervisor.check.values import count

KUBEAI = "kubeai"
"""The rendezvous backend of the supervisor. Its agents wait when their host leaves, and do not exit."""

_FALSE = ("", "0", "false", "False")


@dataclass(frozen=True, slots=True)
class Agent:
    """One elastic agent: its role, and how it is started; `launch` has no words if the image's own command is used."""

    role: Role
    launch: Launch

    @property
    def backend(self) -> str:
        """The rendezvous backend; torchrun's own default is a static one, which knows no members."""
        return self._setting("rdzv-backend") or "static"

    @property
    def standalone(self) -> bool:
        return self.launch.has("--standalone") or self._variable("PET_STANDALONE") not in _FALSE

    @property
    def endpoint(self) -> str:
        return self._setting("rdzv-endpoint")

    @property
    def nodes(self) -> str:
        """The number of nodes as written: `N` or `MIN:MAX`."""
        return self._setting("nnodes") or "1:1"

    @property
    def fixed_nodes(self) -> int | None:
        """The number of nodes if it cannot change; None if it can, or if nobody can know."""
        least, _, most = self.nodes.partition(":")
        return count(least) if not most or least == most else None

    @property
    def max_restarts(self) -> int | None:
        """How many restarts each agent has; None if nobody can know."""
        return count(self._setting("max-restarts") or "0")

    @property
    def place(self) -> str:
        return f"{self.role.path}: torchrun" if self.role.path else TORCHRUN

    def _setting(self, option: str) -> str:
        given = self.launch.option(f"--{option}")
        return self._variable(f"PET_{option.upper().replace('-', '_')}") if given is None else given

    def _variable(self, name: str) -> str:
        return self._environment.get(name, "")

    @property
    def _environment(self) -> Mapping[str, str]:
        return {**self.role.environment, **self.launch.environment}


def agents(job: CheckedJob) -> Iterator[Agent]:
    """The elastic agents that a job starts.

    A PyTorchJob with an elasticPolicy starts torchrun, also if the command is that of its image.
    """
    for role in job.roles:
        found = [launch for launch in role.launches if launch.program == TORCHRUN]
        if not found and job.kind is Kind.PYTORCH_JOB and "elasticPolicy" in job.spec:
            found = [Launch(TORCHRUN)]
        for launch in found:
            yield Agent(role, launch)
