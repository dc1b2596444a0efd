"""The table of all metrics of a supervisor: their names, labels, buckets and help texts.

Names are without the prefix `job_supervisor_`, those of counters also without `_total`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_PREFIX = "job_supervisor_"

_OF_A_JOB = ("job_namespace", "job_kind", "job_name")
"""The labels of a job. `job` and `namespace` would collide with the labels of a Prometheus target."""

_OF_A_POOL = ("cloud", "zone", "instance_type", "price_class")

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """The help text of a metric, its labels, and the buckets of a histogram."""

    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# Every supervisor, leading or not.
_PROCESS = {
    "leader": MetricDefinition("Is 1 if this supervisor leads, and 0 if it stands by."),
    "refused": MetricDefinition("Counts the messages of peers that the supervisor refused.", ("wire", "code")),
    "internal_errors": MetricDefinition(
        "Counts unexpected exceptions, by the part of the supervisor that raised them.", ("where",)
    ),
    "webhook_reviews": MetricDefinition("Counts admission reviews of new pods and jobs.", ("outcome",)),
    "webhook_seconds": MetricDefinition(
        "Measures how long the supervisor takes to answer an admission review.",
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2),
    ),
    "unread_objects": MetricDefinition("Counts the objects that this version cannot decode.", ("kind",)),
    "store_seconds": MetricDefinition(
        "Measures the time from the start of a write until it is durable.",
        ("operation",),
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    ),
    "store_failures": MetricDefinition("Counts writes to the store that have failed.", ("operation",)),
    "kubernetes_events": MetricDefinition(
        "Counts Kubernetes Events that the supervisor wanted to write, by outcome.", ("outcome",)
    ),
    "notifications": MetricDefinition("Counts notifications to webhooks, by outcome.", ("target", "outcome")),
    "record_failing": MetricDefinition("Is 1 while the record's database cannot be used."),
    "spans": MetricDefinition(
        "Counts spans of traces: exported, failed (the collector did not take them), or dropped (too many waited).",
        ("outcome",),
    ),
}

_NOTICES = {
    "notices": MetricDefinition("Counts episodes of notices, and reports that were refused.", ("source", "outcome")),
    "reclaims": MetricDefinition(
        "Counts episodes of notices, by the capacity pool of the node.", ("source", "cloud", "zone", "instance_type")
    ),
    "notice_lead_seconds": MetricDefinition(
        "Measures the time from the receipt of a notice to its deadline, if the source states a deadline.",
        ("source", "class"),
        (2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 240, 300, 450, 600, 1800, 3600),
    ),
    "active_notices": MetricDefinition("Counts active notices.", ("source", "class")),
    "unconfirmed_notices": MetricDefinition("Counts notices that the supervisor has received but not yet stored."),
    "notice_to_decision_seconds": MetricDefinition(
        "Measures the time from the first notice of a group to the decision to continue without its hosts, or from the "
        "notice that made a stop certain to the decision to stop.",
        ("decision",),
        _LATENCIES,
    ),
    "decision_to_directive_seconds": MetricDefinition(
        "Measures the time from the durable decision until the supervisor had sent its directive on all open streams.",
        ("directive",),
        _LATENCIES,
    ),
    "notice_to_directive_seconds": MetricDefinition(
        "Measures the time from the notice until the supervisor had sent the directive on all open streams.",
        ("directive",),
        _LATENCIES,
    ),
}

_AGENTS = {
    "agents": MetricDefinition(
        "Counts nodes by the state of their agent: connected, unknown (silent), or reclaimed (the node is gone).",
        ("state",),
    ),
    "nodes": MetricDefinition(
        "Counts nodes with a connected agent, by their machine; an empty label is unknown.",
        ("cloud", "zone", "instance_type", "price_class"),
    ),
    "agents_sharing_uid": MetricDefinition("Counts connected agents that report the machine uid of another agent."),
    "agent_sources": MetricDefinition("Counts the sources of agents, by their last answer.", ("source", "state")),
    "streams": MetricDefinition("Counts open streams.", ("peer",)),
    "workers": MetricDefinition("Counts the workers of running jobs."),
    "uncovered_workers": MetricDefinition(
        "Counts workers whose node has no connected agent, or that have no process with a stream.", ("missing",)
    ),
}

_JOBS = {
    "jobs": MetricDefinition("Counts jobs.", ("phase",)),
    "held_jobs": MetricDefinition("Counts jobs that a person keeps suspended."),
    "excluded_hosts": MetricDefinition("Counts the hosts that are excluded at present."),
    "groups": MetricDefinition(
        "Counts decisions about groups of notices or lost hosts: the job has shrunk or was stopped.", ("outcome",)
    ),
    "exclusions": MetricDefinition("Counts hosts that were newly excluded."),
    "suspensions": MetricDefinition("Counts suspensions of jobs after a STOP."),
    "resumes": MetricDefinition("Counts suspended jobs that resumed."),
    "timeouts": MetricDefinition("Counts jobs that waited longer than their maximum and were given up."),
    "late_stops": MetricDefinition("Counts STOPs without a checkpoint before the deadline."),
    "acknowledgements": MetricDefinition("Counts acknowledgements of STOPs by rank 0.", ("kind",)),
    "acknowledgement_seconds": MetricDefinition(
        "Measures the time from the decision to stop to its first acknowledgement, which is the time of a checkpoint.",
        buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
    ),
    "acknowledgement_margin_seconds": MetricDefinition(
        "Measures the time from the acknowledgement of a STOP to the first deadline; 0 if it came too late.",
        # No bucket below 0: a sum that can fall looks like a restart to Prometheus.
        buckets=(0, 1, 2, 5, 10, 20, 30, 60, 120, 180, 300),
    ),
    "unacknowledged_stop_seconds_left": MetricDefinition(
        "Is the shortest time left for a STOP that rank 0 has not acknowledged; no sample if there is none."
    ),
    "unread_seconds": MetricDefinition(
        "Is the longest time for which a rank that has to agree on a step has not asked whether to stop; no sample if "
        "no rank has to."
    ),
    "agreements": MetricDefinition(
        "Counts agreements on a step: committed, missed (a rank had gone on before the commit), withdrawn, or failed "
        "(the ranks did not agree in time).",
        ("purpose", "outcome"),
    ),
    "agreement_seconds": MetricDefinition(
        "Measures the time from the first poll of an agreement to its commit.",
        buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    ),
    "rounds": MetricDefinition(
        "Counts decided rounds of torchrun, by how processes enter them: in_process, or restart.", ("mode",)
    ),
    "steps_lost": MetricDefinition(
        "Counts the steps between the last one of a stopped run and the one at which the next run started, for jobs "
        "that report their steps."
    ),
    "suspended_seconds": MetricDefinition(
        "Measures the time from a suspension until the job runs again, times out or ends.",
        buckets=(5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400),
    ),
    "released_worker_seconds": MetricDefinition(
        "Sums up, over workers, the seconds for which suspended jobs left their capacity to others."
    ),
    "released_gpu_seconds": MetricDefinition(
        "Sums up, over the GPUs that pods request, the seconds for which suspended jobs left them to others."
    ),
}

_LEDGER = {
    "worker_seconds": MetricDefinition(
        "Sums up the seconds of workers that jobs asked for or held, by the account of the ledger. Those of runs that "
        "go on are running.",
        ("job_namespace", "account"),
    ),
    "told_worker_seconds": MetricDefinition(
        "Sums up, of the running worker seconds, what processes have said that they did, by the account of the ledger.",
        ("job_namespace", "account"),
    ),
}

_SINGLE_JOBS = {
    "job_phase": MetricDefinition("Is 1 for the phase of the job.", (*_OF_A_JOB, "phase")),
    "job_workers": MetricDefinition("Counts the workers of the running job.", _OF_A_JOB),
    "job_suspensions": MetricDefinition("Counts suspensions of the job after a STOP.", _OF_A_JOB),
    "job_late_stops": MetricDefinition("Counts STOPs of the job without a checkpoint before the deadline.", _OF_A_JOB),
    "job_steps_lost": MetricDefinition("Counts the steps that the job had to repeat.", _OF_A_JOB),
    "unnamed_jobs": MetricDefinition("Counts the jobs without metrics of their own."),
}

_POOLS = {
    "pool_worker_seconds": MetricDefinition(
        "Sums up the seconds of workers that jobs held, by capacity pool.", _OF_A_POOL
    ),
    "pool_hosts_gone": MetricDefinition(
        "Counts the hosts of jobs that went, by capacity pool and whether a notice had come before.",
        (*_OF_A_POOL, "noticed"),
    ),
    "pool_cost": MetricDefinition(
        "Sums up what the held seconds of workers cost, where both prices of the machine are known.",
        (*_OF_A_POOL, "currency"),
    ),
    "pool_on_demand_cost": MetricDefinition(
        "Sums up what the same seconds would have cost on demand.", (*_OF_A_POOL, "currency")
    ),
    "pool_unpriced_worker_seconds": MetricDefinition(
        "Sums up the held seconds of workers that are in no cost, as a price is not known.", _OF_A_POOL
    ),
}

METRICS: Mapping[str, MetricDefinition] = {
    **_PROCESS,
    **_NOTICES,
    **_AGENTS,
    **_JOBS,
    **_LEDGER,
    **_POOLS,
    **_SINGLE_JOBS,
}


def counter(registry: CollectorRegistry, name: str) -> Counter:
    return Counter(_PREFIX + name, METRICS[name].help, METRICS[name].labels, registry=registry)


def gauge(registry: CollectorRegistry, name: str) -> Gauge:
    return Gauge(_PREFIX + name, METRICS[name].help, METRICS[name].labels, registry=registry)


def histogram(registry: CollectorRegistry, name: str) -> Histogram:
    defined = METRICS[name]
    return Histogram(_PREFIX + name, defined.help, defined.labels, registry=registry, buckets=defined.buckets)


Samples = Iterable[tuple[Sequence[str], float]]
"""The values of the labels and the value of each sample."""


def gauge_family(name: str, samples: Samples) -> Metric:
    """Builds a gauge whose samples are computed at a scrape."""
    family = GaugeMetricFamily(_PREFIX + name, METRICS[name].help, labels=METRICS[name].labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def counter_family(name: str, samples: Samples) -> Metric:
    """Builds a counter whose samples something else counts."""
    family = CounterMetricFamily(_PREFIX + name, METRICS[name].help, labels=METRICS[name].labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
