"""The failpoints that each scene arms; every name of every deployable is armed at least once.

A number counts passings since the process was armed; where a point is passed several times in a scene, the ones that
matter are named. `brief` marks those that the short form runs.
"""

from dataclasses import dataclass
from enum import Enum, auto

from kubeai.elastic.commands.failpoints import RunFailpoint as Launcher

from node_agent.notices import AgentFailpoint as Agent
from supervisor.failpoints import At as Supervisor
from supervisor.jobs.trainingjob.objects import TrainingJobFailpoint as TrainingJob


class PointsScene(Enum):
    STARTING = auto()
    """A supervisor starts on an empty directory, or with something to forget."""
    PEERS = auto()
    """A supervisor alone, and peers that count what it has confirmed."""
    STOPPING = auto()
    """Two of four hosts are noticed, three are needed: STOP, suspended, resumed elsewhere."""
    SHRINKING = auto()
    """One of four hosts is noticed, two are needed: one change of the host list."""
    GROWING = auto()
    """A job that was resumed with two of four hosts gets the others back while it runs."""
    ENDING = auto()
    """A person terminates the job, which saves first."""
    PLAIN = auto()
    """Nothing is reclaimed."""
    STUBBORN = auto()
    """A command that does not end when it is asked to."""


@dataclass(frozen=True, slots=True)
class Armed:
    at: Enum
    scene: PointsScene
    passes: int = 1
    brief: bool = False
    passed_at_start: bool = False
    """Nobody passes it later: the process is started armed, rather than armed when the scene begins."""

    @property
    def name(self) -> str:
        return str(self.at.value)

    @property
    def setting(self) -> str:
        return f"{self.name}:{self.passes}"

    def __str__(self) -> str:
        return f"{self.scene.name.lower()}-{self.setting}"


def _each(at: Enum, scene: PointsScene, *passes: int) -> tuple[Armed, ...]:
    return tuple(Armed(at, scene, number) for number in passes)


SUPERVISOR = (
    *_each(Supervisor.SECRET_WRITTEN, PointsScene.STARTING, 1),
    *_each(Supervisor.SECRET_LINKED, PointsScene.STARTING, 1),
    Armed(Supervisor.STORE_PREPARED, PointsScene.STARTING, brief=True),
    *_each(Supervisor.STORE_LINKED, PointsScene.STARTING, 1),
    *_each(Supervisor.HTTP_BOUND, PointsScene.STARTING, 1),
    *_each(Supervisor.ENDPOINTS_WRITTEN, PointsScene.STARTING, 1),
    *_each(Supervisor.ENDPOINTS_REPLACED, PointsScene.STARTING, 1),
    *_each(Supervisor.PRUNING, PointsScene.STARTING, 1),
    *_each(Supervisor.PRUNED, PointsScene.STARTING, 1),
    *_each(Supervisor.MACHINE_REPLACED, PointsScene.PEERS, 1),
    *_each(Supervisor.NOTICE_AGEING, PointsScene.PEERS, 1),
    *_each(Supervisor.NOTICE_AGED, PointsScene.PEERS, 1),
    Armed(Supervisor.AGENT_CONNECTED, PointsScene.STOPPING, 2, passed_at_start=True),
    *_each(Supervisor.NOTICE_RECEIVED, PointsScene.STOPPING, 1, 2),
    *_each(Supervisor.NOTICE_STORED, PointsScene.STOPPING, 1, 2),
    *_each(Supervisor.NOTICE_ACKNOWLEDGED, PointsScene.STOPPING, 2),
    Armed(Supervisor.HELLO_RECEIVED, PointsScene.STOPPING, 1, passed_at_start=True),
    Armed(Supervisor.JOB_REGISTERED, PointsScene.STOPPING, 1, passed_at_start=True),
    Armed(Supervisor.FIRST_ORDER_SENT, PointsScene.STOPPING, 1, passed_at_start=True),
    *_each(Supervisor.REPORT_RECEIVED, PointsScene.STOPPING, 1, 2),
    *_each(Supervisor.REPORT_STORED, PointsScene.STOPPING, 1, 2),
    *_each(Supervisor.ACKNOWLEDGEMENT_RECEIVED, PointsScene.STOPPING, 1),
    Armed(Supervisor.ACKNOWLEDGEMENT_STORED, PointsScene.STOPPING, brief=True),
    *_each(Supervisor.STORE_BEGINS, PointsScene.STOPPING, 1, 3),
    *_each(Supervisor.STORE_WRITTEN, PointsScene.STOPPING, 2, 4),
    *_each(Supervisor.STORE_COMMITTED, PointsScene.STOPPING, 1, 2, 3, 4, 5, 6),
    *_each(Supervisor.STORE_PUBLISHED, PointsScene.STOPPING, 2, 5),
    *_each(Supervisor.DECISION_MADE, PointsScene.STOPPING, 1, 2, 3),
    # The second one mostly is the STOP: durable, and nobody has been told of it yet.
    *_each(Supervisor.DECISION_STORED, PointsScene.STOPPING, 1, 2, 3, 4),
    # Rank 0 has the STOP on its way; the launcher has heard nothing.
    *_each(Supervisor.DIRECTIVES_PUSHED, PointsScene.STOPPING, 1, 2, 3),
    *_each(Supervisor.ORDER_PUBLISHED, PointsScene.STOPPING, 1, 2, 4),
    *_each(Supervisor.DECISION_STORED, PointsScene.SHRINKING, 1, 2),
    *_each(Supervisor.ORDER_PUBLISHED, PointsScene.SHRINKING, 2),
    *_each(Supervisor.STORE_COMMITTED, PointsScene.SHRINKING, 3),
    *_each(Supervisor.REPORT_STORED, PointsScene.SHRINKING, 1),
    # The request to end the job; later its last reports.
    *_each(Supervisor.REPORT_RECEIVED, PointsScene.ENDING, 1, 3),
    *_each(Supervisor.REPORT_STORED, PointsScene.ENDING, 1, 3),
    Armed(Supervisor.DECISION_STORED, PointsScene.ENDING, brief=True),
    *_each(Supervisor.DECISION_STORED, PointsScene.ENDING, 2),
    *_each(Supervisor.DIRECTIVES_PUSHED, PointsScene.ENDING, 1, 2),
    *_each(Supervisor.ORDER_PUBLISHED, PointsScene.ENDING, 1, 2),
    *_each(Supervisor.ACKNOWLEDGEMENT_STORED, PointsScene.ENDING, 1),
)

