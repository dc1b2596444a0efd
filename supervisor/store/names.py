"""The kinds and names of the custom resources that hold notices and jobs."""

import hashlib
import re
from collections.abc import Mapping

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import ObjectKey
from supervisor.domain.ids import JobName, NoticeId, cluster_job, kind_of
from supervisor.domain.job import SupervisedJob

_GROUP = "job-supervisor.kube-ai.io"
_VERSION = "v1alpha1"
# A reclaim of a whole zone is thousands of new notices: each is created together with its status, in one request.
NOTICES = Resource(
    group=_GROUP,
    version="v1alpha2",
    status_version=_VERSION,
    kind="ReclaimNotice",
    plural="reclaimnotices",
    namespaced=False,
)
# Some 200 KB a job of thousands of workers: a page of 500 would be 100 MB.
JOBS = Resource(group=_GROUP, version=_VERSION, kind="SupervisedJob", plural="supervisedjobs", namespaced=True, page=50)

_STANDALONE = "standalone"
_HASH = "-hash"
_HASHED = _STANDALONE + _HASH
"""For names that no resource can have. A kind has no dot and no hyphen, so no other job's resource begins so."""

_MAX_NAME = 253
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def notice_key(key: NoticeId, episode: int) -> ObjectKey:
    """Returns the key of an episode's resource: a hash, as sources and uids may hold anything."""
    return ObjectKey("", "n-" + _hash(f"{key}/{episode}"))


def job_key(name: JobName, home: str) -> ObjectKey:
    """Returns the key of a job's resource, in the job's namespace, or in `home` if it was registered stand-alone."""
    namespace, slash, resource = name.partition("/")
    if slash:
        return ObjectKey(namespace, resource if len(resource) <= _MAX_NAME else _shortened(name, resource))
    resource = f"{_STANDALONE}.{name}"
    if len(resource) <= _MAX_NAME and _RESOURCE_NAME.fullmatch(resource):
        return ObjectKey(home, resource)
    return ObjectKey(home, f"{_HASHED}.{_hash(name)}")


def _shortened(name: JobName, resource: str) -> str:
    """The name of a resource for a job whose own name leaves no room for its kind: a beginning to read, and a hash."""
    kind, _, bare = resource.partition(".")
    ending = f"-{_hash(name)}"
    beginning = f"{kind}{_HASH}.{bare}"[: _MAX_NAME - len(ending)].rstrip("-.")
    return beginning + ending


def job_name(key: ObjectKey, name: str, home: str) -> JobName | None:
    """Returns the job in a resource whose spec has `name`; None for another supervisor's stand-alone job."""
    kind, _, _ = key.name.partition(".")
    if kind not in (_STANDALONE, _HASHED):
        if not kind.endswith(_HASH):
            return JobName(f"{key.namespace}/{key.name}")
        found = cluster_job(key.namespace, kind.removesuffix(_HASH), name)
        return found if key == job_key(found, home) else None
    return JobName(name) if key == job_key(JobName(name), home) else None


def owners(job: SupervisedJob, kinds: Mapping[str, Resource]) -> list[Mapping[str, str]]:
    """Returns the owner of the job's resource: the object of the cluster that it is about, by the kinds' resources."""
    kind = kinds.get(kind_of(job.name))
    if kind is None:
        return []
    return [{"apiVersion": kind.api_version, "kind": kind.kind, "name": bare_name(job.name), "uid": job.uid}]


def bare_name(name: JobName) -> str:
    """Returns the name within its namespace and kind."""
    _, slash, resource = name.partition("/")
    return resource.partition(".")[2] if slash else name


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
