"""The agent's failpoints (see `servicekit.failpoints`): around every step of a notice's way."""

from enum import StrEnum


class At(StrEnum):
    """Every failpoint, in the order in which a notice meets them."""

    SOURCE_ANSWERED = "source.answered"
    REPORT_KEPT = "report.kept"
    HELLO_SENDING = "hello.sending"
    HELLO_SENT = "hello.sent"
    NOTICE_SENDING = "notice.sending"
    NOTICE_SENT = "notice.sent"
    ACKNOWLEDGEMENT_RECEIVED = "acknowledgement.received"
    ACKNOWLEDGEMENT_KEPT = "acknowledgement.kept"
