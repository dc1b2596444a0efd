"""Provides the values for new pods: the present CA, and the nodes that have a notice at present."""

import math
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.tls import CertificateUnusable
from supervisor.decide.policy import Policy
from supervisor.decide.urgency import NodeIdentities, avoided_at, deadline_of, next_change, noticed_hosts
from supervisor.domain.ids import Host
from supervisor.domain.notice import NoticeState
from supervisor.store.interface import Snapshot
from supervisor.webhook.mutation import AvoidedNodes


class CaFile:
    """The CAs for pods, from a file that may be rotated; an unusable new version is ignored.

    Raises:
        CertificateUnusable: The file is unusable at the start.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._fault = Fault("CA to hand out", clock)
        self._text = _read(path, None)

    def text(self) -> str:
        """Returns the present content as PEM; the file is small and in the page cache."""
        try:
            self._text = _read(self._path, self._text)
        except CertificateUnusable as error:
            self._fault.failed(str(error))
        else:
            self._fault.recovered()
        return self._text


def _read(path: Path, known: str | None) -> str:
    """Reads the CAs, and checks them unless they are the known ones."""
    try:
        text = path.read_text(encoding="ascii")
        if text != known:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:  # OpenSSL's are of both kinds, and text that is not ASCII is a ValueError.
        raise CertificateUnusable(f"{path} holds no CA to hand out: {error}") from error
    return text


class NoticedNodes:
    """The nodes that new pods should avoid, computed once for each change of notices or nodes.

    Args:
        snapshot: Returns the stored notices.
        objects: Returns the uids of the cluster's Node objects.
        nodes_version: A number that grows whenever one of those uids changes.
        policy: Gives the deadline of a notice that names no time, and when scheduled notices count.
        clock: Unix seconds.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        objects: Callable[[], Mapping[Host, str]],
        nodes_version: Callable[[], int],
        policy: Policy,
        clock: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._objects = objects
        self._nodes_version = nodes_version
        self._policy = policy
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._changes_at = math.inf
        self._nodes = AvoidedNodes()

    def now(self) -> AvoidedNodes:
        """Returns the nodes to avoid at present."""
        snapshot, now = self._snapshot(), self._clock()
        seen = snapshot.version, self._nodes_version()
        if seen != self._seen or now >= self._changes_at:
            self._nodes, self._seen = avoided(snapshot, self._objects(), now, self._policy), seen
            active = (each for each in snapshot.notices.values() if each.state is NoticeState.ACTIVE)
            later = (next_change(each, now, self._policy) for each in active)
            self._changes_at = min((at for at in later if at is not None), default=math.inf)
        return self._nodes


def avoided(snapshot: Snapshot, objects: Mapping[Host, str], now: float, policy: Policy) -> AvoidedNodes:
    """Returns the nodes of the cluster to avoid. Only the leader also knows the live answers of agents.

    The noticed nodes with the latest deadline come first: the others are gone before many pods could be bound to them.
    """
    active = [each for each in snapshot.notices.values() if each.state is NoticeState.ACTIVE]
    identities = NodeIdentities(objects=objects)
    near = noticed_hosts((each for each in active if avoided_at(each, policy) <= now), identities, policy)
    hints = noticed_hosts((each for each in active if avoided_at(each, policy) == math.inf), identities, policy)
    there = [host for host in near if host in objects]
    there.sort(key=lambda host: (-deadline_of(near[host], policy), host))
    return AvoidedNodes(there, sorted(host for host in hints if host in objects and host not in near))
