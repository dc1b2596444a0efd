"""Where checkpoints are written."""

import posixpath
import re
import shlex
from collections.abc import Iterator

from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind, Mount, Role

_OPTION = re.compile(r"--?[\w-]*(?:checkpoint|ckpt)[\w-]*|--(?:output|save)[_-]?(?:dir|path)?", re.IGNORECASE)
_VARIABLE = re.compile(r"\w*(?:CHECKPOINT|CKPT)\w*", re.IGNORECASE)
_LOST = {
    "emptyDir": "a volume that is deleted with its pod (emptyDir)",
    "ephemeral": "a volume that is deleted with its pod (ephemeral)",
    "hostPath": "a directory of the machine that goes (hostPath)",
}
_HAS_LAUNCHER = (Kind.TRAINING_JOB, Kind.MPI_JOB)


@rule("checkpoint-on-node", Severity.ERROR, "checkpoints in a volume that is lost with its pod or machine")
def checkpoint_on_node(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role in job.roles:
        for path in dict.fromkeys(_paths(role)):
            mount = _mount(_mounts(job, role), path)
            if mount is not None and mount.volume in _LOST:
                yield Problem(
                    role.path,
                    f"Checkpoints in {path} are written to {_LOST[mount.volume]}, so a resumed job does not find them.",
                    f"Mount a volume that all nodes share at {mount.path}, such as a PersistentVolumeClaim "
                    "with ReadWriteMany.",
                )


def _mounts(job: CheckedJob, role: Role) -> tuple[Mount, ...]:
    """The mounts where the role's command trains: a launcher starts the processes in the workers' pods."""
    if role.leads and job.kind in _HAS_LAUNCHER:
        return tuple(mount for each in job.roles if not each.leads for mount in each.mounts)
    return role.mounts


def _paths(role: Role) -> Iterator[str]:
    """The absolute paths that options and variables name as the place of checkpoints."""
    for text in role.texts:
        words = _words(text)
        for at, word in enumerate(words):
            option, equals, value = word.partition("=")
            if _OPTION.fullmatch(option):
                yield from _absolute(value if equals else "".join(words[at + 1 : at + 2]))
    for name, value in role.environment.items():
        if _VARIABLE.fullmatch(name):
            yield from _absolute(value)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # A quotation that does not end.
        return text.split()


def _absolute(path: str) -> Iterator[str]:
    if path.startswith("/"):
        yield posixpath.normpath(path)


def _mount(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount that the path is in: the longest one, as mounts may lie in others."""
    there = [each for each in mounts if f"{path}/".startswith(f"{posixpath.normpath(each.path)}/") or each.path == "/"]
    return max(there, key=lambda each: len(each.path), default=None)
