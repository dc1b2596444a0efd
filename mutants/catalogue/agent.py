"""Defects of the node agent."""

from mutants.mutant import Edit, Mutant
from simulator.verdict import Failure

_POLLER = "node_agent/poller.py"
_METADATA = "node_agent/metadata.py"
_TERMINATION_TIME = "node_agent/sources/termination_time.py"
_STREAM = "node_agent/stream.py"

MUTANTS = (
    Mutant(
        name="announces-late",
        breaks="Reports every notice to the supervisor 20 seconds late.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _POLLER,
                "            self._outbox.put(report)\n",
                "            asyncio.get_running_loop().call_later(20.0, self._outbox.put, report)\n",
            ),
        ),
    ),
    Mutant(
        name="polls-seldom",
        breaks="Polls the metadata every 30 seconds.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(Edit(_POLLER, "        self._period = period\n", "        self._period = 30.0\n"),),
    ),
    Mutant(
        name="overlooks-announcements",
        breaks="Treats every answer of the metadata as clear.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(Edit(_TERMINATION_TIME, "        if announced is None:\n", "        if True:\n"),),
    ),
    Mutant(
        name="misjudges-the-clock",
        breaks="Reports every deadline as one hour ago.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(Edit(_METADATA, "    return named - now\n", "    return named - now - 3600.0\n"),),
    ),
    Mutant(
        name="never-withdraws",
        breaks="Never reports that an announcement was withdrawn.",
        violates=(Failure.NOT_TAKEN_BACK,),
        edits=(Edit(_POLLER, "and clears >= CLEARS_TO_WITHDRAW and", "and clears < 0 and"),),
    ),
    Mutant(
        name="raises-a-false-alarm",
        breaks="Reports a reclaim from its 15th to its 18th poll that the metadata do not announce.",
        violates=(Failure.FALSE_EXCLUSION,),
        edits=(
            Edit(
                _POLLER,
                "    report = None\n",
                "    report = None\n    if 15 <= clears <= 18:\n"
                "        answer = notices.Noticed(None, 60.0, 'false alarm')\n",
            ),
        ),
    ),
    Mutant(
        name="keeps-news-to-itself",
        breaks="Reports its state in the hello, and no changes afterwards.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _STREAM,
                "        for report in self._outbox.reports():\n",
                "        for report in list(self._outbox.reports())[:0]:\n",
            ),
        ),
    ),
)
