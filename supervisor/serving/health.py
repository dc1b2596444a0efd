"""The answers of the liveness and readiness probes."""

from dataclasses import dataclass
from enum import StrEnum

from servicekit.lifecycle import Health


class ServingState(StrEnum):
    """The progress of the start."""

    STARTING = "starting"
    STANDING_BY = "standing by"
    SERVING = "serving"


@dataclass(slots=True)
class SupervisorHealth:
    """Live: the event loop runs. Ready: it serves or can take over, so that replicas can be rolled one by one."""

    standing: ServingState = ServingState.STARTING

    def live(self) -> Health:
        """Healthy while the process answers: nothing outside it can make this fail."""
        return Health(ok=True, detail={"standing": self.standing})

    def ready(self) -> Health:
        """Healthy once the store has been read."""
        return Health(ok=self.standing is not ServingState.STARTING, detail={"standing": self.standing})
