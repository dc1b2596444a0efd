"""The failpoints that each scene arms; every name of every deployable is armed at least once.

A number counts passings since the process was armed; where a point is passed several times in a scene, the ones that
matter are named. `brief` marks those that the short form runs.
"""

from dataclasses import dataclass
from enum import Enum, auto

from kubeai.elastic.commands.failpoints import At as Launcher

from node_agent.failpoints import At as Agent
from supervisor.failpoints import At as Supervisor
from supervisor.jobs.trainingjob.failpoints import At as TrainingJob


class Scene(Enum):
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
    scene: Scene
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


def _each(at: Enum, scene: Scene, *passes: int) -> tuple[Armed, ...]:
    return tuple(Armed(at, scene, number) for number in passes)


SUPERVISOR = (
    *_each(Supervisor.SECRET_WRITTEN, Scene.STARTING, 1),
    *_each(Supervisor.SECRET_LINKED, Scene.STARTING, 1),
    Armed(Supervisor.STORE_PREPARED, Scene.STARTING, brief=True),
    *_each(Supervisor.STORE_LINKED, Scene.STARTING, 1),
    *_each(Supervisor.HTTP_BOUND, Scene.STARTING, 1),
    *_each(Supervisor.ENDPOINTS_WRITTEN, Scene.STARTING, 1),
    *_each(Supervisor.ENDPOINTS_REPLACED, Scene.STARTING, 1),
    *_each(Supervisor.PRUNING, Scene.STARTING, 1),
    *_each(Supervisor.PRUNED, Scene.STARTING, 1),
    *_each(Supervisor.MACHINE_REPLACED, Scene.PEERS, 1),
    *_each(Supervisor.NOTICE_AGEING, Scene.PEERS, 1),
    *_each(Supervisor.NOTICE_AGED, Scene.PEERS, 1),
    Armed(Supervisor.AGENT_CONNECTED, Scene.STOPPING, 2, passed_at_start=True),
    *_each(Supervisor.NOTICE_RECEIVED, Scene.STOPPING, 1, 2),
    *_each(Supervisor.NOTICE_STORED, Scene.STOPPING, 1, 2),
    *_each(Supervisor.NOTICE_ACKNOWLEDGED, Scene.STOPPING, 2),
    Armed(Supervisor.HELLO_RECEIVED, Scene.STOPPING, 1, passed_at_start=True),
    Armed(Supervisor.JOB_REGISTERED, Scene.STOPPING, 1, passed_at_start=True),
    Armed(Supervisor.FIRST_ORDER_SENT, Scene.STOPPING, 1, passed_at_start=True),
    *_each(Supervisor.REPORT_RECEIVED, Scene.STOPPING, 1, 2),
    *_each(Supervisor.REPORT_STORED, Scene.STOPPING, 1, 2),
    *_each(Supervisor.ACKNOWLEDGEMENT_RECEIVED, Scene.STOPPING, 1),
    Armed(Supervisor.ACKNOWLEDGEMENT_STORED, Scene.STOPPING, brief=True),
    *_each(Supervisor.STORE_BEGINS, Scene.STOPPING, 1, 3),
    *_each(Supervisor.STORE_WRITTEN, Scene.STOPPING, 2, 4),
    *_each(Supervisor.STORE_COMMITTED, Scene.STOPPING, 1, 2, 3, 4, 5, 6),
    *_each(Supervisor.STORE_PUBLISHED, Scene.STOPPING, 2, 5),
    *_each(Supervisor.DECISION_MADE, Scene.STOPPING, 1, 2, 3),
    # The second one mostly is the STOP: durable, and nobody has been told of it yet.
    *_each(Supervisor.DECISION_STORED, Scene.STOPPING, 1, 2, 3, 4),
    # Rank 0 has the STOP on its way; the launcher has heard nothing.
    *_each(Supervisor.DIRECTIVES_PUSHED, Scene.STOPPING, 1, 2, 3),
    *_each(Supervisor.ORDER_PUBLISHED, Scene.STOPPING, 1, 2, 4),
    *_each(Supervisor.DECISION_STORED, Scene.SHRINKING, 1, 2),
    *_each(Supervisor.ORDER_PUBLISHED, Scene.SHRINKING, 2),
    *_each(Supervisor.STORE_COMMITTED, Scene.SHRINKING, 3),
    *_each(Supervisor.REPORT_STORED, Scene.SHRINKING, 1),
    # The request to end the job; later its last reports.
    *_each(Supervisor.REPORT_RECEIVED, Scene.ENDING, 1, 3),
    *_each(Supervisor.REPORT_STORED, Scene.ENDING, 1, 3),
    Armed(Supervisor.DECISION_STORED, Scene.ENDING, brief=True),
    *_each(Supervisor.DECISION_STORED, Scene.ENDING, 2),
    *_each(Supervisor.DIRECTIVES_PUSHED, Scene.ENDING, 1, 2),
    *_each(Supervisor.ORDER_PUBLISHED, Scene.ENDING, 1, 2),
    *_each(Supervisor.ACKNOWLEDGEMENT_STORED, Scene.ENDING, 1),
)

