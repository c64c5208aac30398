"""Streams whose checkpoints an older version wrote go on as if that version had never stopped."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.recorded_checkpoints import KINDS, RECORDED_ON, continued
from tests.spark_sessions import SPARK, since_spark

# On the newest Spark all but one take part in the slow tests only; an older one has no slow tests.
QUICK = "views" if SPARK >= (4, 3) else KINDS


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
    found, expected = continued(classic, version, name, tmp_path)
    assert found == expected
    assert found
