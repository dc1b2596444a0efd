"""The status page: what is, what has happened, and what people may ask for."""
