"""Messages of a job that crashes."""

import pytest

from headrace import App, email
from headrace.testing import run
from tests.sinks.mailbox import Mailbox

pytestmark = pytest.mark.timeout(240)

ORDERS = [
    {"id": 1, "customer": "ann@example.com"},
    {"id": 2, "customer": "nobody"},
    {"id": 3, "customer": "bob@example.com"},
]


def test_the_e_mail_of_a_batch_is_sent_once_though_the_job_dies_before_its_checkpoint(app: App) -> None:
    orders = app.stream("orders", "id long, customer string")
    with Mailbox() as mailbox:
        mails = email("{customer}", sender="shop@example.com", subject="{id}", body="x", smtp=mailbox.url)
        job = app.job(into=[app.topic("told", key="id"), mails], name="told")(lambda: orders.df)
        rows = run(job, {"orders": ORDERS}, crash=("committed", 0))
    assert sorted(row["id"] for row in rows) == [1, 2, 3]
    assert sorted(mail["Subject"] for mail in mailbox.mails) == ["1", "3"]
    (letter,) = rows.dead
    assert (letter["target"], letter["reason"]) == (
        "email {customer}",
        "'nobody' is not an e-mail address",
    )
