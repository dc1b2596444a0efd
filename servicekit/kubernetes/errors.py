"""Defines the errors of calls to the API server, one for each reaction of a caller."""


class ApiError(Exception):
    """A call failed."""


class ApiUnavailableError(ApiError):
    """There was no usable answer, so the caller tries again later. The change may have been made nevertheless."""


class ConflictError(ApiError):
    """The object has changed since it was read, or exists already. The caller reads it again."""


class NotFoundError(ApiError):
    """There is no such object, or no such resource."""


class HistoryLostError(ApiError):
    """The API server no longer has the changes since this version. The caller lists again."""


class RefusedError(ApiError):
    """The request is not allowed or not valid, and will stay so. The message is the API server's."""


class UnreadableError(ApiError):
    """An object cannot be decoded, because another version wrote it."""


class ConfigurationError(Exception):
    """The configuration of the access to a cluster is missing or unusable. A person has to act."""


class MissingConfigurationError(ConfigurationError):
    """Nothing names a cluster."""
