"""Divides the time of a run by what its processes say that they have spent it on. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.domain.ledger import Account, TimeSpent


@dataclass(slots=True)
class SpokenTime:
    """What the processes of one job have said so far; only rank 0 speaks.

    Reports are sums since the start of a process, so that the difference of two of them is what happened in between,
    also if one was lost. Steps that a later process, or the same one after it has returned to an earlier state, makes
    again are known by their numbers.
    """

    _process: str = ""
    _last: TimeSpent | None = None
    _highest: int = 0
    """The highest number of finished steps that any process has told."""

    def heard(self, process: str, said: TimeSpent, untold: float) -> Mapping[Account, float]:
        """Returns the seconds by account that a process has spent since its last report.

        Args:
            process: Its name on the wire.
            said: Its report.
            untold: For how many seconds the job has run without a word. A process that has taken part for longer when
                it speaks for the first time has taken another one's place, or was there before the supervisor: how much
                of its sums lies in these seconds is not known, and nothing is returned.
        """
        before = self._last if process == self._process else None
        is_known = before is not None
        if before is None:
            # What is more than the time of the run is of its beginning: nobody counted yet that the run goes on.
            early = max(0.0, said.seconds - untold)
            is_known = early <= said.spent.get(Account.STARTING, 0.0)
            before = TimeSpent(
                seconds=early, spent={Account.STARTING: early}, first=said.first, highest=said.first, made=0
            )
        known = max(self._highest, before.highest)
        self._process, self._last, self._highest = process, said, max(known, said.highest)
        return _divided(before, said, self._highest - known) if is_known else {}


def _divided(before: TimeSpent, now: TimeSpent, new_steps: int) -> Mapping[Account, float]:
    """Returns the seconds between two reports by account. Of the steps in them, so many were never made before."""
    seconds = now.seconds - before.seconds
    if seconds <= 0:
        return {}
    parts = {account: max(0.0, total - before.spent.get(account, 0.0)) for account, total in now.spent.items()}
    spent = sum(parts.values())
    if spent > seconds:
        parts = {account: part * seconds / spent for account, part in parts.items()}
    stepping = max(0.0, seconds - spent)
    made = now.made - before.made
    again = stepping * max(0, made - new_steps) / made if made > 0 else 0.0
    return {**parts, Account.REPEATING: again, Account.TRAINING: stepping - again}
