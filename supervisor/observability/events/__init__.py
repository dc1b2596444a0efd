"""Writes Kubernetes Events about notices and decisions to the objects that they concern."""
