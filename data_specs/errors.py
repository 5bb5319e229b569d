"""The base of every error that a user can cause and mend: shown as one line, without a traceback."""


class UserError(ValueError):
    """Says which file, row or field, what was expected, and what came."""
