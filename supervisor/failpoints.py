"""Names the points at which tests can kill the supervisor, around every write and action (`servicekit.failpoints`)."""

from enum import StrEnum


class At(StrEnum):
    """The failpoints that all kinds of jobs share, in the order in which a notice passes them."""

    SECRET_WRITTEN = "secret.written"  # noqa: S105 - a point in the code
    SECRET_LINKED = "secret.linked"  # noqa: S105 - as above
    STORE_PREPARED = "store.prepared"
    STORE_LINKED = "store.linked"
    HTTP_BOUND = "http.bound"
    ENDPOINTS_WRITTEN = "endpoints.written"
    ENDPOINTS_REPLACED = "endpoints.replaced"
    AGENT_CONNECTED = "agent.connected"
    MACHINE_REPLACED = "machine.replaced"
    NOTICE_RECEIVED = "notice.received"
    NOTICE_STORED = "notice.stored"
    NOTICE_ACKNOWLEDGED = "notice.acknowledged"
    NOTICE_AGEING = "notice.ageing"
    NOTICE_AGED = "notice.aged"
    HELLO_RECEIVED = "hello.received"
    JOB_REGISTERED = "job.registered"
    FIRST_ORDER_SENT = "first_order.sent"
    REPORT_RECEIVED = "report.received"
    REPORT_STORED = "report.stored"
    ACKNOWLEDGEMENT_RECEIVED = "acknowledgement.received"
    ACKNOWLEDGEMENT_STORED = "acknowledgement.stored"
    STORE_BEGINS = "store.begins"
    STORE_WRITTEN = "store.written"
    STORE_COMMITTED = "store.committed"
    STORE_PUBLISHED = "store.published"
    RESOURCE_CREATED = "resource.created"
    RESOURCE_WRITTEN = "resource.written"
    OBSERVED_STORED = "observed.stored"
    DECISION_MADE = "decision.made"
    DECISION_STORED = "decision.stored"
    DIRECTIVES_PUSHED = "directives.pushed"
    ORDER_PUBLISHED = "order.published"
    POD_REMOVED = "pod.removed"
    ORDER_APPLIED = "order.applied"
    PRUNING = "pruning"
    PRUNED = "pruned"
