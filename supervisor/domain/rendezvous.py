"""The rendezvous of a torchrun job: which of its elastic agents train together, in an order that gives ranks."""

from dataclasses import dataclass

from supervisor.domain.ids import Host
from supervisor.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The members that train together, one for each host, until the next round.

    `number` grows with each round of a run, and begins at 1 again with the next run. `members` are the ids of the
    elastic agents, `hosts` their hosts in the same order: the first one holds the store. `in_process`: the training
    processes continue and build a new process group; otherwise their agents start new ones. `starting` are hosts
    outside of the round: their agents start processes now, which then wait to join in process. `since` is when it was
    decided.
    """

    number: int
    run: int
    members: tuple[str, ...]
    hosts: tuple[Host, ...]
    in_process: bool = False
    starting: tuple[Host, ...] = ()
    since: Instant

    @property
    def is_whole(self) -> bool:
        """Whether there are members and each has one host of its own; a person may have edited the stored round."""
        return 0 < len(self.members) == len(self.hosts) == len(set(self.hosts))
