"""Pauses all ranks after one agreed step, so that they can go on in the next round without a restart.

For loops that build their process group anew, as those of `kubeai.torch` do:

    if regroup.should_regroup(step):  # in every rank, once after each step
        ...save, if processes that join need it...
        regroup.report_holding()
        ...wait for the next round and enter it...

The supervisor decides the next round when all ranks have reported that they hold.
"""

from __future__ import annotations

import contextlib
import time
from typing import Iterator

from . import api
from .gates import should_regroup
from .messages import StepPurpose
from .spending import Spending

__all__ = ["changing", "report_holding", "should_regroup"]


def report_holding() -> None:
    """Report that this rank waits for the next round, outside any collective. Returns at once.

    A checkpoint that was reported before is delivered first. Without a `should_regroup` that was True for the present
    agreement, the call has no effect.
    """
    session = api._session  # noqa: SLF001 - the one session of the process
    if not session.is_child:
        session.monitor.hold(StepPurpose.REGROUP)


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Surround what leads from one round into the next, so that the ledger knows how long no step was made."""
    session, began = api._session, time.monotonic()  # noqa: SLF001 - as above
    try:
        yield
    finally:
        if not session.is_child:
            session.monitor.spend(Spending.CHANGING, time.monotonic() - began)
