"""CREATE AGGREGATE ... LANGUAGE java: a class of a jar, in Spark's workers and on servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foldflight.server.run.lifecycle import serving
from foldflight.spark import enable, sql
from foldflight.sql import SqlError
from tests.java_classes import WEIGHTED_AVG, jar
from tests.sql.test_statements import values

CREATE = "CREATE OR REPLACE AGGREGATE java_avg(BIGINT, INT) RETURNS BIGINT LANGUAGE java AS"
CLASS = "com.acme.WeightedAvg"
QUERY = "SELECT k, java_avg(v, 2) AS a FROM hav GROUP BY k"
RESULT = [("one", 3), ("three", 3), ("two", 2)]


@pytest.mark.every_turn
def test_a_class_of_a_jar_is_loaded_by_workers(db: Any, tmp_path: Path) -> None:
    """The jar is behind USING LINK or before the name of the class; the workers of Spark load it from memory."""
    archive = jar(tmp_path, WEIGHTED_AVG)
    sql(db, f"{CREATE} '{CLASS}' USING LINK '{archive}'")
    moved_archive = archive.rename(tmp_path / "moved.jar")
    assert values(sql(db, QUERY)) == RESULT
    sql(db, f"{CREATE} '{moved_archive}::{CLASS}'")
    for statement, message in (
        (f"{CREATE} 'com.acme.Average' USING LINK '{moved_archive}'", "no Java class com.acme.Average in moved.jar"),
        (f"{CREATE} '{CLASS}'", "has no jar; write it as functions.jar::com.acme.WeightedAvg"),
        (f"{CREATE} '{CLASS}' USING LINK '{tmp_path}/none.jar'", "none.jar cannot be read"),
        (f"{CREATE} $$ public class WeightedAvg {{}} $$", "a Java class is expected here, compiled: AS 'com.acme"),
        (CREATE.replace("java AS", "scala AS 'x'"), "the language of an aggregate is python or java"),
        (
            f"{CREATE} '{moved_archive}::{CLASS}'".replace("BIGINT, INT", "STRING, INT"),
            r"takes \(BIGINT, INT\), and \(STRING, INT\) is declared",
        ),
    ):
        with pytest.raises(SqlError, match=message):
            sql(db, statement)
    sql(db, "DROP AGGREGATE java_avg")


@pytest.mark.slow
def test_a_class_of_a_jar_is_sent_to_a_server(db: Any, tmp_path: Path) -> None:
    """A link to a server names the class that it serves, or sends it the jar in a signed bundle."""
    archive, key = jar(tmp_path, WEIGHTED_AVG), "a bundle key of thirty-two bytes"
    session = enable(db.newSession(), bundle_key=key)
    query = "SELECT java_avg(v, 2) FROM VALUES (1L), (4L) AS t(v)"
    with serving(java=CLASS, java_classpath=str(archive), bundle_keys=key) as server:
        for class_name in (CLASS, f"{archive}::{CLASS}"):
            session.sql(f"{CREATE} '{class_name}' USING LINK '{server.url}'")
            assert values(session.sql(query)) == [(2,)]
            assert values(sql(session, query, plan="lists")) == [(2,)]
