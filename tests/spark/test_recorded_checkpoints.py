"""Streams whose checkpoints an older version wrote go on as if that version had never stopped."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.recorded_checkpoints import KINDS, continued


@pytest.mark.parametrize(
    "name", [name if name == "views" else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_a_recorded_checkpoint_is_continued(classic: SparkSession, tmp_path: Path, name: str) -> None:
    """Groups, windows, sessions, OVER, views, DISTINCT and pickled states are as the older version left them."""
    found, expected = continued(classic, name, tmp_path)
    assert found == expected
    assert found
