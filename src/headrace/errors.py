"""The root of every error that Headrace raises on purpose."""


class HeadraceError(Exception):
    """Something that Headrace noticed and can explain: what happened, why, and what to do next."""