_CLUSTER_STOP = (
    # A notice lies there, and nobody has been told; both do; one of the two was never heard.
    *_each(Supervisor.NOTICE_RECEIVED, PointsScene.STOPPING, 1, 2),
    *_each(Supervisor.RESOURCE_CREATED, PointsScene.STOPPING, 1),
    *_each(Supervisor.RESOURCE_CREATED, PointsScene.STOPPING, 2),
    *_each(Supervisor.RESOURCE_WRITTEN, PointsScene.STOPPING, 1, 2, 3, 4, 5, 6),
    *_each(Supervisor.NOTICE_STORED, PointsScene.STOPPING, 1, 2),
    *_each(Supervisor.NOTICE_ACKNOWLEDGED, PointsScene.STOPPING, 2),
    *_each(Supervisor.DECISION_MADE, PointsScene.STOPPING, 1, 2, 3),
    *_each(Supervisor.DECISION_STORED, PointsScene.STOPPING, 1, 2, 3, 4),
    *_each(Supervisor.DIRECTIVES_PUSHED, PointsScene.STOPPING, 1, 2, 3),
    *_each(Supervisor.ORDER_PUBLISHED, PointsScene.STOPPING, 1, 2, 3),
    *_each(Supervisor.ACKNOWLEDGEMENT_RECEIVED, PointsScene.STOPPING, 1),
    *_each(Supervisor.ACKNOWLEDGEMENT_STORED, PointsScene.STOPPING, 1),
    Armed(TrainingJob.RUN_SUSPENDED, PointsScene.STOPPING, brief=True),
    *_each(Supervisor.OBSERVED_STORED, PointsScene.STOPPING, 1, 2, 3, 4),
    *_each(Supervisor.ORDER_APPLIED, PointsScene.STOPPING, 1, 2),
    *_each(TrainingJob.RUN_LISTED, PointsScene.STOPPING, 1),
    *_each(TrainingJob.RUN_SIZED, PointsScene.STOPPING, 1),
    *_each(TrainingJob.RUN_FREED, PointsScene.STOPPING, 1),
    *_each(TrainingJob.RUN_STARTED, PointsScene.STOPPING, 1),
    *_each(TrainingJob.EXCLUSIONS_LISTED, PointsScene.STOPPING, 1),
)
_CLUSTER_SHRINK = (
    *_each(Supervisor.RESOURCE_WRITTEN, PointsScene.SHRINKING, 1, 2, 3),
    *_each(Supervisor.DECISION_STORED, PointsScene.SHRINKING, 1, 2),
    *_each(TrainingJob.EXCLUSIONS_SHOWN, PointsScene.SHRINKING, 1),
    *_each(TrainingJob.EXCLUSIONS_LISTED, PointsScene.SHRINKING, 1),
    *_each(Supervisor.ORDER_APPLIED, PointsScene.SHRINKING, 1),
    *_each(Supervisor.POD_REMOVED, PointsScene.SHRINKING, 1),
)
_CLUSTER_GROW = (
    *_each(TrainingJob.GROWTH_ASKED, PointsScene.GROWING, 1),
    *_each(TrainingJob.GROWTH_TIDIED, PointsScene.GROWING, 1),
)
ON_CLUSTER = (*_CLUSTER_STOP, *_CLUSTER_SHRINK, *_CLUSTER_GROW)
"""Of a supervisor that looks after a TrainingJob: around each request that changes something."""

