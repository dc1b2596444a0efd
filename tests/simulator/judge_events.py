"""Events for the judge, made up."""

from simulator.events import JobEvent, JobEventKind


def at(t: float, kind: JobEventKind, **fields: object) -> JobEvent:
    return JobEvent(t, kind, fields)


def ring(t: float, hosts: str, run: int = 1, epoch: int = 1) -> JobEvent:
    return at(t, JobEventKind.RING_FORMED, run=run, epoch=epoch, hosts=list(hosts))


def step(t: float, number: int, run: int = 1, epoch: int = 1, digest: str | None = None) -> list[JobEvent]:
    fields = {"run": run, "epoch": epoch, "step": number, "digest": digest or f"d{number}"}
    return [at(t + rank / 1000, JobEventKind.STEP_APPLIED, rank=rank, host="ab"[rank], **fields) for rank in (0, 1)]


def notice(t: float, node: str, group: str = "g") -> JobEvent:
    return at(t, JobEventKind.NOTICE_SHOWN, node=node, group=group, lead=60.0, deadline=t + 60, synthetic=False)


def flag(t: float, directive: str = "STOP", run: int = 1, rank: int = 0, host: str = "a") -> JobEvent:
    return at(t, JobEventKind.FLAG_SEEN, run=run, host=host, rank=rank, directive=directive, step=2)


def saved(t: float, number: int, run: int = 1, rank: int = 0) -> JobEvent:
    """A rank has saved a checkpoint."""
    return at(t, JobEventKind.CHECKPOINT_SAVED, run=run, step=number, rank=rank, host="a")


def end(t: float, run: int = 1, number: int = 4, digest: str = "d4") -> JobEvent:
    return at(t, JobEventKind.JOB_FINISHED, run=run, step=number, digest=digest)


def excluded(t: float, hosts: str) -> JobEvent:
    return at(t, JobEventKind.EXCLUSIONS_CHANGED, hosts=list(hosts))


def gone(t: float, node: str, *, announced: bool = True) -> JobEvent:
    return at(t, JobEventKind.NODE_GONE, node=node, announced=announced)


def withdrawn(t: float, node: str) -> JobEvent:
    return at(t, JobEventKind.NOTICE_WITHDRAWN, node=node)


def added(t: float, nodes: str) -> list[JobEvent]:
    return [at(t, JobEventKind.NODE_ADDED, node=node) for node in nodes]


def over(t: float, run: int = 1, code: int = 143) -> JobEvent:
    """The launcher of a run has ended, and its workers with it."""
    return at(t, JobEventKind.RUN_ENDED, run=run, code=code)
