"""Why a peer is refused: what is the same on both wires."""

from supervisor.decide.registration import (
    ForeignJobError,
    NameIsLiveError,
    OlderRevisionError,
    RunIsOverError,
    UnknownJobError,
)
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError, ForeignPodError
from supervisor.refusals import Code
from supervisor.store.interface import StoreUnavailableError


class MalformedError(Exception):
    """The message is wrong and will stay wrong."""


class ForeignTokenError(Exception):
    """The token is good, but for something else."""


class UnknownNodeError(Exception):
    """No agent of a node of that name has ever spoken here, or it is long forgotten."""


class OversizedError(Exception):
    """The message is larger than anything honest."""


class TooManyError(Exception):
    """One token has brought more than anything honest; what it brought before is kept."""


class SlowReaderError(Exception):
    """The peer does not read what it is sent."""


_CODES: dict[type[Exception], Code] = {
    MalformedError: Code.MALFORMED,
    BadTokenError: Code.BAD_TOKEN,
    ForeignTokenError: Code.FOREIGN_TOKEN,
    ForeignPodError: Code.FOREIGN_TOKEN,
    ForeignJobError: Code.FOREIGN_TOKEN,
    UnknownJobError: Code.UNKNOWN_JOB,
    UnknownNodeError: Code.UNKNOWN_NODE,
    NameIsLiveError: Code.NAME_IS_LIVE,
    RunIsOverError: Code.RUN_IS_OVER,
    OlderRevisionError: Code.OLDER_REVISION,
    OversizedError: Code.OVERSIZED,
    TooManyError: Code.TOO_MANY,
    SlowReaderError: Code.SLOW_READER,
    AuthenticationUnavailableError: Code.NOT_SERVING,
    StoreUnavailableError: Code.NOT_SERVING,
}


def code_of(error: Exception) -> Code | None:
    """The code of a refusal; None where the exception is none, but a fault of ours."""
    return _CODES.get(type(error))
