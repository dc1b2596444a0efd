"""Builds and connects the components of a supervisor; the only package that knows all others."""
