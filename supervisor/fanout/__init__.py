"""Decisions out: streams to launchers and training processes, each line the whole present state."""
