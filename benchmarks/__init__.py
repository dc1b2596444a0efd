"""Benchmarks: real processes on one machine, measured side by side in one run."""
