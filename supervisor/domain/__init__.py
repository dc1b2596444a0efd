"""The vocabulary: frozen values that all other packages use. No I/O, no clock, no loop."""
