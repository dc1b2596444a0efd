"""What can come of a call to the API server, named for what the caller does next."""


class ApiError(Exception):
    """A call that did not do what was asked."""


class ApiUnavailableError(ApiError):
    """No answer, or none that counts: try again later. A change may have been made nevertheless."""


class ConflictError(ApiError):
    """Not as it was read, or there already: read it again."""


class NotFoundError(ApiError):
    """No such object, or no such collection."""


class HistoryLostError(ApiError):
    """What changed since then is not known any more: list again."""


class RefusedError(ApiError):
    """Not allowed or not valid, and will stay so; the message is the API server's."""


class UnreadableError(ApiError):
    """An object does not decode: another version wrote it."""


class ConfigurationError(Exception):
    """Nothing says where the cluster is, or what does is no good: the operator has to act."""
