"""Requests of a supervisor or an operator, from the API server's audit log."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

_ANSWERED, _BEGUN = "ResponseComplete", "ResponseStarted"
_MAX_MEBIBYTES = 1024
"""At the usual 100, a run of some ten thousand pods continues in a second file, which is not read."""

_WRITES = {"create", "update", "patch", "delete"}

_POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    # No other program uses a service account, so other traffic is not logged.
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class _AuditedObject(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""


class _AuditedUser(msgspec.Struct, frozen=True):
    username: str = ""


class _AuditLine(msgspec.Struct, frozen=True, rename="camel"):
    """The used fields of a log line."""

    stage: str
    verb: str
    request_received_timestamp: datetime
    stage_timestamp: datetime
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: _AuditedObject = _AuditedObject()
    user: _AuditedUser = _AuditedUser()


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """A request at `at` (Unix seconds). `what` is its verb and resource: "patch supervisedjobs/status".

    `seconds` is how long the API server processed it, and `user` the service account.
    """

    at: float
    what: str
    seconds: float
    user: str = ""

    @property
    def writes(self) -> bool:
        """Whether it changes an object. A command in a container does not."""
        return self.what.partition(" ")[0] in _WRITES


def flags(directory: Path) -> Mapping[str, object]:
    """Create that directory, and return the API server's flags that write the audit log to it."""
    directory.mkdir(parents=True)
    policy = directory / "audit-policy.json"
    policy.write_bytes(msgspec.json.encode(_POLICY))
    return {
        "audit-policy-file": policy,
        "audit-log-path": log_in(directory),
        "audit-log-maxbackup": 0,
        "audit-log-maxsize": _MAX_MEBIBYTES,
    }


def log_in(directory: Path) -> Path:
    return directory / "audit.log"


def requests(log: Path) -> list[AuditedRequest]:
    """Return all requests, each once: a watch when it starts, everything else when it is answered."""
    decoder = msgspec.json.Decoder(_AuditLine)
    lines = (decoder.decode(line) for line in log.read_bytes().splitlines())
    return [_request(line) for line in lines if _counts(line)]


def within(sent: Iterable[AuditedRequest], since: float, until: float) -> list[AuditedRequest]:
    """Return the requests between two instants in Unix seconds."""
    return [request for request in sent if since <= request.at < until]


def sent_by(user: str, sent: Iterable[AuditedRequest]) -> list[AuditedRequest]:
    """Return the requests of one account."""
    return [request for request in sent if request.user == user]


def kinds(sent: Iterable[AuditedRequest]) -> Counter[str]:
    return Counter(request.what for request in sent)


def _request(line: _AuditLine) -> AuditedRequest:
    begun, ended = line.request_received_timestamp, line.stage_timestamp
    return AuditedRequest(begun.timestamp(), _what(line), (ended - begun).total_seconds(), line.user.username)


def _counts(line: _AuditLine) -> bool:
    return line.stage == (_BEGUN if line.verb == "watch" else _ANSWERED)


def _what(line: _AuditLine) -> str:
    whom = line.object_ref
    name = f"{whom.resource}/{whom.subresource}".rstrip("/") or line.request_uri.partition("?")[0]
    return f"{line.verb} {name}"
