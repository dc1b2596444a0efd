"""Defines why the keeper refuses a request."""

from enum import StrEnum


class RefusalCode(StrEnum):
    """The reason of a refusal. These are the only label values: no text of a peer becomes one."""

    BAD_REQUEST = "bad_request"
    """The bytes are not HTTP."""
    UNKNOWN_CALL = "unknown_call"
    MALFORMED = "malformed"
    LENGTH_REQUIRED = "length_required"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a code, not a token
    FOREIGN_STATE = "foreign_state"
    UNKNOWN_PART = "unknown_part"
    DELETED = "deleted"
    """The state was deleted, or its time ended, while the part was being sent."""
    CROWDED = "crowded"
    """There are too many connections, so one is closed without an answer."""
    TOO_SLOW = "too_slow"
    TOO_MANY = "too_many"
    NO_ROOM = "no_room"
    UNAVAILABLE = "unavailable"
    """The token cannot be reviewed at present."""
    INTERNAL = "internal"
    """A bug of the keeper, logged with its traceback."""


STATUS = {
    RefusalCode.MALFORMED: 400,
    RefusalCode.BAD_TOKEN: 401,
    RefusalCode.FOREIGN_STATE: 403,
    RefusalCode.UNKNOWN_PART: 404,
    RefusalCode.TOO_SLOW: 408,
    RefusalCode.DELETED: 409,
    RefusalCode.LENGTH_REQUIRED: 411,
    RefusalCode.TOO_MANY: 429,
    RefusalCode.INTERNAL: 500,
    RefusalCode.UNAVAILABLE: 503,
    RefusalCode.NO_ROOM: 507,
}
"""The HTTP status of each; an unknown call has that of the router."""


class RequestRefusedError(Exception):
    """A request is refused.

    Attributes:
        code: Why.
        free: With `NO_ROOM`, the bytes that the tenant may still send.
    """

    def __init__(self, code: RefusalCode, message: str, free: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.free = free
