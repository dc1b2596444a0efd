"""Replays of reclaims in simulated time: how much of the capacity each way to handle reclaims turns into training."""
