"""Breaks the product on purpose in many ways. The demo and the replay must fail for each of them."""
