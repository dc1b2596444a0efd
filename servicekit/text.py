"""Makes texts that peers wrote safe to print."""

_MAX_TEXT = 512


def one_line(text: str) -> str:
    """Cuts a text to 512 characters and replaces each character that is not printable by a space.

    A text may quote anything, and its author must neither control a terminal nor add a line to a log or a table. Use it
    for texts only: a name with such a character has to be refused.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_TEXT])
