"""Defines typed identifiers, so that one cannot be mistaken for another."""

from typing import Annotated, NamedTuple, NewType

Host = NewType("Host", str)
"""One entry of a launcher's host list; stand-alone it is the node name of the host's agent."""

JobName = NewType("JobName", str)
"""Stand-alone the registered name; on a cluster `namespace/kind.name`, which no launcher can register."""


class JobId(NamedTuple):
    """Names one registration of a job. A name is used again, and facts about one job must not count for the next.

    A stand-alone job gets a new `uid` with each registration. A cluster's job keeps that of its object when it is
    released and registered again, for example after a person has suspended it; its runs and generations then begin at 1
    once more, so `registered_at` (Unix seconds) belongs to its identity.
    """

    name: JobName
    uid: str
    registered_at: float


Source = NewType("Source", str)

NoticeId = NewType("NoticeId", str)
"""`source/subject name/subject uid`, so that repeated polls, restarts and repeated Events update the same notice."""


MAX_NAME = 253
"""The limit of Kubernetes for names of objects."""
NAME_RULE = f"1 to {MAX_NAME} printable characters"


def is_name(text: str) -> bool:
    """Whether a name is valid on the wire and can be shown to people."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


STANDALONE = "standalone"
"""The kind of jobs that are started by `kubeai-run`."""


def kind_of(name: JobName) -> str:
    """Returns the kind of a job in lower case."""
    _, slash, resource = name.partition("/")
    return resource.partition(".")[0] if slash else STANDALONE


def namespace(name: JobName) -> str:
    """Returns the namespace of a cluster's job; empty for a stand-alone one."""
    before, slash, _ = name.partition("/")
    return before if slash else ""


def cluster_job(namespace: str, kind: str, name: str) -> JobName:
    """Returns the full name of a cluster's job; `kind` is in lower case."""
    return JobName(f"{namespace}/{kind}.{name}")


def bare_name(name: JobName) -> str:
    """Returns the name of a job without its namespace and kind."""
    _, slash, resource = name.partition("/")
    return resource.partition(".")[2] if slash else name


Instant = Annotated[float, "Unix seconds"]
"""Unix seconds of the supervisor's clock. The type tells custom resources, which write RFC 3339, from a duration."""
