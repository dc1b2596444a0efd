"""The vocabulary: frozen values that every other part speaks in. No I/O, no clock, no loop."""
