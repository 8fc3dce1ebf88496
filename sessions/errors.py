"""The one exception for a mistake that a person can mend; its text is one sentence for them."""


class SessionError(Exception):
    """A session file or a request about sessions cannot be used; ``str()`` says why."""


class Lacking(SessionError):  # noqa: N818 - what is so, not what went wrong
    """A session lacks the requested data."""
