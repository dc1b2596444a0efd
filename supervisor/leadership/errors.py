"""The errors of an election: the lease cannot be read, or another supervisor leads."""

from servicekit.bulkhead import ProcessFault


class LeadershipError(Exception):
    """The lease cannot be read. An administrator has to act; the message says how."""


class LeadershipLost(ProcessFault):
    """Another supervisor leads. This process ends and is restarted as a standby."""