AGENT = (
    # At its start, when its successor has all to do again.
    *_each(Agent.SOURCE_ANSWERED, PointsScene.STOPPING, 1),
    *_each(Agent.HELLO_SENDING, PointsScene.STOPPING, 1),
    *_each(Agent.HELLO_SENT, PointsScene.STOPPING, 1),
    # The first report of an agent is that there is nothing; the second one is the notice.
    *_each(Agent.REPORT_KEPT, PointsScene.STOPPING, 2),
    *_each(Agent.NOTICE_SENDING, PointsScene.STOPPING, 2),
    Armed(Agent.NOTICE_SENT, PointsScene.STOPPING, 2, brief=True),
    *_each(Agent.ACKNOWLEDGEMENT_RECEIVED, PointsScene.STOPPING, 2),
    *_each(Agent.ACKNOWLEDGEMENT_KEPT, PointsScene.STOPPING, 2),
    *_each(Agent.NOTICE_SENT, PointsScene.SHRINKING, 2),
)

LAUNCHER = (
    *_each(Launcher.HELLO_SENDING, PointsScene.PLAIN, 1),
    *_each(Launcher.HELLO_ANSWERED, PointsScene.PLAIN, 1),
    *_each(Launcher.EXCLUSIONS_WRITTEN, PointsScene.PLAIN, 1),
    *_each(Launcher.TOKEN_REMOVED, PointsScene.PLAIN, 1),
    *_each(Launcher.LAST_HOSTS_REMOVED, PointsScene.PLAIN, 1),
    *_each(Launcher.RUN_WRITTEN, PointsScene.PLAIN, 1),
    *_each(Launcher.JOB_WRITTEN, PointsScene.PLAIN, 1),
    *_each(Launcher.ADDRESS_WRITTEN, PointsScene.PLAIN, 1),
    *_each(Launcher.TOKEN_GIVING, PointsScene.PLAIN, 1),
    *_each(Launcher.TOKEN_GIVEN, PointsScene.PLAIN, 1),
    *_each(Launcher.COMMAND_STARTING, PointsScene.PLAIN, 1),
    Armed(Launcher.COMMAND_STARTED, PointsScene.PLAIN, brief=True),
    *_each(Launcher.REPORT_SENDING, PointsScene.PLAIN, 1),
    *_each(Launcher.REPORT_ANSWERED, PointsScene.PLAIN, 1),
    *_each(Launcher.FINISHING, PointsScene.PLAIN, 1),
    *_each(Launcher.FINISHED, PointsScene.PLAIN, 1),
    *_each(Launcher.HOSTS_NARROWED, PointsScene.SHRINKING, 4),
    *_each(Launcher.EXCLUSIONS_WRITTEN, PointsScene.SHRINKING, 4),
    *_each(Launcher.HOSTS_WRITTEN, PointsScene.SHRINKING, 4),
    *_each(Launcher.ORDER_APPLIED, PointsScene.SHRINKING, 4),
    *_each(Launcher.COMMAND_ENDING, PointsScene.STOPPING, 1),
    *_each(Launcher.COMMAND_ASKED_TO_END, PointsScene.STOPPING, 1),
    *_each(Launcher.COMMAND_ENDED, PointsScene.STOPPING, 1),
    *_each(Launcher.RUN_WRITTEN, PointsScene.STOPPING, 2),
    *_each(Launcher.COMMAND_STARTED, PointsScene.STOPPING, 2),
    Armed(Launcher.COMMAND_KILLED, PointsScene.STUBBORN, brief=True),
)
