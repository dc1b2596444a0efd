"""`python -m simulator et-operator`: its options. What runs then needs the Kubernetes client and is loaded then."""

import argparse

from simulator.et_operator.settings import Flaw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--kubeconfig", required=True, help="of one who may do everything in the cluster")
    parser.add_argument("--define", action="store_true", help="make the definitions first, where they are missing")
    parser.add_argument("--quick", action="store_true", help="react faster than the real one was seen to")
    parser.add_argument("--no-commands", action="store_true", help="nothing runs in launchers: run no command there")
    flaws = ", ".join(Flaw)
    parser.add_argument("--flaw", action="append", type=Flaw, default=[], help=f"also show this one: {flaws}")
