"""Decodes and answers admission reviews. Every object is allowed."""

import base64
from collections.abc import Sequence

import msgspec

from supervisor.cluster.podspec import Body
from supervisor.webhook.mutation import Mutation, PodInjection, mutation_for
from supervisor.webhook.pods import NewPod

API_VERSION = "admission.k8s.io/v1"
_KIND = "AdmissionReview"
_NAME = "job-supervisor: "
_MAX_WARNING = 120
"""Characters of a warning: API servers truncate longer ones if there are many."""


class NotUnderstoodError(Exception):
    """The pod cannot be decoded by this version; it is not changed."""


class _ObjectKind(Body, frozen=True):
    kind: str
    group: str = ""


class Request(Body, frozen=True):
    """The request of a review; `object` is the new object."""

    uid: str
    kind: _ObjectKind
    operation: str
    object: msgspec.Raw = msgspec.Raw(b"null")
    sub_resource: str = ""

    @property
    def makes_pod(self) -> bool:
        """Whether the request creates a pod; nothing else is changed."""
        return self.creates and (self.kind.group, self.kind.kind) == ("", "Pod")

    @property
    def creates(self) -> bool:
        """Whether the request creates an object."""
        return self.operation == "CREATE" and not self.sub_resource


class Review(Body, frozen=True):
    """An admission review."""

    api_version: str
    kind: str
    request: Request

    def __post_init__(self) -> None:
        if (self.api_version, self.kind) != (API_VERSION, _KIND):
            raise ValueError(f"{self.kind} {self.api_version} is not an {_KIND} of {API_VERSION}")


class _Response(Body, frozen=True, omit_defaults=True):
    uid: str
    allowed: bool
    patch_type: str = ""
    patch: str = ""
    warnings: Sequence[str] = ()


class _Answer(Body, frozen=True):
    api_version: str
    kind: str
    response: _Response


def review_mutation(request: Request, injection: PodInjection) -> Mutation:
    """The mutation of the request's object.

    Raises:
        NotUnderstoodError: The pod cannot be decoded.
    """
    if not request.makes_pod:
        return Mutation()
    try:
        pod = msgspec.json.decode(request.object, type=NewPod)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotUnderstoodError(str(error)) from error
    return mutation_for(pod, injection)


def answer(uid: str, what: Mutation) -> bytes:
    """The response that allows the object with a mutation."""
    warnings = tuple(f"{_NAME}{said}"[:_MAX_WARNING] for said in what.warnings)
    response = _Response(uid, allowed=True, warnings=warnings)
    if what.patch:
        patch = base64.b64encode(msgspec.json.encode(what.patch)).decode()
        response = msgspec.structs.replace(response, patch_type="JSONPatch", patch=patch)
    return msgspec.json.encode(_Answer(API_VERSION, _KIND, response))


def answer_with_warnings(uid: str, warnings: Sequence[str]) -> bytes:
    """The response that allows the object as it is; warnings of whole sentences are not cut."""
    response = _Response(uid, allowed=True, warnings=tuple(f"{_NAME}{said}" for said in warnings))
    return msgspec.json.encode(_Answer(API_VERSION, _KIND, response))
