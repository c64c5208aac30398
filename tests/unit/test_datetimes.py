"""`datetime` in annotations takes timestamps of both kinds: without a zone, and with one."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from foldflight import RejectedError, connect
from foldflight.exchange.encoding import decode_info, encode_info
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions.author.udaf import function_of
from foldflight.testing import run_epochs
from tests import datetime_functions as those

NTZ, LTZ = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def test_arguments_decide_the_zone_of_states_and_results() -> None:
    """Without a zone, types and fingerprint are the same as in earlier releases: their checkpoints stay valid."""
    latest: Any = function_of(those.Latest)
    plain, zoned_function = (latest.bind([pa.float64(), type_], {}) for type_ in (NTZ, LTZ))
    assert (plain.result_type, zoned_function.result_type) == (NTZ, LTZ)
    assert plain.state_type == pa.struct([("value", pa.float64()), ("at", NTZ)])
    assert zoned_function.state_type == pa.struct([("value", pa.float64()), ("at", LTZ)])
    assert plain.fingerprint == "e8e2358b8edeee24"
    assert zoned_function.fingerprint != plain.fingerprint
    assert latest.bind([pa.float64(), pa.null()], {}).fingerprint == plain.fingerprint
    assert latest.bind([pa.float64(), pa.timestamp("ms", "Asia/Tokyo")], {}).fingerprint == zoned_function.fingerprint
    seen: Any = function_of(those.Seen)
    assert [seen.bind([type_], {}).views[0].key for type_ in (NTZ, LTZ)] == [NTZ, LTZ]


def test_a_class_that_names_the_type_keeps_it() -> None:
    zoneless: Any = function_of(those.Zoneless)
    with pytest.raises(RejectedError, match="takes TIMESTAMP for its argument at and was given TIMESTAMPTZ"):
        zoneless.bind([LTZ], {})


def test_scalar_and_table_functions_take_both_kinds() -> None:
    later: Any = function_of(those.later)
    assert [later.bind([type_, pa.int64()], {}).result_type for type_ in (NTZ, LTZ)] == [NTZ, LTZ]
    hours: Any = function_of(those.hours)
    assert [hours.bind([type_], {}).result_type.field("at").type for type_ in (NTZ, LTZ)] == [NTZ, LTZ]


def test_descriptions_have_both_kinds() -> None:
    """Clients that do not know the new fields see the types of earlier releases."""
    latest: Any = function_of(those.Latest)
    info = FunctionInfo.of(latest)
    assert (info.input_types, info.result_type) == (("DOUBLE", "TIMESTAMP"), "TIMESTAMP")
    assert decode_info(encode_info(info)) == info
    zoned_info = info.for_types([pa.float64(), LTZ])
    assert (zoned_info.input_types, zoned_info.result_type) == (("DOUBLE", "TIMESTAMPTZ"), "TIMESTAMPTZ")
    assert info.for_types([pa.float64(), NTZ]) is info


@pytest.mark.parametrize("name", ["latest", "newest", "seconds", "seen"])
def test_epochs_of_literal_rows_keep_zones(name: str) -> None:
    """Aware datetimes stay aware, in UTC; naive ones stay naive."""
    function = connect(those)[name]
    arguments = ["v", "at"] if name == "latest" else ["at"]
    tokyo = timezone(timedelta(hours=9))
    for zone, display_text in ((None, None), (tokyo, UTC)):
        rows = [{"v": float(hour), "at": datetime(2026, 1, 1, hour, tzinfo=zone)} for hour in (9, 11, 10)]
        epochs = run_epochs({"it": function(*arguments)}, [rows[:1], rows[1:]])
        last = datetime(2026, 1, 1, 11, tzinfo=zone)
        expected: Any = {"seconds": 7200.0, "seen": 3}.get(name, last if display_text is None else last.astimezone(UTC))
        result = epochs[-1].changelog[-1][1]["it"]
        assert result == expected
        if isinstance(result, datetime):
            assert result.utcoffset() == (None if display_text is None else timedelta(0))


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_refuse_a_zone_that_would_be_lost(first: int) -> None:
    aware, naive = datetime(2026, 1, 1, 9, tzinfo=UTC), datetime(2026, 1, 1, 9)
    rows = [{"at": at} for at in ([aware, naive] if first else [naive, aware])]
    with pytest.raises(RejectedError, match=r"has a time zone, and datetime.datetime\(2026, 1, 1, 9, 0\) has none"):
        run_epochs({"it": connect(those)["newest"]("at")}, [rows])
    with pytest.raises(RejectedError, match="and the function takes TIMESTAMP; give values of one kind"):
        run_epochs({"it": connect(those)["zoneless"]("at")}, [[{"at": aware}]])
