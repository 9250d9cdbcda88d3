"""The state machines of broker and storage compared with their models, over many histories."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.broker.groups.test_model import GroupModel
from tests.broker.test_offsets_model import OffsetsModel
from tests.broker.transactions.test_model import TransactionsModel
from tests.storage.test_compaction_model import Compaction


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", [GroupModel, OffsetsModel, TransactionsModel, Compaction])
def test_a_machine_follows_its_model_for_long(model: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(
        model, settings=settings(max_examples=1_000, stateful_step_count=80, deadline=None)
    )
