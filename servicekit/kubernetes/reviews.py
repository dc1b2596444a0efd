"""Has the API server review tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.kubernetes.server import ApiServer, Call

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"

_ACCOUNT = "system:serviceaccount"
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedPod:
    """The pod that a token is bound to, and its service account. The API server has checked that it exists."""

    namespace: str
    account: str
    name: str
    uid: str


class ReviewedUser(msgspec.Struct, frozen=True):
    """The user of a token, as the API server knows it."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}

    @property
    def pod(self) -> ReviewedPod | None:
        """The pod, if the token is a pod's."""
        rest, _, account = self.username.rpartition(":")
        prefix, _, namespace = rest.rpartition(":")
        name, uid = self.extra.get(_POD_NAME, [""])[0], self.extra.get(_POD_UID, [""])[0]
        if prefix != _ACCOUNT or not name or not uid:
            return None
        return ReviewedPod(namespace=namespace, account=account, name=name, uid=uid)


class ReviewStatus(msgspec.Struct, frozen=True):
    """Says what a review of a token has found."""

    authenticated: bool = False
    audiences: list[str] = []
    user: ReviewedUser = ReviewedUser()

    def pod(self, audience: str) -> ReviewedPod | None:
        """Returns the pod, if the token is a pod's and valid for this audience."""
        # An API server that knows no audiences lists none.
        return self.user.pod if self.authenticated and audience in self.audiences else None


class _TokenReview(msgspec.Struct, frozen=True):
    status: ReviewStatus = ReviewStatus()


async def review(server: ApiServer, token: str, audiences: Sequence[str] = ()) -> ReviewStatus:
    """Has a token reviewed: for these audiences, or else for the API server's own.

    Raises:
        ApiError: It cannot be reviewed at present.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, **({"audiences": audiences} if audiences else {})},
    }
    shown = await server.request(Call(method="POST", path=_TOKENS, body=msgspec.json.encode(body)))
    try:
        return msgspec.json.decode(shown, type=_TokenReview).status
    except msgspec.MsgspecError as error:
        raise ApiUnavailableError("the review of the token cannot be read") from error
