"""The form of notices in custom resources: one ReclaimNotice for each episode."""

from collections.abc import Mapping

import msgspec

from servicekit.kubernetes.objects import ObjectKey
from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.codec import CustomResource, Record
from supervisor.store.conditions import notice_condition
from supervisor.store.fields import Fields, decode, encode
from supervisor.store.names import notice_key


def read_notice(data: bytes | msgspec.Raw) -> Record[ReclaimNotice]:
    """See `Codec.decode`."""
    resource = msgspec.json.decode(data, type=CustomResource)
    if resource.status is None:
        return Record(resource, None)
    return Record(resource, decode(resource.status | resource.spec, ReclaimNotice))


class NoticeCodec:
    """See `Codec`."""

    def id(self, value: ReclaimNotice) -> NoticeId:
        return value.id

    def rank(self, value: ReclaimNotice) -> int:
        return value.episode

    def object_key(self, value: ReclaimNotice) -> ObjectKey:
        return notice_key(value.id, value.episode)

    def spare_key(self, key: ObjectKey) -> ObjectKey:
        return ObjectKey(key.namespace, f"{key.name}-again")

    def metadata(self, value: ReclaimNotice) -> Mapping[str, object]:  # noqa: ARG002 - Codec
        return {}

    def encode(
        self,
        value: ReclaimNotice,
        before: Record[ReclaimNotice] | None,  # noqa: ARG002 - Codec
        epoch: int,
    ) -> tuple[Fields, Fields]:
        status = encode(value)
        spec = {name: status.pop(name) for name in ("source", "subject", "episode")}
        return spec, {"epoch": epoch, **status, "conditions": [encode(notice_condition(value))]}

    def decode(self, data: bytes | msgspec.Raw) -> Record[ReclaimNotice]:
        return read_notice(data)
