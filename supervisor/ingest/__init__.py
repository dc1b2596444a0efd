"""Facts in: from agents, launchers and training processes, each acknowledged when it is durable."""
