"""The rule for texts that people read and that others wrote."""

_MAX_TEXT = 512


def one_line(text: str) -> str:
    """At most 512 characters, with a space in place of each one that is not printed.

    A text may quote anything, and whoever writes it must neither command a terminal nor add a line to a log or a table.
    Names are not texts: one that has such a character is refused.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_TEXT])
