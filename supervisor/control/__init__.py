"""The loop that decides: facts in, a durable decision, then its actions."""
