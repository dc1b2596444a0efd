"""Errors of calls to the API server, one for each way in which a caller goes on."""


class ApiError(Exception):
    """A call failed."""


class ApiUnavailableError(ApiError):
    """There was no usable answer: try again later. The change may have been made nevertheless."""


class ConflictError(ApiError):
    """The object has changed since it was read, or exists already: read it again."""


class NotFoundError(ApiError):
    """There is no such object, or no such resource."""


class HistoryLostError(ApiError):
    """The API server no longer knows what changed since that version: list again."""


class RefusedError(ApiError):
    """The request is not allowed or not valid, and will stay so. The message is the API server's."""


class UnreadableError(ApiError):
    """An object does not decode: another version wrote it."""


class ConfigurationError(Exception):
    """The configuration of the cluster's access is missing or not usable: a person has to act."""


class MissingConfigurationError(ConfigurationError):
    """Nothing names a cluster."""
