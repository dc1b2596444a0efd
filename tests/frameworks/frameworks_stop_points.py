"""Counts the points of a stop whose state is kept in memory, and of the resume; lets a test strike at one of them."""

import http.client
import os
import threading
from collections import Counter
from typing import Any

import torch.distributed as dist
from kubeai.elastic import api
from kubeai.torch import keeping
from kubeai.torch.training import Sharded

from tests.frameworks.frameworks_member import RoundsMember

_COLLECTIVES = "all_reduce", "all_gather", "broadcast"


class StopPoints:
    """Counts collectives, messages to ranks and to state keepers, their answers, and what is written or reported.

    A stop begins with the save at the agreed step, and ends with the process. A resume is the entry into a round. A
    file `strike-STAGE-POINT-NAME` names a signal, and the process that gets it: 0 for this one. What goes to a state
    keeper meanwhile is a stage of its own, as no order is certain; ranks that wait for that come to one point.

    Args:
        member: This process.
    """

    def __init__(self, member: RoundsMember) -> None:
        self._member = member
        self._stage = ""
        self._points: Counter[str] = Counter()
        self._waits = self._has_waited = False
        self._post = dist.batch_isend_irecv
        dist.batch_isend_irecv = self._posted
        places = [
            (dist, _COLLECTIVES),
            (http.client.HTTPConnection, ("connect", "send", "getresponse")),
            (http.client.HTTPResponse, ("readinto",)),
            (keeping, ("write_note",)),
            (api, ("state_kept", "checkpoint_saved", "exit_for_resume")),
        ]
        for place, names in places:
            for name in names:
                self._wrap(place, name)
        self._wait_once()
        self._surround("save", "stop", lasts=True)
        self._surround("enter", "resume", lasts=False)

    def _wrap(self, place: Any, name: str) -> None:
        call = getattr(place, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._reach(name)
            return call(*args, **kwargs)

        setattr(place, name, wrapped)

    def _surround(self, name: str, stage: str, *, lasts: bool) -> None:
        call: Any = getattr(Sharded, name)

        def surrounded(*args: Any, **kwargs: Any) -> Any:
            self._stage = stage
            self._points.clear()
            has_returned = False
            try:
                found = call(*args, **kwargs)
                has_returned = True
            finally:
                if not (lasts and has_returned):
                    self._reach("end")
                    self._stage = ""
            return found

        setattr(Sharded, name, surrounded)

    def _wait_once(self) -> None:
        place: Any = keeping
        call = place.done_by_all

        def waiting(action: Any) -> Any:
            self._waits = True
            try:
                return call(action)
            finally:
                self._waits = self._has_waited = False

        place.done_by_all = waiting

    def _posted(self, messages: list[Any]) -> list[Any]:
        works = []
        for message in messages:
            self._reach("message")
            works += self._post([message])
        return works

    def _reach(self, what: str) -> None:
        thread = threading.current_thread()
        is_main = thread is threading.main_thread()
        if not self._stage or (is_main and self._has_waited) or not (is_main or thread.name == "kubeai-keeper"):
            return
        self._has_waited = self._waits and is_main
        stage = self._stage if is_main else f"{self._stage}-keeper"
        point = self._points[stage]
        self._points[stage] += 1
        self._member.record(event="point", stage=stage, point=point, what=what)
        struck = self._member.root / f"strike-{stage}-{point}-{self._member.name}"
        if struck.exists():
            number, process = map(int, struck.read_text(encoding="ascii").split())
            struck.unlink()
            self._member.record(event="struck", pid=os.getpid())
            os.kill(process or os.getpid(), number)
