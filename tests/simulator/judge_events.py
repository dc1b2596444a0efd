"""Events for the judge, made up."""

from simulator.events import Event, Kind


def at(t: float, kind: Kind, **fields: object) -> Event:
    return Event(t, kind, fields)


def ring(t: float, hosts: str, run: int = 1, epoch: int = 1) -> Event:
    return at(t, Kind.RING_FORMED, run=run, epoch=epoch, hosts=list(hosts))


def step(t: float, number: int, run: int = 1, epoch: int = 1, digest: str | None = None) -> list[Event]:
    fields = {"run": run, "epoch": epoch, "step": number, "digest": digest or f"d{number}"}
    return [at(t + rank / 1000, Kind.STEP_APPLIED, rank=rank, host="ab"[rank], **fields) for rank in (0, 1)]


def notice(t: float, node: str, group: str = "g") -> Event:
    return at(t, Kind.NOTICE_SHOWN, node=node, group=group, lead=60.0, deadline=t + 60, synthetic=False)


def flag(t: float, directive: str = "STOP", run: int = 1, rank: int = 0, host: str = "a") -> Event:
    return at(t, Kind.FLAG_SEEN, run=run, host=host, rank=rank, directive=directive, step=2)


def saved(t: float, number: int, run: int = 1, rank: int = 0) -> Event:
    """A rank has saved a checkpoint."""
    return at(t, Kind.CHECKPOINT_SAVED, run=run, step=number, rank=rank, host="a")


def end(t: float, run: int = 1, number: int = 4, digest: str = "d4") -> Event:
    return at(t, Kind.JOB_FINISHED, run=run, step=number, digest=digest)


def excluded(t: float, hosts: str) -> Event:
    return at(t, Kind.EXCLUSIONS_CHANGED, hosts=list(hosts))


def gone(t: float, node: str, *, announced: bool = True) -> Event:
    return at(t, Kind.NODE_GONE, node=node, announced=announced)


def withdrawn(t: float, node: str) -> Event:
    return at(t, Kind.NOTICE_WITHDRAWN, node=node)


def added(t: float, nodes: str) -> list[Event]:
    return [at(t, Kind.NODE_ADDED, node=node) for node in nodes]


def over(t: float, run: int = 1, code: int = 143) -> Event:
    """The launcher of a run has ended, and its workers with it."""
    return at(t, Kind.RUN_ENDED, run=run, code=code)
