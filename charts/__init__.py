"""Generates the parts of the Helm chart that derive from other files (`python -m charts`). A test compares them."""
