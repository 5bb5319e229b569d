"""The base of every error that a user can cause and fix. It is shown as one line, without a traceback."""


class UserError(ValueError):
    """The message names the file, row or field, what was expected, and what was found."""
