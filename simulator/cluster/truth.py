"""Records the truth about a job's hosts for its judge. Hosts are pods, which share the fate of their node."""

import time
from dataclasses import dataclass, field

from simulator.cluster.objects import RunPod
from simulator.cluster.paths import ClusterPaths
from simulator.events import EventLog, JobEventKind


@dataclass(frozen=True, slots=True)
class _Announced:
    deadline: float
    group: str


@dataclass(slots=True)
class TruthLog:
    """Writes the events that the judge takes as the truth, each before its consequences."""

    paths: ClusterPaths
    _logs: dict[tuple[str, str], EventLog] = field(default_factory=dict)
    _on: dict[str, dict[str, RunPod]] = field(default_factory=dict)
    _announced: dict[str, _Announced] = field(default_factory=dict)

    def pod_started(self, pod: RunPod) -> None:
        """Record that a worker is reachable, possibly on a node that will be reclaimed."""
        if pod.is_launcher:
            return
        node = pod.spec.node_name
        self._on.setdefault(node, {})[pod.metadata.uid] = pod
        self.log(pod).write(JobEventKind.NODE_ADDED, node=pod.name)
        if node in self._announced:
            self._show(pod, self._announced[node])

    def pod_ended(self, pod: RunPod) -> None:
        """Record that a worker is gone, for any reason."""
        node = pod.spec.node_name
        if self._on.get(node, {}).pop(pod.metadata.uid, None) is not None:
            self.log(pod).write(JobEventKind.NODE_GONE, node=pod.name, announced=node in self._announced)

    def notice(self, node: str, deadline: float, group: str) -> None:
        """Record that the cloud announces a node's reclaim at that instant, in Unix seconds."""
        self._announced[node] = _Announced(deadline, group)
        for pod in self._on.get(node, {}).values():
            self._show(pod, self._announced[node])

    def withdraw(self, node: str) -> None:
        """Record that the cloud withdraws the announcement."""
        self._announced.pop(node, None)
        for pod in self._on.get(node, {}).values():
            self.log(pod).write(JobEventKind.NOTICE_WITHDRAWN, node=pod.name)

    def node_gone(self, node: str) -> None:
        """Record that a node is gone, with everything on it."""
        for pod in list(self._on.get(node, {}).values()):
            self.pod_ended(pod)
        self._announced.pop(node, None)

    def log(self, pod: RunPod) -> EventLog:
        key = (pod.metadata.namespace, pod.job)
        if key not in self._logs:
            self._logs[key] = EventLog(self.paths.job(*key) / "events", "truth")
        return self._logs[key]

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _show(self, pod: RunPod, announced: _Announced) -> None:
        self.log(pod).write(
            JobEventKind.NOTICE_SHOWN,
            node=pod.name,
            group=announced.group,
            lead=announced.deadline - time.time(),
            deadline=announced.deadline,
            synthetic=False,
        )
