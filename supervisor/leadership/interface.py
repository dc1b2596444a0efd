"""What those have to know of it who act."""

from typing import Protocol


class LeadershipError(Exception):
    """It cannot be found out who leads: the operator has to act. The message says how."""


class LeadershipLost(Exception):  # noqa: N818 - it names what happened, as RootTaskEnded does
    """Another supervisor leads: this process ends, and is started again to stand by."""


class Leadership(Protocol):
    """Whether this supervisor leads."""

    def may_act(self) -> bool:
        """Whether nobody else can lead at this moment; ask right before something is done that no epoch guards."""


class AlwaysLeader:
    """There is no other supervisor."""

    def may_act(self) -> bool:
        """It is always this one."""
        return True
