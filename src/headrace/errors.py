"""The root of every error that Headrace raises on purpose."""


class HeadraceError(Exception):
    """Something that Headrace noticed and can explain: what happened, why, and what to do next."""


class Misuse(HeadraceError):
    """A command, a program or its configuration is wrong: nothing was asked of the broker."""
