"""The kept states, compared with a dict."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from foldflight.exchange.failover.replaylog import ReplayStates

SCHEMA = pa.schema([("slot", pa.int32()), ("state_0", pa.string()), ("output_0", pa.int64())])
STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 30), unique=True, max_size=12).map(sorted)), max_size=40
)


@given(STEPS)
def test_the_newest_state_of_each_slot_is_kept(steps: list[tuple[bool, list[int]]]) -> None:
    """After any updates and removals there is the newest state of each slot that has one."""
    replay_states, model = ReplayStates(), {}
    for number, (forgets, slots) in enumerate(steps):
        if forgets:
            replay_states.forget(np.array(slots, np.int32))
            for slot in slots:
                model.pop(slot, None)
        else:
            states = [f"{slot} at {number}" for slot in slots]
            rows = {"slot": slots, "state_0": states, "output_0": slots}
            replay_states.update(pa.Table.from_pydict(rows, schema=SCHEMA))
            model.update(zip(slots, states, strict=True))
    batch = replay_states.to_batch()
    assert (batch is None) == (not model)
    if batch is not None:
        assert batch.to_pydict() == {"slot": sorted(model), "state_0": [model[slot] for slot in sorted(model)]}


def test_stale_states_are_not_held() -> None:
    """However often states change, the memory is a bounded multiple of the newest states."""
    replay_states = ReplayStates()
    rows = {"slot": list(range(1000)), "state_0": ["x" * 100] * 1000, "output_0": [0] * 1000}
    table = pa.Table.from_pydict(rows, schema=SCHEMA)
    one = table.nbytes
    for _ in range(200):
        replay_states.update(table)
        assert replay_states.nbytes < 5 * one
    replay_states.forget(np.arange(1000, dtype=np.int32))
    assert replay_states.nbytes == 0
