"""Defines leadership for the code that acts."""

from typing import Protocol

from servicekit.bulkhead import ProcessFault


class LeadershipError(Exception):
    """The lease cannot be read: an administrator has to act, and the message says how."""


class LeadershipLost(ProcessFault):
    """Another supervisor leads: this process ends and is restarted as a standby."""


class Leadership(Protocol):
    """Tells whether this supervisor leads."""

    def may_act(self) -> bool:
        """Returns whether no other supervisor can lead now. Ask right before an action that no epoch guards."""


class AlwaysLeader:
    """The leadership of a supervisor that is the only one."""

    def may_act(self) -> bool:
        """Returns True."""
        return True
