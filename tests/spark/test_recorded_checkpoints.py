"""Streams whose checkpoints an older version wrote go on as if that version had never stopped."""

import os
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.running import printed_by
from tests.spark.recorded_checkpoints import KINDS, RECORDED_ON, continue_stream, unpack
from tests.spark.test_kill import ROOT
from tests.spark_sessions import SPARK, since_spark

# On the newest Spark all but one take part in the slow tests only; an older one has no slow tests.
QUICK = "views" if SPARK >= (4, 3) else KINDS


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("version", "name"),
    [
        pytest.param(
            version,
            name,
            marks=[
                since_spark(version, f"what Spark {version} has stored"),
                *([] if name in QUICK and (SPARK < (4, 3) or version == "4.3") else [pytest.mark.slow]),
            ],
        )
        for version in RECORDED_ON
        for name in KINDS
    ],
)
def test_a_recorded_checkpoint_is_continued(classic: SparkSession, tmp_path: Path, version: str, name: str) -> None:
    """Groups, windows, sessions, OVER, views, DISTINCT and pickled states are as the older version left them.

    The older version is one of foldflight, of Spark, or of both.
    """
    result, expected = continue_stream(classic, version, name, tmp_path)
    assert result == expected
    assert result


READ_ALONE = """
import sys
from pyspark.sql import SparkSession
from foldflight.spark import configure, state_table

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
configure(spark)
print(state_table(spark, sys.argv[1]).count(), "groups")
"""


@pytest.mark.slow
@pytest.mark.surface
@since_spark("4.0", "streams")
def test_a_session_that_ran_no_stream_reads_states(tmp_path: Path) -> None:
    """Spark 4.2 starts what its readers of states ask for with the first stream of a session."""
    checkpoint = unpack("4.0", "grouped", tmp_path)
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT / "service")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    output = printed_by("-c", READ_ALONE, checkpoint, folder=tmp_path, environment=environment)
    assert re.search(r"[1-9]\d* groups", output)
