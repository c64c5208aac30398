"""The guide of embeddings, with a real model: its blocks run, and the model has the published values."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foldflight.spark.java import prepare_local
from tests.environments import environment, run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "fold-embeddings.md"
LOCK = Path(__file__).with_name("requirements-minilm.txt")
RUN_S = 900
# What sentence-transformers gives for this text: the first items, which the model's page shows.
TEXT, ITEMS = "This is an example sentence", [0.0676569, 0.0634959, 0.0487131, 0.0793050, 0.0374480]
PROGRAM = """
import tempfile
from pyspark.sql import SparkSession
from foldflight.spark import configure

quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
spark = SparkSession.builder.master("local[1]").config(map=quiet).getOrCreate()
configure(spark, partitions=1, local_checkpoints=True)
folder = tempfile.mkdtemp()
"""
ANSWER = """
import json
with duckdb.connect(f"{folder}/topics.duckdb") as database:
    table = database.execute("SELECT topic, messages, middle FROM topics ORDER BY topic").fetchall()
(example,) = with_columns(spark.createDataFrame([(TEXT,)], "text string"), v=model["embed"]("text")).collect()
rows = [(row["topic"], row["v"]) for row in embedded.collect()]
print(json.dumps({"nearest": nearest, "table": table, "example": example["v"], "rows": rows}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the guide's blocks have made."""
    folder = tmp_path_factory.mktemp("guide")
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script = folder / "guide.py"
    script.write_text("\n".join([PROGRAM, f"TEXT = {TEXT!r}", *blocks, ANSWER]), encoding="utf-8")
    (packages,) = environment(LOCK).parents[1].glob("lib/python*/site-packages")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "service", ROOT, packages)))}
    prepare_local(env)
    output = run([sys.executable, "-W", "ignore", str(script)], RUN_S, env=env, folder=folder)
    return json.loads(output.strip().splitlines()[-1])


def test_the_model_has_the_published_values(answers: dict[str, Any]) -> None:
    """The embedding equals the one of sentence-transformers, and has the length 1."""
    assert np.allclose(answers["example"][: len(ITEMS)], ITEMS, atol=1e-5)
    assert np.isclose(np.linalg.norm(answers["example"]), 1, atol=1e-6)


def test_texts_are_found_by_their_meaning(answers: dict[str, Any]) -> None:
    """Both nearest texts are about the delivery, though they share no other word with the question than `my`."""
    assert set(answers["nearest"]) <= {"My parcel has not arrived yet.", "Where is my package? It is a week late."}
    assert len(answers["nearest"]) == 2


def test_the_table_has_the_centroids(answers: dict[str, Any]) -> None:
    """The stream's centroids are the means of the embeddings, rounded once."""
    assert [(topic, count) for topic, count, _ in answers["table"]] == [("billing", 3), ("delivery", 3)]
    for topic, _, middle in answers["table"]:
        vectors = np.array([v for name, v in answers["rows"] if name == topic], np.float64)
        assert np.allclose(middle, vectors.mean(axis=0), rtol=1e-6, atol=1e-7)
