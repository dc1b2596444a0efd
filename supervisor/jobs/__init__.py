"""The kinds of jobs, and the adapters that carry actions out. Every action may be repeated."""
