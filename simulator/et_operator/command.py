"""The options of `python -m simulator et-operator`, without importing the Kubernetes client."""

import argparse

from simulator.et_operator.settings import Flaw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", required=True, help="kubeconfig with full access to the cluster")
    parser.add_argument("--define", action="store_true", help="create missing CRDs first")
    parser.add_argument("--quick", action="store_true", help="react faster than the real operator")
    parser.add_argument(
        "--no-commands", action="store_true", help="run no commands in launchers, because nothing runs there"
    )
    flaws = ", ".join(Flaw)
    parser.add_argument("--flaw", action="append", type=Flaw, default=[], help=f"also reproduce this flaw: {flaws}")
