"""The errors of an election: the lease cannot be read, or another supervisor leads."""

from servicekit.bulkhead import ProcessFault


class LeadershipError(Exception):
    """The lease cannot be read: an administrator has to act, and the message says how."""


class LeadershipLost(ProcessFault):
    """Another supervisor leads: this process ends and is restarted as a standby."""
