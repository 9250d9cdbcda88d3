"""Share sessions."""

from kio.schema.errors import ErrorCode

from headrace.broker.shares.sessions import MAX_EPOCH, ShareSession, ShareSessions


def test_a_session_counts_its_requests_and_belongs_to_a_connection() -> None:
    sessions = ShareSessions(limit=1)
    session = sessions.open(("g", "m"), [], "connection")
    assert isinstance(session, ShareSession)
    assert sessions.open(("g", "n"), [], "connection") is ErrorCode.share_session_limit_reached
    assert sessions.resume(("g", "m"), 1, "connection") is session
    assert sessions.resume(("g", "m"), 1, "connection") is ErrorCode.invalid_share_session_epoch
    assert sessions.resume(("g", "m"), 2, "other") is ErrorCode.share_session_not_found
    session.epoch = MAX_EPOCH
    assert sessions.resume(("g", "m"), MAX_EPOCH, "connection") is session
    assert sessions.resume(("g", "m"), 1, "connection") is session
    assert sessions.of_connection("connection") == (("g", "m"),)
    sessions.close(("g", "m"))
    assert sessions.of_connection("connection") == ()
    assert sessions.resume(("g", "m"), 2, "connection") is ErrorCode.share_session_not_found
