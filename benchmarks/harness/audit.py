"""The supervisor's requests, from the API server's audit log."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

_ANSWERED, _BEGUN = "ResponseComplete", "ResponseStarted"
_WRITES = {"create", "update", "patch", "delete"}

_POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    # No other program uses a service account, so other traffic is not logged.
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class _Object(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """The used fields of a log line."""

    stage: str
    verb: str
    request_received_timestamp: datetime
    stage_timestamp: datetime
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: _Object = _Object()


@dataclass(frozen=True, slots=True)
class Request:
    """A request at `at` (Unix seconds). `what` is its verb and resource: "patch supervisedjobs/status".

    `seconds` is how long the API server processed it.
    """

    at: float
    what: str
    seconds: float

    @property
    def writes(self) -> bool:
        """Whether it changes an object. A command in a container does not."""
        return self.what.partition(" ")[0] in _WRITES


def flags(directory: Path) -> Mapping[str, object]:
    """Create that directory, and return the API server's flags that write the audit log to it."""
    directory.mkdir(parents=True)
    policy = directory / "audit-policy.json"
    policy.write_bytes(msgspec.json.encode(_POLICY))
    return {"audit-policy-file": policy, "audit-log-path": log_in(directory), "audit-log-maxbackup": 0}


def log_in(directory: Path) -> Path:
    return directory / "audit.log"


def requests(log: Path) -> list[Request]:
    """Return all requests, each once: a watch when it starts, everything else when it is answered."""
    decoder = msgspec.json.Decoder(_Line)
    lines = (decoder.decode(line) for line in log.read_bytes().splitlines())
    return [_request(line) for line in lines if _counts(line)]


def within(sent: Iterable[Request], since: float, until: float) -> list[Request]:
    """Return the requests between two instants in Unix seconds."""
    return [request for request in sent if since <= request.at < until]


def kinds(sent: Iterable[Request]) -> Counter[str]:
    return Counter(request.what for request in sent)


def _request(line: _Line) -> Request:
    begun, ended = line.request_received_timestamp, line.stage_timestamp
    return Request(begun.timestamp(), _what(line), (ended - begun).total_seconds())


def _counts(line: _Line) -> bool:
    return line.stage == (_BEGUN if line.verb == "watch" else _ANSWERED)


def _what(line: _Line) -> str:
    whom = line.object_ref
    name = f"{whom.resource}/{whom.subresource}".rstrip("/") or line.request_uri.partition("?")[0]
    return f"{line.verb} {name}"
