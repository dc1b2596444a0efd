"""The decisions: pure functions from facts and the time to a decision with a reason. No I/O, no clock, no loop."""