_CLUSTER_STOP = (
    # A notice lies there, and nobody has been told; both do; one of the two was never heard.
    *_each(Supervisor.NOTICE_RECEIVED, Scene.STOPPING, 1, 2),
    *_each(Supervisor.RESOURCE_CREATED, Scene.STOPPING, 1),
    *_each(Supervisor.RESOURCE_CREATED, Scene.STOPPING, 2),
    *_each(Supervisor.RESOURCE_WRITTEN, Scene.STOPPING, 1, 2, 3, 4, 5, 6),
    *_each(Supervisor.NOTICE_STORED, Scene.STOPPING, 1, 2),
    *_each(Supervisor.NOTICE_ACKNOWLEDGED, Scene.STOPPING, 2),
    *_each(Supervisor.DECISION_MADE, Scene.STOPPING, 1, 2, 3),
    *_each(Supervisor.DECISION_STORED, Scene.STOPPING, 1, 2, 3, 4),
    *_each(Supervisor.DIRECTIVES_PUSHED, Scene.STOPPING, 1, 2, 3),
    *_each(Supervisor.ORDER_PUBLISHED, Scene.STOPPING, 1, 2, 3),
    *_each(Supervisor.ACKNOWLEDGEMENT_RECEIVED, Scene.STOPPING, 1),
    *_each(Supervisor.ACKNOWLEDGEMENT_STORED, Scene.STOPPING, 1),
    Armed(TrainingJob.RUN_SUSPENDED, Scene.STOPPING, brief=True),
    *_each(Supervisor.OBSERVED_STORED, Scene.STOPPING, 1, 2, 3, 4),
    *_each(Supervisor.ORDER_APPLIED, Scene.STOPPING, 1, 2),
    *_each(TrainingJob.RUN_LISTED, Scene.STOPPING, 1),
    *_each(TrainingJob.RUN_SIZED, Scene.STOPPING, 1),
    *_each(TrainingJob.RUN_FREED, Scene.STOPPING, 1),
    *_each(TrainingJob.RUN_STARTED, Scene.STOPPING, 1),
    *_each(TrainingJob.EXCLUSIONS_LISTED, Scene.STOPPING, 1),
)
_CLUSTER_SHRINK = (
    *_each(Supervisor.RESOURCE_WRITTEN, Scene.SHRINKING, 1, 2, 3),
    *_each(Supervisor.DECISION_STORED, Scene.SHRINKING, 1, 2),
    *_each(TrainingJob.EXCLUSIONS_SHOWN, Scene.SHRINKING, 1),
    *_each(TrainingJob.EXCLUSIONS_LISTED, Scene.SHRINKING, 1),
    *_each(Supervisor.ORDER_APPLIED, Scene.SHRINKING, 1),
    *_each(Supervisor.POD_REMOVED, Scene.SHRINKING, 1),
)
_CLUSTER_GROW = (
    *_each(TrainingJob.GROWTH_ASKED, Scene.GROWING, 1),
    *_each(TrainingJob.GROWTH_TIDIED, Scene.GROWING, 1),
)
ON_CLUSTER = (*_CLUSTER_STOP, *_CLUSTER_SHRINK, *_CLUSTER_GROW)
"""Of a supervisor that looks after a TrainingJob: around each request that changes something."""

