"""The capabilities of a job's controller. Decisions branch on them, never on kinds."""

from enum import StrEnum


class Capability(StrEnum):
    """One capability of a job, as its kind declares it. A job without any is run by our own launcher."""

    MAKES_HOSTS = "MakesHosts"
    """The controller makes the hosts, and all hosts that it lists are the job's at once."""
    STARTS_RUNS = "StartsRuns"
    """The controller starts the first run, and restarts a run that failed by itself."""
    GROWS = "Grows"
    """The controller can be asked to add workers to a running run."""
    REPLACES_HOSTS = "ReplacesHosts"
    """The controller replaces a host that is removed."""
    FIXED_HOSTS = "FixedHosts"
    """A run cannot go on without one of its hosts: it stops when one leaves, and resumes on others."""
    SIGNALS_PODS = "SignalsPods"
    """Processes without a stream can be reached through their pods."""


ELASTIC = frozenset(Capability) - {Capability.FIXED_HOSTS}
"""All capabilities of a controller whose runs go on with other hosts."""
