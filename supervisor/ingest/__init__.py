"""Takes in all facts, from agents, launchers, training processes and the cluster, and acknowledges them once stored."""