AGENT = (
    # At its start, when its successor has all to do again.
    *_each(Agent.SOURCE_ANSWERED, Scene.STOPPING, 1),
    *_each(Agent.HELLO_SENDING, Scene.STOPPING, 1),
    *_each(Agent.HELLO_SENT, Scene.STOPPING, 1),
    # The first report of an agent is that there is nothing; the second one is the notice.
    *_each(Agent.REPORT_KEPT, Scene.STOPPING, 2),
    *_each(Agent.NOTICE_SENDING, Scene.STOPPING, 2),
    Armed(Agent.NOTICE_SENT, Scene.STOPPING, 2, brief=True),
    *_each(Agent.ACKNOWLEDGEMENT_RECEIVED, Scene.STOPPING, 2),
    *_each(Agent.ACKNOWLEDGEMENT_KEPT, Scene.STOPPING, 2),
    *_each(Agent.NOTICE_SENT, Scene.SHRINKING, 2),
)

LAUNCHER = (
    *_each(Launcher.HELLO_SENDING, Scene.PLAIN, 1),
    *_each(Launcher.HELLO_ANSWERED, Scene.PLAIN, 1),
    *_each(Launcher.EXCLUSIONS_WRITTEN, Scene.PLAIN, 1),
    *_each(Launcher.TOKEN_REMOVED, Scene.PLAIN, 1),
    *_each(Launcher.LAST_HOSTS_REMOVED, Scene.PLAIN, 1),
    *_each(Launcher.RUN_WRITTEN, Scene.PLAIN, 1),
    *_each(Launcher.JOB_WRITTEN, Scene.PLAIN, 1),
    *_each(Launcher.ADDRESS_WRITTEN, Scene.PLAIN, 1),
    *_each(Launcher.TOKEN_GIVING, Scene.PLAIN, 1),
    *_each(Launcher.TOKEN_GIVEN, Scene.PLAIN, 1),
    *_each(Launcher.COMMAND_STARTING, Scene.PLAIN, 1),
    Armed(Launcher.COMMAND_STARTED, Scene.PLAIN, brief=True),
    *_each(Launcher.REPORT_SENDING, Scene.PLAIN, 1),
    *_each(Launcher.REPORT_ANSWERED, Scene.PLAIN, 1),
    *_each(Launcher.FINISHING, Scene.PLAIN, 1),
    *_each(Launcher.FINISHED, Scene.PLAIN, 1),
    *_each(Launcher.HOSTS_NARROWED, Scene.SHRINKING, 4),
    *_each(Launcher.EXCLUSIONS_WRITTEN, Scene.SHRINKING, 4),
    *_each(Launcher.HOSTS_WRITTEN, Scene.SHRINKING, 4),
    *_each(Launcher.ORDER_APPLIED, Scene.SHRINKING, 4),
    *_each(Launcher.COMMAND_ENDING, Scene.STOPPING, 1),
    *_each(Launcher.COMMAND_ASKED_TO_END, Scene.STOPPING, 1),
    *_each(Launcher.COMMAND_ENDED, Scene.STOPPING, 1),
    *_each(Launcher.RUN_WRITTEN, Scene.STOPPING, 2),
    *_each(Launcher.COMMAND_STARTED, Scene.STOPPING, 2),
    Armed(Launcher.COMMAND_KILLED, Scene.STUBBORN, brief=True),
)
