"""The one exception a user is meant to read."""


class UserError(Exception):
    """Something the user gave is wrong; the message says what, where, and what would be right.

    The command line prints the message and exits with code 2.
    """


def nearest(given: str, known: "list[str] | tuple[str, ...]") -> str:
    """A hint naming the closest known name, or all of them when none is close.

    >>> nearest("codsca", ["codasca", "fedavg"])
    "did you mean 'codasca'?"
    """
    import difflib

    close = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(sorted(known))
