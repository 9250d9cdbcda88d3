"""Log sequence numbers: bytes since the beginning of the log, written as two hexadecimal halves."""


def read_lsn(text: str) -> int:
    """The number that PostgreSQL writes in this way.

    >>> read_lsn("1/10")
    4294967312
    """
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def write_lsn(position: int) -> str:
    """The number as PostgreSQL writes it.

    >>> write_lsn(4294967312)
    '1/10'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
