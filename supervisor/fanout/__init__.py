"""Sends decisions on streams to launchers and training processes. Each line is the whole present state."""
