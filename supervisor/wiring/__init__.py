"""Builds the parts of a supervisor and connects them: the only package that knows all others."""
