"""Defects on the job's machines: the SDK, kubeai-run and kubeai-discover-hosts."""

from mutants.mutant import Edit, Mutant
from simulator.verdict import Failure

_SESSION = "sdk/kubeai/elastic/session.py"
_MONITOR = "sdk/kubeai/elastic/monitor.py"
_RUN = "sdk/kubeai/elastic/commands/run.py"
_RECONCILE = "sdk/kubeai/elastic/commands/reconcile.py"
_WORKSPACE = "sdk/kubeai/elastic/commands/workspace.py"
_DISCOVER = "sdk/kubeai/elastic/commands/discover_hosts.py"

MUTANTS = (
    Mutant(
        name="flag-stays-up",
        breaks="check_alive() always stays True.",
        violates=(Failure.NOT_STOPPED,),
        edits=(Edit(_MONITOR, "        _byte[0] = 1\n", "        _byte[0] = 0\n"),),
    ),
    Mutant(
        name="flag-falls-late",
        breaks="check_alive() turns False ten seconds after it should.",
        violates=(Failure.NOT_STOPPED,),
        edits=(
            Edit(
                _MONITOR,
                "        if state.directive.is_final:\n            lower_flag()\n",
                "        if state.directive.is_final:\n"
                "            late = threading.Timer(10.0, lower_flag)\n"
                "            late.daemon = True\n"
                "            late.start()\n",
            ),
        ),
    ),
    Mutant(
        name="flag-falls-early",
        breaks="A process leaves as soon as it receives the directive instead of when it is due.",
        violates=(Failure.RING_BROKEN,),
        edits=(Edit(_MONITOR, "due=now + line.act_in", "due=now"),),
    ),
    Mutant(
        name="acknowledges-unasked",
        breaks="Reports its exit as soon as a STOP arrives, two seconds before check_alive() turns False.",
        violates=(Failure.STEP_LOST,),
        edits=(
            Edit(
                _MONITOR,
                "            self._uplink.note_stop(line.directive)\n",
                "            self._uplink.note_stop(line.directive)\n"
                "            self._uplink.report(self._monitor.left())\n",
            ),
            Edit(
                _MONITOR,
                "        if state.directive.is_final:\n            lower_flag()\n",
                "        if state.directive.is_final:\n"
                "            late = threading.Timer(2.0, lower_flag)\n"
                "            late.daemon = True\n"
                "            late.start()\n",
            ),
        ),
    ),
    Mutant(
        name="leaves-without-a-word",
        breaks="A stopped process exits at once and reports nothing.",
        violates=(Failure.NOT_SUSPENDED,),
        edits=(
            Edit(
                _SESSION,
                "    if not directive.is_final:\n        return\n",
                "    if directive.generation >= 0:\n        return\n",
            ),
        ),
    ),
    Mutant(
        name="lists-excluded-hosts",
        breaks="kubeai-discover-hosts lists excluded hosts.",
        violates=(Failure.RING_BROKEN,),
        edits=(
            Edit(
                _DISCOVER,
                '        if name in excluded:\n            return "excluded, as it will be reclaimed"\n',
                "",
            ),
        ),
    ),
    Mutant(
        name="excludes-one-at-a-time",
        breaks="kubeai-run applies the exclusions of a group one by one, 1.2 seconds apart.",
        violates=(Failure.GROUP_SPLIT,),
        edits=(
            Edit(
                _WORKSPACE,
                "        self._write(_EXCLUSIONS, exclusions)\n",
                "        excluded = list(exclusions)\n"
                "        for count in range(1, len(excluded)):\n"
                "            self._write(_EXCLUSIONS, excluded[:count])\n"
                "            __import__('time').sleep(1.2)\n"
                "        self._write(_EXCLUSIONS, excluded)\n",
            ),
        ),
    ),
    Mutant(
        name="excludes-late",
        breaks="kubeai-run applies exclusions eight seconds after the order.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(
            Edit(
                _RUN,
                "                        self._workspace.list_hosts(order.hosts, order.exclusions)\n",
                "                        time.sleep(8.0 if order.exclusions else 0.0)\n"
                "                        self._workspace.list_hosts(order.hosts, order.exclusions)\n",
            ),
        ),
    ),
    Mutant(
        name="goes-on-while-suspended",
        breaks="kubeai-run lets its command continue when it must wait.",
        violates=(Failure.NOT_SUSPENDED,),
        edits=(
            Edit(
                _RECONCILE,
                "    return order is not None and order.kind is RunOrderKind.RUN and order.run <= state.run\n",
                "    return order is not None and order.kind is not RunOrderKind.END\n",
            ),
        ),
    ),
)
