"""What can be wrong with the keys."""


class KeysError(Exception):
    """The keys can neither be had nor made: the operator has to act. The message says what is wrong with them."""
