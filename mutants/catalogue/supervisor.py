"""Defects of the supervisor around its decisions: ingest, store, control and fan-out."""

from mutants.mutant import Edit, Mutant
from simulator.verdict import Failure

_REPORTS = "supervisor/ingest/agent_reports.py"
_LOOP = "supervisor/control/loop.py"
_FACTS = "supervisor/control/facts.py"
_STORE = "supervisor/store/sqlite.py"
_PROCESSES = "supervisor/fanout/processes.py"
_LAUNCHERS = "supervisor/fanout/launchers.py"

_RECEIVED = "        failpoint(At.NOTICE_RECEIVED)\n"

MUTANTS = (
    Mutant(
        name="loses-every-notice",
        breaks="Acknowledges every notice and discards it.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _REPORTS,
                _RECEIVED,
                "        if report.announcement is Announcement.ACTIVE:\n"
                "            return await self._acknowledge(report)\n",
            ),
        ),
    ),
    Mutant(
        name="loses-one-notice-of-each-group",
        breaks="Acknowledges and discards reports within three seconds of another node's notice.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _REPORTS,
                _RECEIVED,
                "        if report.announcement is Announcement.ACTIVE:\n"
                "            now = self._deps.clock.now()\n"
                "            if any(node != self._node and now - at < 3.0 for node, at in _LATELY.items()):\n"
                "                return await self._acknowledge(report)\n"
                "            _LATELY[self._node] = now\n",
            ),
            Edit(
                _REPORTS,
                "_log = structlog.get_logger()\n",
                "_log = structlog.get_logger()\n_LATELY: dict[Host, float] = {}\n",
            ),
        ),
    ),
    Mutant(
        name="loses-withdrawals",
        breaks="Acknowledges every withdrawal and discards it.",
        violates=(Failure.NOT_TAKEN_BACK,),
        edits=(
            Edit(
                _REPORTS,
                _RECEIVED,
                "        if report.announcement is Announcement.WITHDRAWN:\n"
                "            return await self._acknowledge(report)\n",
            ),
        ),
    ),
    Mutant(
        name="stores-one-notice",
        breaks="Forgets all other notices whenever one is stored.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _STORE,
                "                draft.notices[key] = notice\n",
                "                draft.notices = {key: notice}\n",
            ),
        ),
    ),
    Mutant(
        name="sees-one-host-of-a-group",
        breaks="Considers only one noticed host of a job at a time.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _LOOP,
                "return {host: noticed[host] for host in job.own_hosts if host in noticed} if noticed else noticed",
                "return {host: noticed[host] for host in sorted(job.own_hosts & noticed.keys())[:1]}",
            ),
        ),
    ),
    Mutant(
        name="decides-late",
        breaks="Reconciles jobs only every eight seconds.",
        # Whether anything else is late depends on when a notice comes within the eight seconds.
        violates=(Failure.NOT_SUSPENDED,),
        edits=(
            Edit(
                _LOOP,
                "                await self._deps.wakeup.wait(seconds)\n",
                "                await self._deps.wakeup.wait(seconds)\n                await asyncio.sleep(8.0)\n",
            ),
        ),
    ),
    Mutant(
        name="resumes-onto-noticed-hosts",
        breaks="Resumes a suspended job at once, on hosts with a notice.",
        # The run never leaves the hosts on which it should not have begun.
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                "supervisor/decide/waiting.py",
                "        delay = 0.0 if at_once else s.policy.resume_delay_seconds\n",
                "        delay = 0.0\n",
            ),
            Edit(
                "supervisor/decide/live.py",
                "    if not s.noticed:\n        return None\n",
                "    if not s.noticed or s.previous.phase is Phase.RESUMING:\n        return None\n",
            ),
            Edit(
                _FACTS,
                "self._usable_meanwhile().union(self._agents.clear).difference(noticed, avoided)",
                "frozenset(self._agents.uids)",
            ),
        ),
    ),
    Mutant(
        name="tells-processes-nothing-new",
        breaks="Sends a training process only its first directive.",
        violates=(Failure.NOT_STOPPED,),
        edits=(
            Edit(_PROCESSES, "        if directive != connection.sent:\n", "        if connection.sent is None:\n"),
        ),
    ),
    Mutant(
        name="tells-processes-late",
        breaks="Delays urgent lines by nine seconds.",
        violates=(Failure.NOT_STOPPED,),
        edits=(
            Edit(_PROCESSES, "COALESCE_SECONDS = 0.05\n", "COALESCE_SECONDS = 9.0\n"),
            Edit(
                _PROCESSES,
                "            if not (is_due or any(lines.is_urgent(connection) for",
                "            if not (is_due or False and any(lines.is_urgent(connection) for",
            ),
        ),
    ),
    Mutant(
        name="tells-the-launcher-nothing-new",
        breaks="Sends a launcher only the first order of each run.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _LAUNCHERS,
                "if connection.sent != present:",
                "if connection.sent is None or connection.sent[0].run != order.run:",
            ),
        ),
    ),
)
