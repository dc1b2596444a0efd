"""What the probes say about this supervisor."""

from dataclasses import dataclass
from enum import StrEnum

from servicekit.probes import Health


class ServingState(StrEnum):
    """How far it has come."""

    STARTING = "starting"
    STANDING_BY = "standing by"
    SERVING = "serving"


@dataclass(slots=True)
class SupervisorHealth:
    """Live: its loop turns. Ready: it serves, or could at any moment, so that one replica after the other can roll."""

    standing: ServingState = ServingState.STARTING

    def live(self) -> Health:
        """Nothing outside this process can make it fail."""
        return Health(ok=True, detail={"standing": self.standing})

    def ready(self) -> Health:
        """Whether everything that is stored has been read."""
        return Health(ok=self.standing is not ServingState.STARTING, detail={"standing": self.standing})
