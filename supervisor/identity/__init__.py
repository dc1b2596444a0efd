"""Who speaks: tokens and what they are good for."""
