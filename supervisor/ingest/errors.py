"""Defines the refusals that gRPC and HTTP share, and their codes."""

from supervisor.decide import registration
from supervisor.domain.asking import NotPermittedError, NotTakenError, UncertainError, UnknownSubjectError
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError, ForeignPodError
from supervisor.refusals import Code
from supervisor.store.interface import StoreUnavailableError


class MalformedError(Exception):
    """The message is malformed. Sending it again cannot succeed."""


class ForeignTokenError(Exception):
    """The token is valid, but not for this request."""


class UnknownNodeError(Exception):
    """No agent of this node is known."""


class UnknownRelayError(Exception):
    """The relay has no open stream at this supervisor."""


class OversizedError(Exception):
    """The message exceeds its maximum size."""


class TooManyError(Exception):
    """A limit per token is reached. Everything that was accepted before is kept."""


class SlowReaderError(Exception):
    """The peer does not read its stream."""


CODES: dict[type[Exception], Code] = {
    MalformedError: Code.MALFORMED,
    BadTokenError: Code.BAD_TOKEN,
    ForeignTokenError: Code.FOREIGN_TOKEN,
    ForeignPodError: Code.FOREIGN_TOKEN,
    NotPermittedError: Code.FOREIGN_TOKEN,
    UnknownSubjectError: Code.UNKNOWN_JOB,
    NotTakenError: Code.FOREIGN_TOKEN,
    UncertainError: Code.NOT_SERVING,
    registration.ForeignJobError: Code.FOREIGN_TOKEN,
    registration.UnknownJobError: Code.UNKNOWN_JOB,
    UnknownNodeError: Code.UNKNOWN_NODE,
    UnknownRelayError: Code.UNKNOWN_RELAY,
    registration.NameIsLiveError: Code.NAME_IS_LIVE,
    registration.RunIsOverError: Code.RUN_IS_OVER,
    registration.JobIsOverError: Code.JOB_IS_OVER,
    registration.JobEndsError: Code.JOB_IS_OVER,
    registration.ClusterJobError: Code.MALFORMED,
    registration.OlderRevisionError: Code.OLDER_REVISION,
    OversizedError: Code.OVERSIZED,
    TooManyError: Code.TOO_MANY,
    SlowReaderError: Code.SLOW_READER,
    AuthenticationUnavailableError: Code.NOT_SERVING,
    StoreUnavailableError: Code.NOT_SERVING,
}
"""The code of each refusal. An exception of another type is not a refusal but a bug."""
