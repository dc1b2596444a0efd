"""Turns the API server's signals about reclaims and drills into notices whenever the signals change."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.reconcile import Wakeup, reconcile
from supervisor.cluster.events import ClusterEvent, ClusterEvents
from supervisor.cluster.objects import Node, Pod
from supervisor.cluster.view import ClusterView
from supervisor.decide.notices import Signal, apply_signal
from supervisor.decide.policy import Policy
from supervisor.domain.notice import Subject, SubjectKind
from supervisor.ingest.cluster import signals
from supervisor.store.interface import Store, StoreUnavailableError

_MAX_AT_ONCE = 16
"""Concurrent writes: half of what the connection allows, so that a group of nodes does not delay decisions."""

_RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class SignalReconciler:
    """Evaluates all signals of each changed subject, and stores those that change a notice.

    Args:
        view: All pods and nodes; it must be listed before `run` starts.
        events: The Events that announce reclaims.
        policy: Gives the default lead.
        clock: The supervisor's clock.
        cluster_now: Unix seconds of the cluster's clock.
        drills: The Events that request drills.
        taint_leads: The taints that announce reclaims, as `taint_signals` takes them.
        bulkhead: Keeps what nobody foresaw with its subject.
    """

    def __init__(  # noqa: PLR0913 - documented above
        self,
        view: ClusterView,
        events: ClusterEvents,
        policy: Policy,
        clock: Clock,
        cluster_now: Callable[[], float],
        *,
        drills: ClusterEvents,
        taint_leads: Mapping[str, float | None],
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._view = view
        self._events = events
        self._drills = drills
        self._taint_leads = taint_leads
        self._policy = policy
        self._clock = clock
        self._cluster_now = cluster_now
        self._changed: dict[str, Subject] = {}
        self._wakeup = Wakeup()
        self._write_slots = asyncio.Semaphore(_MAX_AT_ONCE)
        self._fault = Fault("store", clock)
        view.pods_changed.append(self._on_subject)
        view.nodes_changed.append(self._on_subject)
        events.changed.append(self._on_event)
        drills.changed.append(self._on_event)

    async def run(self, store: Store) -> None:
        """Root task: stores the signals of each subject that changes."""
        await reconcile("signals", lambda: self.once(store), self._bulkhead, wakeup=self._wakeup)

    async def once(self, store: Store) -> float | None:
        """Stores the signals of changed subjects; returns the seconds until failed ones are tried again."""
        changed, self._changed = self._changed, {}
        async with asyncio.TaskGroup() as group:
            tasks = [
                (subject, group.create_task(self._take_in(store, subject, signal)))
                for subject in changed.values()
                for signal in self._news(store, subject)
            ]
        for subject, task in tasks:
            if not task.result():
                self._changed.setdefault(subject.uid, subject)
        return _RETRY_SECONDS if self._changed else None

    def _news(self, store: Store, subject: Subject) -> Sequence[Signal]:
        """Returns the signals about a subject that change a notice. If a signal raises, the subject is tried again."""
        if not self._bulkhead.pause("signals", subject.uid):
            with self._bulkhead.guard("signals", subject.uid):
                notices, now, cluster_now = store.snapshot().notices, self._clock.now(), self._cluster_now()
                return [
                    signal
                    for signal in self._signals(subject)
                    if apply_signal(notices.get(signal.id), signal, now, cluster_now, self._policy)
                    is not notices.get(signal.id)
                ]
        self._changed.setdefault(subject.uid, subject)
        return ()

    async def _take_in(self, store: Store, subject: Subject, signal: Signal) -> bool:
        """Applies a signal to its notice; returns False if that has to be tried again."""
        before, notice = store.snapshot().notices.get(signal.id), None
        with self._bulkhead.guard("signals.store", subject.uid) as attempt:
            try:
                async with self._write_slots:
                    notice = await store.put_notice(
                        signal.id,
                        lambda known: apply_signal(known, signal, self._clock.now(), self._cluster_now(), self._policy),
                    )
            except StoreUnavailableError as error:
                self._fault.failed(str(error))
                return False
            self._fault.recovered()
            if notice is not None and notice != before:
                _log.info(
                    "notice.received",
                    notice=notice.id,
                    episode=notice.episode,
                    subject=notice.subject.name,
                    state=notice.state,
                    message=signal.message,
                )
        return not attempt.failed

    def _signals(self, subject: Subject) -> Iterator[Signal]:
        """Yields all present signals about a subject; none if it does not exist any more."""
        if subject.kind is SubjectKind.POD:
            pod = self._view.pod(subject.uid)
            if pod is None or not pod.opted_in:
                return
            present: tuple[Signal | None, ...] = (
                signals.pod_signal(pod),
                signals.event_signal(self._events.about_pod(pod), subject),
                signals.drill_signal((event for event, _ in self._drills.about_pod(pod)), subject),
            )
        else:
            node = self._view.node(subject.name)
            if node is None:
                return
            subject, lead = signals.node_subject(node), self._policy.default_lead_seconds
            present = (
                signals.node_signal(node, lead),
                signals.maintenance_signal(node),
                signals.drain_signal(node),
                signals.event_signal(self._events.about_node(node), subject),
                signals.drill_signal((event for event, _ in self._drills.about_node(node)), subject),
                *signals.taint_signals(node, self._taint_leads, self._cluster_now()),
            )
        yield from (signal for signal in present if signal is not None)

    def _on_subject(self, before: Pod | Node | None, after: Pod | Node | None) -> None:
        if before is not None:
            # A standby does not process the queue for days, and must not keep subjects that are deleted.
            self._changed.pop(before.metadata.uid, None)
        if isinstance(after, Node):
            self._enqueue(signals.node_subject(after))
        elif after is not None and after.opted_in:
            self._enqueue(signals.pod_subject(after))

    def _on_event(self, _before: ClusterEvent | None, after: ClusterEvent | None) -> None:
        if after is None:
            return
        involved = after.involved_object
        pod = self._view.pod(involved.uid)
        node = self._view.node(involved.name)
        if pod is not None and involved.kind == "Pod":
            self._enqueue(signals.pod_subject(pod))
        elif node is not None and involved.kind == "Node":
            self._enqueue(signals.node_subject(node))

    def _enqueue(self, subject: Subject) -> None:
        self._changed[subject.uid] = subject
        self._wakeup.set()
