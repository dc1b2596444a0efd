"""Source `gcp`: asks the metadata service of a Compute Engine VM.

Three items: `instance/preempted` turns TRUE when a spot VM is preempted, `instance/maintenance-event` names what is
about to happen to the VM, and `instance/upcoming-maintenance`, on some machines, announces maintenance days ahead.
Every answer must carry the service's own header, or it is another service's.
"""

import re
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec

from node_agent import metadata
from node_agent.notices import Answer, Clear, MachinePrice, NodeIdentity, Noticed, NoticeUrgency, SourceUnavailable
from servicekit.clock import Clock

_ROOT = "/computeMetadata/v1"
_FLAVOR = "Google"
_PREEMPTED = "instance/preempted"
_EVENT = "instance/maintenance-event"
_UPCOMING = "instance/upcoming-maintenance?alt=json"
_IDENTITY = metadata.IdentityPaths(
    cloud="gcp",
    uid="instance/id",
    region="",
    zone="instance/zone",
    instance_type="instance/machine-type",
    # TRUE for spot VMs as well.
    life_cycle="instance/scheduling/preemptible",
    prices={"TRUE": MachinePrice.SPOT, "FALSE": MachinePrice.ON_DEMAND},
)
# Seconds. A preemption gives 30; one VM may have been set to more, which no item tells.
_PREEMPTION_LEAD = 30.0
# Seconds from the event to the maintenance, and the same for machines with GPUs. GPUs that are attached to another type
# of machine cannot be told here: their VMs get the shorter lead.
_EVENT_LEAD, _GPU_EVENT_LEAD = 60.0, 3600.0
_GPU_MACHINES = re.compile(r"(a[2-9]|g[2-9])[a-z]?-.+")
# Seconds between two questions for maintenance that is announced days ahead.
_UPCOMING_EVERY = 15.0
_NO_BLANKS = str.maketrans("", "", "_ ")

_PREEMPTION = Noticed(None, _PREEMPTION_LEAD, "the VM is being preempted")
_MIGRATION = Noticed(None, None, "the VM will be migrated to another host", NoticeUrgency.HINT, cancellable=True)
_UNDER_WAY = Noticed(None, _EVENT_LEAD, "host maintenance of the VM is under way", NoticeUrgency.SCHEDULED)


class GcpSource(metadata.MetadataSource):
    """Asks the metadata service. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/computeMetadata` where a proxy or simulator has
            one.
        clock: For the pace of questions, and for the lead time where the service's own clock is not known.
    """

    def __init__(self, base_url: str, clock: Clock) -> None:
        http = metadata.MetadataHttp(base_url, clock, root=_ROOT, headers={"Metadata-Flavor": _FLAVOR})

        async def get(path: str) -> metadata.MetadataReply:
            reply = await http.request("GET", path)
            if reply.flavor != _FLAVOR:
                raise SourceUnavailable("the answer is not of Google's metadata service")
            return reply

        super().__init__(http, get, _IDENTITY, clock)
        self._upcoming: Answer = Clear()
        self._upcoming_due = clock.monotonic()

    async def identify(self) -> NodeIdentity:
        """Describes the machine.

        The zone is the last part of `projects/1/zones/us-central1-a`, the region the zone without its letter.
        """
        if self._identity is None:
            found = await super().identify()
            zone, instance_type = found.zone.rpartition("/")[2], found.instance_type.rpartition("/")[2]
            self._identity = replace(found, zone=zone, region=zone.rpartition("-")[0], instance_type=instance_type)
        return self._identity

    async def recognize(self) -> bool:
        return (await metadata.read_item(self._get, _IDENTITY.uid)).isdecimal()

    async def poll(self) -> Answer:
        preempted = _text(await self._get(_PREEMPTED))
        if preempted not in {"TRUE", "FALSE"}:
            raise SourceUnavailable("malformed preempted")
        if preempted == "TRUE":
            return _PREEMPTION
        match _text(await self._get(_EVENT)):
            case "NONE":
                # While no maintenance is announced, it is asked for every few seconds only.
                if self._clock.monotonic() >= self._upcoming_due or isinstance(self._upcoming, Noticed):
                    self._upcoming = self._read_upcoming(await self._get(_UPCOMING))
                    self._upcoming_due = self._clock.monotonic() + _UPCOMING_EVERY
                return self._upcoming
            case "MIGRATE_ON_HOST_MAINTENANCE":
                return _MIGRATION
            case "TERMINATE_ON_HOST_MAINTENANCE":
                message = "the VM will be terminated for host maintenance"
                instance_type = self._identity.instance_type if self._identity else ""
                if _GPU_MACHINES.fullmatch(instance_type):
                    return Noticed(None, _GPU_EVENT_LEAD, message, NoticeUrgency.SCHEDULED)
                return Noticed(None, _EVENT_LEAD, message)
            case _:
                raise SourceUnavailable("malformed maintenance-event")

    def _read_upcoming(self, reply: metadata.MetadataReply) -> Answer:
        # Only some types of machines have the item.
        if reply.status == HTTPStatus.NOT_FOUND:
            return Clear()
        planned = _planned(_text(reply))
        match planned.get("maintenancestatus"):
            case None if not planned:
                return Clear()
            case "COMPLETE":
                return Clear()
            case "ONGOING":
                return _UNDER_WAY
            case "PENDING":
                start = metadata.parse_with_zone(str(planned.get("windowstarttime", "")).encode())
                if start is None:
                    raise SourceUnavailable("malformed upcoming-maintenance")
                left = metadata.seconds_left(start, reply.date, self._clock.wall())
                if left <= 0.0:
                    return _UNDER_WAY
                message = "host maintenance of the VM is planned"
                return Noticed(start, left, message, NoticeUrgency.SCHEDULED, cancellable=True)
            case _:
                raise SourceUnavailable("malformed upcoming-maintenance")


def _text(reply: metadata.MetadataReply) -> str:
    if reply.status != HTTPStatus.OK:
        raise SourceUnavailable(f"HTTP {reply.status}")
    return reply.body.decode("utf-8", errors="replace").strip()


def _planned(text: str) -> dict[str, Any]:
    """Returns the fields of the announced maintenance, named like `upcomingmaintenance`; empty if there is none."""
    if text in {"NONE", '"NONE"'}:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SourceUnavailable("malformed upcoming-maintenance") from error
    planned = {name.translate(_NO_BLANKS).lower(): value for name, value in found.items()}
    # The documentation shows the fields both bare and below this name.
    inner = planned.get("upcomingmaintenance")
    if len(planned) == 1 and isinstance(inner, dict):
        planned = {name.translate(_NO_BLANKS).lower(): value for name, value in inner.items()}
    # So says the service where nothing has been announced since the VM started.
    return {} if planned.keys() == {"error"} else planned
