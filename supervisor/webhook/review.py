"""Admission reviews: the question that an API server asks about an object, and the answer, which is always yes."""

import base64
from collections.abc import Sequence

import msgspec

from supervisor.cluster.podspec import Body
from supervisor.webhook.mutation import Mutation, PodInjection, mutated
from supervisor.webhook.pods import NewPod

API_VERSION = "admission.k8s.io/v1"
_KIND = "AdmissionReview"
_MAX_WARNING = 120
"""Characters of each; an API server cuts them there where they are many."""


class NotUnderstoodError(Exception):
    """A pod that is no pod as far as anybody here knows: it is made as it is."""


class _ObjectKind(Body, frozen=True):
    kind: str
    group: str = ""


class Request(Body, frozen=True):
    """What is asked; `object` is what is about to be made."""

    uid: str
    kind: _ObjectKind
    operation: str
    object: msgspec.Raw = msgspec.Raw(b"null")
    sub_resource: str = ""

    @property
    def makes_pod(self) -> bool:
        """Whether it is about a pod that is to be made; nothing else is ours to change."""
        made = self.operation == "CREATE" and not self.sub_resource
        return made and (self.kind.group, self.kind.kind) == ("", "Pod")


class Review(Body, frozen=True):
    """The question."""

    api_version: str
    kind: str
    request: Request

    def __post_init__(self) -> None:
        if (self.api_version, self.kind) != (API_VERSION, _KIND):
            raise ValueError(f"{self.kind} {self.api_version} is no {_KIND} {API_VERSION}")


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


def considered(request: Request, gifts: PodInjection) -> Mutation:
    """What becomes of what is asked about.

    Raises:
        NotUnderstoodError: It is left as it is.
    """
    if not request.makes_pod:
        return Mutation()
    try:
        pod = msgspec.json.decode(request.object, type=NewPod)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotUnderstoodError(str(error)) from error
    return mutated(pod, gifts)


def answer(uid: str, what: Mutation) -> bytes:
    """Yes, with those changes."""
    warnings = tuple(f"job-supervisor: {said}"[:_MAX_WARNING] for said in what.warnings)
    response = _Response(uid, allowed=True, warnings=warnings)
    if what.patch:
        patch = base64.b64encode(msgspec.json.encode(what.patch)).decode()
        response = msgspec.structs.replace(response, patch_type="JSONPatch", patch=patch)
    return msgspec.json.encode(_Answer(API_VERSION, _KIND, response))
