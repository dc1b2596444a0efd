"""What the controller of a job does by itself, and what it can be asked to do; decisions branch on these alone."""

from enum import StrEnum


class Capability(StrEnum):
    """One capability of a job, as its kind declares it. A job without any is run by our own launcher."""

    MAKES_HOSTS = "MakesHosts"
    """Its controller makes its hosts, and all that it lists are the job's at once."""
    STARTS_RUNS = "StartsRuns"
    """Its controller starts the first run by itself, and one that failed by itself."""
    GROWS = "Grows"
    """Its controller can be asked to add workers to a run that goes on."""
    REPLACES_HOSTS = "ReplacesHosts"
    """Its controller replaces a host that is removed."""
    SIGNALS_PODS = "SignalsPods"
    """Processes without a stream can be reached through their pods."""
