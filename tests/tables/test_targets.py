"""Targets with real databases: exactly once, keys, types, columns, and refusals."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import random
import re
import select
import socket
import string
import struct
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pytest

from examples import json_target
from foldflight import RejectedError, RetryableError
from foldflight.engine.targets import offsets_name
from foldflight.ext.tables.iceberg import IcebergTable
from foldflight.ext.tables.postgres import PostgresTable
from foldflight.ext.tables.sink import Address
from foldflight.testing import TARGET_COLUMNS, TARGET_KEYS, check_target
from tests.postgres import MISSING, WITH_PASSWORD, programs
from tests.tables.kinds import DeltaFiles, DuckDBFile, IcebergFiles, Kind, PostgresDatabase


def test_postgresql_is_installed() -> None:
    """Without PostgreSQL this test fails, and those that need it are skipped."""
    assert programs() is not None, MISSING


def test_each_target_keeps_the_laws(kind: Kind) -> None:
    """Every epoch reaches the table as a whole and once; NULL in a key equals NULL."""
    results = check_target(lambda: kind.opened("t", TARGET_COLUMNS, TARGET_KEYS), lambda: kind.rows("t"))
    assert len(results) == 6
    assert [result for result in results if not result.passed] == []


WHOLE = pa.schema(
    [
        ("key", pa.int32()),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("price", pa.decimal128(20, 4)),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("numbers", pa.list_(pa.int64())),
        ("texts", pa.list_(pa.string())),
    ]
)
AT = dt.datetime(2013, 1, 1, 5, 17, 0, 123456)
ROWS = [
    {
        "key": 1,
        "flag": True,
        "tiny": -128,
        "ratio": 0.1 + 0.2,
        "small": 0.1,
        "price": Decimal("-1234567890123456.7891"),
        "text": 'tab\t, line\nreturn\r, \\N, \\. and "quotes", é😀',
        "data": b"\x00\\\xff",
        "day": dt.date(2013, 2, 28),
        "at": AT.replace(tzinfo=dt.UTC),
        "local": AT,
        "numbers": [1, None, -(2**62)],
        "texts": ["", None, 'a "b" \\ {c,d}\t', "NULL"],
    },
    {**dict.fromkeys(WHOLE.names), "key": 2},
    {"key": 3, "ratio": math.inf, "small": -math.inf, "text": "", "data": b"", "numbers": [], "texts": []},
]


def changes_of(rows: list[dict[str, Any]], columns: pa.Schema) -> pa.Table:
    schema = pa.schema([pa.field("row_kind", pa.string()), *columns])
    return pa.Table.from_pylist([{"row_kind": "+U", **row} for row in rows], schema)


def test_the_example_of_a_target_keeps_the_laws(tmp_path: Path) -> None:
    """The target of the reference keeps all laws, which its page lists."""
    results = json_target.check(tmp_path / "totals.json")
    assert [result for result in results if not result.passed] == []
    page = (Path(__file__).parents[2] / "docs" / "reference" / "tables.md").read_text()
    assert [result.law for result in results if f"| {result.law} |" not in page] == []


class Forgetful(json_target.JsonFile):
    """A target that applies an epoch again."""

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table]) -> None:
        state = self.read()
        state["epochs"].pop(query, None)
        self.path.write_text(json.dumps(state))
        super().apply(query, epoch, changes)


class Hasty(json_target.JsonFile):
    """A target that applies each part by itself."""

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table]) -> None:
        if self.read()["epochs"].get(query, -1) < epoch:
            for part in changes:
                super().apply(query, epoch, [part])
                state = self.read()
                state["epochs"][query] = epoch - 1
                self.path.write_text(json.dumps(state))
            super().apply(query, epoch, [])


@pytest.mark.parametrize(
    ("mistaken", "law"),
    [(Forgetful, "an epoch that is repeated changes nothing"), (Hasty, "an epoch that fails leaves no trace")],
)
def test_mistakes_of_a_target_are_found(mistaken: type[json_target.JsonFile], law: str, tmp_path: Path) -> None:
    """A target with a mistake breaks the law that forbids it, which tells what was expected."""
    path = tmp_path / "totals.json"
    results = check_target(lambda: mistaken(path, TARGET_KEYS), lambda: mistaken(path, TARGET_KEYS).read()["rows"])
    detail_of_law = {result.law: result.detail for result in results if not result.passed}
    assert law in detail_of_law
    assert "then the table has" in detail_of_law[law]


def test_values_of_all_types_are_read_as_written(kind: Kind) -> None:
    """Values are read as they were written, also texts that look like NULL, the end of the data or a list."""
    target = kind.opened("types", WHOLE, ["key"])
    target.apply("q", 0, [changes_of(ROWS, WHOLE)])
    expected = pa.Table.from_pylist(ROWS, WHOLE).to_pylist()
    result = sorted(kind.rows("types"), key=lambda row: row["key"])
    for row in result:
        row["at"] = row["at"] and row["at"].astimezone(dt.UTC)
        if isinstance(row["small"], float):
            row["small"] = struct.unpack("f", struct.pack("f", row["small"]))[0]
    assert result == expected
    kind.opened("types", WHOLE, ["key"])  # its columns fit the query that made it


def test_intervals_are_stored_or_refused(kind: Kind) -> None:
    """PostgreSQL and DuckDB have a type for them, also for keys; Delta and Iceberg have none."""
    columns = pa.schema([("key", pa.duration("us")), ("took", pa.duration("us"))])
    times = [dt.timedelta(days=40, microseconds=1), -dt.timedelta(days=3, seconds=7)]
    if isinstance(kind, DeltaFiles | IcebergFiles):
        with pytest.raises(RejectedError, match=r"(Delta|Iceberg) has no type for the column key .*duration.*CAST"):
            kind.opened("times", columns, ["key"])
        return
    for epoch in range(2):  # the second time the table is there
        rows = [{"key": each, "took": (epoch + 1) * each} for each in times]
        kind.opened("times", columns, ["key"]).apply("q", epoch, [changes_of(rows, columns)])
    if isinstance(kind, DuckDBFile):
        with duckdb.connect(str(kind.path)) as connection:  # its intervals have no Python type by way of Arrow
            result = connection.sql("FROM times").fetchall()
    else:
        result = [(row["key"], row["took"]) for row in kind.rows("times")]
    assert sorted(result) == sorted((each, 2 * each) for each in times)


def test_times_of_a_day_are_stored_or_refused(kind: Kind) -> None:
    """TIME of Spark comes in nanoseconds. DuckDB stores them all; the others refuse the column, also inside a list."""
    time = pa.time64("ns")
    for type_, values in ((time, [3_723_000_000_001]), (pa.list_(time), [[3_723_000_000_001]])):
        columns = pa.schema([("key", pa.int64()), ("opens", type_)])
        changes = pa.table(
            [pa.array(["+U"]), pa.array([1], pa.int64()), pa.array(values, type_)], ["row_kind", *columns.names]
        )
        name = f"opening_{type_.num_fields}"
        if isinstance(kind, DuckDBFile):
            kind.opened(name, columns, ["key"]).apply("q", 0, [changes])
            with duckdb.connect(str(kind.path)) as connection:
                (text,) = connection.execute(f"SELECT opens::VARCHAR FROM {name}").fetchall()[0]
            assert text.strip("[]'") == "01:02:03.000000001"
        else:
            with pytest.raises(RejectedError, match=r"has no type for the column opens .*time64\[ns\].*convert it"):
                kind.opened(name, columns, ["key"])
    if isinstance(kind, DuckDBFile):
        kind.run("CREATE TABLE narrow (key BIGINT UNIQUE, opens TIME)")
        columns = pa.schema([("key", pa.int64()), ("opens", time)])
        with pytest.raises(RejectedError, match=r"opens has the type time64\[us\], which does not hold"):
            kind.opened("narrow", columns, ["key"])


def test_a_column_is_added(kind: Kind) -> None:
    """With add_columns, a table gets the columns that the query has and it lacks; others are refused."""
    narrow = pa.schema([("key", pa.int32()), ("text", pa.string())])
    wide = pa.schema([*narrow, pa.field("texts", pa.list_(pa.string()))])
    kind.opened("added", narrow, ["key"]).apply("q", 0, [changes_of([{"key": 1, "text": "a"}], narrow)])
    with pytest.raises(RejectedError, match=r"has no column texts.*give add_columns=True.*nothing was written"):
        kind.opened("added", wide, ["key"])
    rows = [{"key": 2, "text": "b", "texts": ["c"]}]
    kind.opened("added", wide, ["key"], add_columns=True).apply("q", 1, [changes_of(rows, wide)])
    result = sorted(kind.rows("added"), key=lambda row: row["key"])
    assert result == [{"key": 1, "text": "a", "texts": None}, *rows]
    other = pa.schema([("key", pa.int32()), ("text", pa.int64())])
    with pytest.raises(RejectedError, match=r"the column text has the type .*string.*, which does not hold.* int64"):
        kind.opened("added", other, ["key"], add_columns=True)


def test_a_table_may_have_keys_only(kind: Kind) -> None:
    """A table whose columns are all keys has nothing to update."""
    columns = pa.schema([("Key", pa.string()), ("the other", pa.int32())])
    rows = [{"Key": "a", "the other": 1}, {"Key": None, "the other": 2}]
    target = kind.opened("Keys", columns, columns.names)
    for epoch in range(2):
        target.apply("q", epoch, [changes_of(rows, columns)])
    assert sorted(kind.rows("Keys"), key=repr) == sorted(rows, key=repr)


def test_an_epoch_that_changes_no_row_is_stored(kind: Kind) -> None:
    """Also rows that a table of keys alone has already, and deletes of keys that it does not have."""
    columns = pa.schema([("key", pa.string())])
    target = kind.opened("keys", columns, ["key"])
    epochs = [["ann", "bob"], ["ann"], ["-cid"], ["cid"], ["-cid", "ann"], ["-cid"]]
    for epoch, keys in enumerate(epochs):
        rows = [{"row_kind": "-D" if key.startswith("-") else "+I", "key": key.lstrip("-")} for key in keys]
        target.apply("q", epoch, [changes_of(rows, columns)], 100 + epoch)
        assert (target.last_epoch("q"), target.last_epoch(offsets_name("q"))) == (epoch, 100 + epoch)
    assert sorted(row["key"] for row in kind.rows("keys")) == ["ann", "bob"]


def test_a_few_rows_of_a_large_table_change(kind: Kind) -> None:
    """A file may have many rows: deltalake 1.6.0 takes the updates of one beyond 8,192 rows for duplicates."""
    keys = np.arange(20_000)
    target = kind.opened("large", PAIRS, ["key"])
    for epoch, some in enumerate([keys, keys[::7], keys[:1]]):
        key = pa.array(some).cast(pa.string())
        target.apply(
            "q", epoch, [pa.table([["+U"] * len(some), key, [epoch] * len(some)], names=["row_kind", *PAIRS.names])]
        )
    result = pa.Table.from_pylist(kind.rows("large"))
    expected = np.where(keys % 7 == 0, 1, 0)
    expected[0] = 2
    assert result.num_rows == len(keys)
    assert dict(zip(*(result[name].to_pylist() for name in PAIRS.names), strict=True)) == dict(
        zip(map(str, keys), expected, strict=True)
    )


def test_partitions_of_delta_that_would_change_a_key_are_refused(tmp_path: Path) -> None:
    """Delta reads an empty text that partitions a table as NULL, and delta-rs bytes as the bytes of their text."""
    import deltalake

    files = DeltaFiles(tmp_path)

    def open_table(name: str, key: pa.DataType) -> Any:
        columns = pa.schema([("key", key), ("value", pa.int64())])
        deltalake.DeltaTable.create(str(tmp_path / name), columns, partition_by=["key"])
        return files.opened(name, columns, ["key"])

    target = open_table("texts", pa.string())
    target.apply("q", 0, [changes_of([{"key": "a", "value": 1}, {"key": None, "value": 2}], PAIRS)])
    with pytest.raises(RejectedError, match=r"SCHEMA_MISMATCH: .*'key', which cannot have an empty text"):
        target.apply("q", 1, [changes_of([{"key": "a", "value": 3}, {"key": "", "value": 4}], PAIRS)])
    assert target.last_epoch("q") == 0
    assert sorted(row["value"] for row in files.rows("texts")) == [1, 2]
    with pytest.raises(RejectedError, match="'key', which cannot have BINARY"):
        open_table("bytes", pa.binary())


NANS = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1)]


@pytest.mark.parametrize("width", [32, 64])
def test_a_key_may_be_any_nan(kind: Kind, width: int) -> None:
    """NaN is one key, whatever its bits are: `inf - inf` has others than `nan`. And -0.0 is 0.0."""
    columns = pa.schema([("key", pa.float32() if width == 32 else pa.float64()), ("value", pa.int64())])
    target = kind.opened("floats", columns, ["key"])
    keys = np.array([*NANS, 0.0, -0.0])
    for epoch in range(6):
        nan, zero = keys[epoch % 3], keys[3 + epoch % 2]
        key = pa.array(np.array([nan, zero, 1.5]), pa.float64()).cast(columns.field(0).type)
        target.apply("q", epoch, [pa.table([["+U"] * 3, key, [epoch] * 3], names=["row_kind", *columns.names])])
        rows = sorted((str(row["key"] + 0.0), row["value"]) for row in kind.rows("floats"))
        assert rows == [("0.0", epoch), ("1.5", epoch), ("nan", epoch)]
    key = pa.array(keys[1:2], pa.float64()).cast(columns.field(0).type)
    target.apply(
        "q",
        6,
        [pa.table([["-D"], key, [None]], names=["row_kind", *columns.names]).cast(changes_of([], columns).schema)],
    )
    assert len(kind.rows("floats")) == 2


def test_a_missing_table_is_created_or_refused(kind: Kind) -> None:
    """A table is created only if that was asked for."""
    with pytest.raises(RejectedError, match=r"there is no table .*create it, or give create=True"):
        kind.opened("nowhere", TARGET_COLUMNS, TARGET_KEYS, create=False)


@pytest.fixture
def database(postgres: str) -> PostgresDatabase:
    return PostgresDatabase(postgres, f"s{uuid.uuid4().hex}")


PAIRS = pa.schema([("key", pa.string()), ("value", pa.int64())])
OVER_REST = pytest.param("rest", marks=pytest.mark.every_turn)


def refusal(target: PostgresTable, columns: pa.Schema, *rows: tuple[Any, ...]) -> RejectedError:
    """Apply rows that are refused; return the error. The table and the epochs stay as they were."""
    result = [dict(zip(columns.names, row, strict=True)) for row in rows]
    with pytest.raises(RejectedError) as excinfo:
        target.apply("q", 0, [changes_of(result, columns)])
    assert target.last_epoch("q") is None
    return excinfo.value


def test_errors_name_table_key_and_column(database: PostgresDatabase) -> None:
    """A value that PostgreSQL refuses is an error with the table, the column and the key of its row."""
    database.run(f"CREATE TABLE {database.schema}.short (key text UNIQUE NULLS NOT DISTINCT, value text NOT NULL)")
    database.run(f"ALTER TABLE {database.schema}.short ADD CHECK (value <> 'odd'), ALTER value TYPE varchar")
    texts = pa.schema([("key", pa.string()), ("value", pa.string())])
    short = database.opened("short", texts, ["key"], create=False)
    error = refusal(short, texts, ("a", "b"), ("c\nd", "e\x00"))
    assert f"table {database.schema}.short: a text of the column value has the character U+0000" in error.message
    assert error.group == {"key": "c\nd"}
    assert f"table {database.schema}.short, column value: null value" in refusal(short, texts, ("a", None)).message
    assert "violates check constraint" in refusal(short, texts, ("a", "odd")).message
    assert database.rows("short") == []
    prices = pa.schema([("key", pa.string()), ("value", pa.date32())])
    target = database.opened("days", prices, ["key"])
    days = [("new\nline", dt.date(1, 1, 1)), ("b", dt.date(2013, 1, 1))]
    target.apply("q", 0, [changes_of([dict(zip(prices.names, day, strict=True)) for day in days], prices)])
    assert {(row["key"], row["value"]) for row in database.rows("days")} == set(days)


def test_a_value_that_does_not_fit_names_its_row(database: PostgresDatabase) -> None:
    """An error has the key of its row, also behind texts with line ends."""
    far = pa.schema([("key", pa.string()), ("value", pa.timestamp("us"))])
    target = database.opened("far", far, ["key"])
    rows = [{"key": "a\nb", "value": AT}, {"key": "c", "value": AT}]
    changes = changes_of(rows, far)
    beyond = pa.array([0, 2**63 - 1], pa.int64()).cast(pa.timestamp("us"))  # in the year 294247
    changes = changes.set_column(2, "value", beyond)
    with pytest.raises(
        RejectedError, match=rf"table {database.schema}.far refuses a value of the column value"
    ) as excinfo:
        target.apply("q", 0, [changes])
    assert excinfo.value.group == {"key": "c"}


def test_a_text_that_is_too_long_is_named(database: PostgresDatabase) -> None:
    """A bounded text of the table takes texts as far as they fit."""
    database.run(f"CREATE TABLE {database.schema}.short (key varchar(3) PRIMARY KEY, value bigint)")
    target = database.opened("short", PAIRS, ["key"])
    error = refusal(target, PAIRS, ("abc", 1), ("abcd", 2))
    assert f"table {database.schema}.short refuses a value of the column key: value too long" in error.message
    assert error.group == {"key": "abcd"}


@pytest.mark.parametrize(
    ("module", "package"),
    [("psycopg", "postgres"), ("duckdb", "duckdb"), ("deltalake", "delta"), ("pyiceberg", "iceberg")],
)
def test_a_missing_package_is_named(module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    options: dict[str, Any] = {"create": True, "add_columns": False}
    targets: dict[str, Any] = {
        "psycopg": PostgresTable("postgresql://me@127.0.0.1:9/db", ("t",), PAIRS, ["key"], **options),
        "duckdb": DuckDBFile(tmp_path / "t.duckdb").target("t", PAIRS, ["key"], **options),
        "deltalake": DeltaFiles(tmp_path).target("t", PAIRS, ["key"], **options),
        "pyiceberg": IcebergTable("lake", ("shop", "t"), PAIRS, ["key"], **options),
    }
    with pytest.raises(RejectedError, match=rf"needs .*: pip install 'foldflight\[{package}\]'"):
        targets[module].prepare()


@pytest.mark.parametrize(
    ("url", "actual", "table"),
    [
        ("postgresql:///db?table=t", "postgresql:///db", "t"),
        ("postgresql://a@h1:1,h2:2/db?table=s.t&sslmode=require", "postgresql://a@h1:1,h2:2/db?sslmode=require", "s.t"),
        ("postgresql://h/db?options=-c%20x%3D1&table=a%20b", "postgresql://h/db?options=-c%20x%3D1", "a b"),
        ("postgresql://me:p[#x+@h/db?table=t&password=a+b", "postgresql://me:p[#x+@h/db?password=a+b", "t"),
    ],
)
def test_libpq_gets_the_url_as_it_is(url: str, actual: str, table: str) -> None:
    """Only the name of the table is taken out."""
    address = Address.of(url)
    assert (address.scheme, address.url, ".".join(address.named_table())) == ("postgresql", actual, table)


def test_paths_may_have_characters_of_urls() -> None:
    """A path may have characters of URLs."""
    assert Address.of("duckdb:///tmp/a#b%20@c.duckdb?table=t").local_path() == "/tmp/a#b @c.duckdb"
    for url in ("duckdb:tmp", "duckdb://tmp/x"):
        with pytest.raises(RejectedError, match="absolute path behind three slashes"):
            Address.of(url).local_path()


@pytest.mark.parametrize("url", ["me:se%zzcret@h/db", "me:se@cret@h/db", "me:se/cret@h/db", "me:secret@h/db?nothing=1"])
def test_a_url_with_a_password_is_not_shown(url: str) -> None:
    """A URL that libpq cannot read is refused, and the error tells how to write it."""
    target = PostgresTable(f"postgresql://{url}", ("t",), PAIRS, ["key"], create=True, add_columns=False)
    with pytest.raises(RejectedError, match=r"table t: libpq cannot read the URL .* as %XX") as excinfo:
        target.prepare()
    output = "".join(traceback.format_exception(excinfo.value, chain=True))
    assert "cret" not in output


def test_tables_are_updated_where_all_tables_are_published(postgres: str) -> None:
    """A table that we create has a replica identity, which logical replication needs for updates and deletes."""
    name = f"d{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:  # a publication concerns its whole database
        connection.execute(f"CREATE DATABASE {name}")
    database = PostgresDatabase(f"{postgres.rpartition('/')[0]}/{name}", "public")
    database.run("CREATE PUBLICATION everything FOR ALL TABLES")
    target = database.opened("t", PAIRS, ["key"])
    for epoch in range(2):
        target.apply("q", epoch, [changes_of([{"key": each, "value": epoch} for each in ("a", None)], PAIRS)])
    target.apply("q", 2, [changes_of([{"row_kind": "-D", "key": None}], PAIRS)])
    assert database.rows("t") == [{"key": "a", "value": 1}]
    database.run("ALTER TABLE t REPLICA IDENTITY DEFAULT")  # as of a table that others made
    with pytest.raises(RejectedError, match=r"table public.t: .*replica identity.*ALTER TABLE"):
        target.apply("q", 3, [changes_of([{"key": "a", "value": 3}], PAIRS)])


def test_a_user_who_cannot_create_tables_writes_into_existing_ones(database: PostgresDatabase) -> None:
    """Tables that exist are enough."""
    database.opened("t", PAIRS, ["key"])
    user = f"u{uuid.uuid4().hex}"
    database.run(
        f"CREATE USER {user}; GRANT USAGE ON SCHEMA {database.schema} TO {user};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {database.schema} TO {user}"
    )
    url = f"{database.base}?user={user}"
    target = PostgresTable(url, (database.schema, "t"), PAIRS, ["key"], create=False, add_columns=False)
    target.prepare()
    target.apply("q", 0, [changes_of([{"key": "a", "value": 1}], PAIRS)])
    assert database.rows("t") == [{"key": "a", "value": 1}]


def test_a_user_who_may_not_log_in_is_told(database: PostgresDatabase) -> None:
    """A wrong password or database is an error of its own, which is not tried again and does not show the password."""
    place = database.base.partition("@")[2].partition("/")[0]
    database.run(f"CREATE USER {WITH_PASSWORD} PASSWORD 'right'")

    def message_of(login: str, base: str) -> tuple[str, str]:
        target = PostgresTable(
            f"postgresql://{login}@{place}/{base}", ("t",), PAIRS, ["key"], create=True, add_columns=False
        )
        with pytest.raises(RejectedError) as excinfo:
            target.prepare()
        assert "secret" not in str(excinfo.value)
        return excinfo.value.code, excinfo.value.message

    cases = {
        "wrong password": (f"{WITH_PASSWORD}:secret", "postgres", "UNAUTHENTICATED"),
        "no password": (WITH_PASSWORD, "postgres", "UNAUTHENTICATED"),
        "no such user": ("missing:secret", "postgres", "UNAUTHENTICATED"),
        "no such database": (f"{WITH_PASSWORD}:right", "missing", "SETTINGS"),
    }
    for login, base, code in cases.values():
        result, message = message_of(login, base)
        assert result == code
        user = login.partition(":")[0]
        assert f"the user {user} " in message
        assert base in message
    database.run(f"DROP USER {WITH_PASSWORD}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sslmode=banana", "invalid sslmode value"),
        ("port=many", "invalid integer value"),
        ("port=99999", "invalid port number"),
        ("sslmode=require", "server does not support SSL"),
        ("options=-c%20nothing%3D1", 'unrecognized configuration parameter "nothing"'),
    ],
)
def test_settings_of_a_connection_that_cannot_work_are_refused(postgres: str, setting: str, message: str) -> None:
    """They are refused at once, since another attempt would fail in the same way."""
    target = PostgresTable(f"{postgres}?{setting}", ("t",), PAIRS, ["key"], create=True, add_columns=False)
    with pytest.raises(RejectedError, match=f"table t: .*{message}.* Correct the URL") as excinfo:
        target.prepare()
    assert excinfo.value.code == "SETTINGS"


@pytest.mark.parametrize("sqlstate", ["25P03", "57P01", "57014", "08006", "53300", "25006", "40P01", "40001", "55P03"])
def test_an_epoch_whose_connection_the_server_ends_is_tried_again(database: PostgresDatabase, sqlstate: str) -> None:
    """What a server says when it ends work, or is a standby, is no mistake: the epoch is tried again."""
    target = database.opened("t", PAIRS, ["key"])
    name = psycopg.errors.lookup(sqlstate).__name__

    def end() -> None:
        with target._connect() as connection:
            if sqlstate == "25P03":
                connection.execute("SET idle_in_transaction_session_timeout = 1")
                connection.execute("BEGIN")
                select.select([connection.fileno()], [], [], 30)  # until the server says that it ends the connection
                connection.execute("SELECT 1")
            else:
                connection.execute(f"DO $$ BEGIN RAISE EXCEPTION '{name}' USING ERRCODE = '{sqlstate}'; END $$")

    with pytest.raises(RetryableError, match=r"the database of table .* does not answer"):
        end()


def test_a_key_that_is_too_long_for_an_index_is_named(database: PostgresDatabase) -> None:
    """For psycopg it is an error of the server like a lost connection, but no other attempt would succeed."""
    target = database.opened("t", PAIRS, ["key"])
    long = "".join(random.Random(1).choices(string.ascii_letters, k=9000))  # it cannot be compressed
    error = refusal(target, PAIRS, (long, 1))
    assert error.code == "SCHEMA_MISMATCH"
    assert re.search(r"table .*\.t: index row requires \d+ bytes", error.message)


def test_a_host_that_vanishes_is_noticed(database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides ask whether the other one is there: a database that is gone is waited for, and so is a driver."""
    target = database.opened("t", PAIRS, ["key"])
    connections: list[psycopg.Connection[Any]] = []
    connect = psycopg.connect

    def connect_and_note(*args: Any, **options: Any) -> psycopg.Connection[Any]:
        connections.append(connect(*args, **options))
        return connections[-1]

    monkeypatch.setattr(psycopg, "connect", connect_and_note)

    def parts() -> Iterator[pa.Table]:
        [connection] = connections
        with socket.socket(fileno=os.dup(connection.fileno())) as ours:
            idle, interval, count = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
            assert [ours.getsockopt(socket.IPPROTO_TCP, each) for each in (idle, interval, count)] == [30, 10, 3]
        for name, value in (("idle", "30"), ("interval", "10"), ("count", "3")):
            assert connection.execute(f"SHOW tcp_keepalives_{name}").fetchone() == (value,)
        yield changes_of([{"key": "a", "value": 1}], PAIRS)

    target.apply("q", 0, parts())
    assert database.rows("t") == [{"key": "a", "value": 1}]


def test_a_table_stores_a_digest_of_the_offsets(kind: Kind) -> None:
    """A table stores a digest of the offsets beside the epoch: the last one, whatever its number is."""
    target = kind.opened("t", PAIRS, ["key"])
    assert target.last_epoch(offsets_name("q")) is None
    for epoch, offsets in enumerate((2**63 - 1, 3, 0)):
        target.apply("q", epoch, [changes_of([{"key": "a", "value": epoch}], PAIRS)], offsets)
        target.apply("q", epoch, [], 5)  # the epoch is there already
        assert (target.last_epoch("q"), target.last_epoch(offsets_name("q"))) == (epoch, offsets)


def test_texts_are_converted_to_the_encoding_of_the_database(database: PostgresDatabase) -> None:
    """Texts are converted to the encoding of the database; a character that it lacks is an error with its key."""
    name = f"latin_{uuid.uuid4().hex}"
    with psycopg.connect(database.base, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = PostgresDatabase(f"{database.base.rpartition('/')[0]}/{name}", "s")
    columns = pa.schema([("key", pa.string()), ("value", pa.string())])
    target = latin.opened("t", columns, ["key"])
    error = refusal(target, columns, ("a", "é"), ("b", "😀"))
    assert error.group == {"key": "b"}
    target.apply("q", 0, [changes_of([{"key": "ä", "value": "é"}], columns)])
    assert latin.rows("t") == [{"key": "ä", "value": "é"}]


def test_a_table_needs_a_unique_index_over_its_keys(database: PostgresDatabase) -> None:
    """Without a unique index over exactly the keys, or with one that takes NULLs as different, the remedy is told."""
    database.run(f"CREATE TABLE {database.schema}.t (key text, value bigint)")
    with pytest.raises(RejectedError, match=r"no unique index over its keys key: CREATE UNIQUE INDEX ON .*DISTINCT"):
        database.opened("t", PAIRS, ["key"])
    database.run(f"CREATE UNIQUE INDEX ON {database.schema}.t (key, value)")
    database.run(f"CREATE UNIQUE INDEX ON {database.schema}.t (key) WHERE value > 0")
    with pytest.raises(RejectedError, match="no unique index"):
        database.opened("t", PAIRS, ["key"])
    database.run(f"CREATE UNIQUE INDEX ON {database.schema}.t (key)")
    database.run(f"ALTER TABLE {database.schema}.t ADD CONSTRAINT late UNIQUE (key) DEFERRABLE")
    with pytest.raises(RejectedError, match=r"unique constraint over its keys key that is DEFERRABLE"):
        database.opened("t", PAIRS, ["key"])
    database.run(f"ALTER TABLE {database.schema}.t DROP CONSTRAINT late")
    target = database.opened("t", PAIRS, ["key"])
    error = refusal(target, PAIRS, ("a", 1), (None, 2))
    assert "the key column key is NULL, and the unique index" in error.message
    assert error.group == {"key": None}
    target.apply("q", 0, [changes_of([{"key": "a", "value": 1}], PAIRS)])
    assert database.rows("t") == [{"key": "a", "value": 1}]


def test_columns_that_only_the_table_has_are_left_alone(database: PostgresDatabase) -> None:
    """They keep their values and defaults, and may be generated."""
    database.run(
        f"CREATE TABLE {database.schema}.t (id int GENERATED ALWAYS AS IDENTITY, key text PRIMARY KEY, value numeric, "
        "note text DEFAULT 'new')"
    )
    columns = pa.schema([("key", pa.string()), ("value", pa.decimal128(10, 2))])
    target = database.opened("t", columns, ["key"])
    for epoch, value in enumerate((Decimal("1.00"), Decimal("2.50"))):
        target.apply("q", epoch, [changes_of([{"key": "a", "value": value}], columns)])
        database.run(f"UPDATE {database.schema}.t SET note = 'kept'")
    assert database.rows("t") == [{"id": 1, "key": "a", "value": Decimal("2.50"), "note": "kept"}]


def test_types_that_postgresql_lacks_are_refused(database: PostgresDatabase) -> None:
    """A struct is refused with a remedy."""
    columns = pa.schema([("key", pa.string()), ("pair", pa.struct([("a", pa.int64())]))])
    with pytest.raises(RejectedError, match=r"PostgreSQL has no type for the column pair .*to_json"):
        database.opened("t", columns, ["key"])


def test_columns_of_pgvector_take_vectors(database: PostgresDatabase) -> None:
    """Arrays are written as pgvector reads them. A domain of texts stands in for its type, and shows what arrives."""
    database.run(f"CREATE DOMAIN {database.schema}.vector AS text")
    database.run(f"CREATE TABLE {database.schema}.means (key text UNIQUE, mean {database.schema}.vector, plain real[])")
    columns = pa.schema([("key", pa.string()), *((name, pa.list_(pa.float32())) for name in ("mean", "plain"))])
    rows = [{"key": "a", "mean": [0.5, -0.0], "plain": [0.5, -0.0]}, {"key": "b", "mean": None, "plain": None}]
    database.opened("means", columns, ["key"]).apply("q", 0, [changes_of(rows, columns)])
    result = sorted(database.rows("means"), key=lambda row: row["key"])
    assert result == [{"key": "a", "mean": "[0.5,-0.0]", "plain": [0.5, -0.0]}, rows[1]]
    wide = pa.schema([("key", pa.string()), ("mean", pa.list_(pa.float64()))])
    with pytest.raises(RejectedError, match=r"column mean has the type .* does not hold"):
        database.opened("means", wide, ["key"])


def test_arrays_of_a_fixed_length_take_vectors(tmp_path: Path) -> None:
    """DuckDB's FLOAT[n] takes lists of n items, and refuses others."""
    file = DuckDBFile(tmp_path / "tables.duckdb")
    with duckdb.connect(str(file.path)) as connection:
        connection.execute("CREATE TABLE means (key VARCHAR UNIQUE, mean FLOAT[2])")
    columns = pa.schema([("key", pa.string()), ("mean", pa.list_(pa.float32()))])
    target = file.opened("means", columns, ["key"])
    target.apply("q", 0, [changes_of([{"key": "a", "mean": [0.5, 2]}, {"key": "b", "mean": None}], columns)])
    assert sorted(file.rows("means"), key=repr) == [{"key": "a", "mean": [0.5, 2.0]}, {"key": "b", "mean": None}]
    with pytest.raises(RejectedError, match=r"length 3.*length 2"):
        target.apply("q", 1, [changes_of([{"key": "a", "mean": [1, 2, 3]}], columns)])


def test_a_file_that_another_process_has_open_is_named(tmp_path: Path) -> None:
    """The file is not available then, which passes; the table is as before."""
    file = DuckDBFile(tmp_path / "locked.duckdb")
    target = file.opened("t", PAIRS, ["key"])
    program = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(file.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(RetryableError, match=r"table t in .* is not available"):
            target.apply("q", 0, [])
        process.communicate()
    target.apply("q", 0, [changes_of([{"key": "a", "value": 1}], PAIRS)])
    assert file.rows("t") == [{"key": "a", "value": 1}]


def test_a_path_that_is_no_file_of_duckdb_is_refused(tmp_path: Path) -> None:
    """It is refused at once, since another attempt would fail in the same way."""
    text = tmp_path / "text.duckdb"
    text.write_text("a text " * 1000)
    for path in (text, tmp_path, tmp_path / "missing" / "new.duckdb", text / "new.duckdb"):
        with pytest.raises(RejectedError, match=r"table t in .* IO Error: .* names a file of DuckDB") as excinfo:
            DuckDBFile(path).opened("t", PAIRS, ["key"])
        assert excinfo.value.code == "SETTINGS"
    assert not (tmp_path / "missing").exists()


def test_a_file_may_be_read_in_the_same_process(tmp_path: Path) -> None:
    """A reader in the notebook of the driver makes the file unavailable only as long as it reads."""
    file = DuckDBFile(tmp_path / "read.duckdb")
    target = file.opened("t", PAIRS, ["key"])
    with (
        duckdb.connect(str(file.path), read_only=True),
        pytest.raises(RetryableError, match=r"table t in .* is not available"),
    ):
        target.apply("q", 0, [])
    target.apply("q", 0, [])


def test_queries_take_turns_in_duckdb(tmp_path: Path) -> None:
    """A file is opened by one thread at a time; the other one waits for the end of the epoch."""
    file = DuckDBFile(tmp_path / "turns.duckdb")
    one, other = (file.opened(name, PAIRS, ["key"]) for name in ("one", "other"))
    thread = threading.Thread(target=other.apply, args=("b", 0, []))
    waits = []

    def meanwhile() -> Iterator[pa.Table]:
        thread.start()
        thread.join(0.5)
        waits.append(thread.is_alive())
        yield changes_of([{"key": "a", "value": 1}], PAIRS)

    one.apply("a", 0, meanwhile())
    thread.join()
    assert waits == [True]
    assert (one.last_epoch("a"), other.last_epoch("b")) == (0, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_two_threads_apply_changes_the_table_once(epoch: int, tmp_path: Path) -> None:
    """Of two threads of one process that apply the same epoch, one changes the table."""
    file = DuckDBFile(tmp_path / "twice.duckdb")
    target = file.opened("t", PAIRS, ["key"])
    changes = changes_of([{"key": "a", "value": 1}], PAIRS)
    for before in range(epoch):
        target.apply("q", before, [])

    def meanwhile() -> Iterator[pa.Table]:
        with contextlib.suppress(RetryableError):
            file.opened("t", PAIRS, ["key"]).apply("q", epoch, [changes])
        yield changes

    with contextlib.suppress(RetryableError):
        target.apply("q", epoch, meanwhile())
    target.apply("q", epoch, [changes])
    assert file.rows("t") == [{"key": "a", "value": 1}]


def test_a_target_knows_whether_a_table_has_rows(kind: Kind) -> None:
    """It has none at first, and none after all are deleted."""
    target = kind.opened("t", PAIRS, ["key"])
    changes = changes_of([{"key": "a", "value": 1}], PAIRS)
    result = [target.has_rows()]
    for epoch, row_kind in enumerate(("+I", "-D")):
        target.apply("q", epoch, [changes.set_column(0, "row_kind", pa.array([row_kind]))])
        result.append(target.has_rows())
    assert result == [False, True, False]


def test_rows_of_a_deletion_vector_are_no_rows_of_the_table(tmp_path: Path) -> None:
    """Spark's DELETE may keep the file and list the rows that it has deleted: such a table has no rows."""
    files = DeltaFiles(tmp_path)
    target = files.opened("t", PAIRS, ["key"])
    target.apply("q", 0, [changes_of([{"key": "a", "value": 1}, {"key": "b", "value": 2}], PAIRS)])
    log = tmp_path / "t" / "_delta_log"
    lines = max(log.glob("*.json")).read_text().splitlines()
    (add,) = (action["add"] for action in map(json.loads, lines) if "add" in action)
    rows = [0, 1]
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack("<HH", *rows)  # one Roaring bitmap
    vector = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    inline = {"storageType": "i", "pathOrInlineDv": z85(vector), "sizeInBytes": len(vector), "cardinality": len(rows)}
    commit = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**add, "deletionVector": inline}},
    ]
    assert target.has_rows()
    (log / f"{2:020}.json").write_text("\n".join(map(json.dumps, commit)))
    assert not target.has_rows()


def z85(data: bytes) -> str:
    """Return bytes in the base 85 of ZeroMQ, as the format of Delta has them."""
    digits = f"{string.digits}{string.ascii_letters}.-:+=^!/*?&<>()[]{{}}@%$#"
    numbers = (number for (number,) in struct.iter_unpack(">I", data))
    return "".join(digits[number // 85**place % 85] for number in numbers for place in (4, 3, 2, 1, 0))


def test_epochs_belong_to_a_table(kind: Kind) -> None:
    """A query that goes on with another table finds no epoch of its own there."""
    kind.opened("one", PAIRS, ["key"]).apply("q", 3, [])
    other = kind.opened("other", PAIRS, ["key"])
    assert other.last_epoch("q") is None
    other.apply("q", 3, [changes_of([{"key": "a", "value": 1}], PAIRS)])
    assert kind.rows("other") == [{"key": "a", "value": 1}]
    assert (kind.opened("one", PAIRS, ["key"]).last_epoch("q"), other.last_epoch("q")) == (3, 3)


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"], indirect=True)
def test_a_table_that_was_dropped_has_no_epochs(kind: DuckDBFile | PostgresDatabase) -> None:
    """A query that is started again creates an empty table, and must not find there the epochs of the one before."""
    kind.opened("kept", PAIRS, ["key"]).apply("q", 3, [], 5)
    kind.opened("t", PAIRS, ["key"]).apply("q", 3, [changes_of([{"key": "a", "value": 1}], PAIRS)], 5)
    kind.run(f"DROP TABLE {getattr(kind, 'schema', 'main')}.t")
    names = ["q", offsets_name("q")]
    assert [kind.opened("t", PAIRS, ["key"]).last_epoch(name) for name in names] == [None, None]
    assert [kind.opened("kept", PAIRS, ["key"]).last_epoch(name) for name in names] == [3, 5]
    kind.opened("t", PAIRS, ["key"]).apply("q", 0, [], 6)
    assert [kind.opened("t", PAIRS, ["key"]).last_epoch(name) for name in names] == [0, 6]


@pytest.mark.parametrize("kind", [OVER_REST], indirect=True)
def test_an_iceberg_table_over_rest_keeps_the_laws(kind: Kind) -> None:
    """They hold where another program commits, which compares the snapshot that was read."""
    test_each_target_keeps_the_laws(kind)


@pytest.mark.parametrize("kind", ["delta", "iceberg", OVER_REST], indirect=True)
def test_a_commit_of_another_writer_is_retried(kind: Kind) -> None:
    """A commit between the comparison of epochs and the commit of ours is an error that passes: both are done again."""
    files, target = kind, kind.opened("t", PAIRS, ["key"])

    def meanwhile() -> Iterator[pa.Table]:
        files.opened("t", PAIRS, ["key"]).apply("q", 0, [changes_of([{"key": "a", "value": 1}], PAIRS)])
        yield changes_of([{"key": "a", "value": 2}], PAIRS)

    with pytest.raises(RetryableError, match="another writer changed table"):
        target.apply("q", 0, meanwhile())
    target.apply("q", 0, meanwhile())
    assert files.rows("t") == [{"key": "a", "value": 1}]


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergFiles:
    """A catalogue in a file, or one behind a server: `rest`."""
    over_rest = getattr(request, "param", "file") == "rest"
    return request.getfixturevalue("rest") if over_rest else IcebergFiles(tmp_path)  # type: ignore[no-any-return]


def test_changes_of_many_composite_keys_leave_other_rows(lake: IcebergFiles) -> None:
    """A few changes of many rows whose keys have two columns, NULL among them, leave the other rows as they are."""
    columns = pa.schema([("day", pa.date32()), ("number", pa.int32()), ("value", pa.int64())])
    target = lake.opened("t", columns, ["day", "number"])
    days = [None, *(dt.date(2025, 1, 1) + dt.timedelta(number) for number in range(999))]
    expected: dict[Any, int] = {(day, number): 0 for day in days for number in [None, *range(99)]}
    assert len(expected) == 100_000
    chance = random.Random(20)
    changes = [list(expected), chance.sample(list(expected), 50_000), [(None, None)]]
    for epoch, some in enumerate(changes):
        deleted_keys = set(some[::3]) if epoch else set()
        expected |= dict.fromkeys(some, epoch)
        expected = {key: value for key, value in expected.items() if key not in deleted_keys}
        kinds = ["-D" if key in deleted_keys else "+U" for key in some]
        rows = pa.Table.from_pylist([{"day": day, "number": number, "value": epoch} for day, number in some], columns)
        target.apply("q", epoch, [rows.add_column(0, "row_kind", pa.array(kinds))])
    result = lake.rows("t")
    assert len(result) == len(expected)
    assert {(row["day"], row["number"]): row["value"] for row in result} == expected


def plain(value: Any) -> Any:
    """Return 0.0 for -0.0."""
    return 0.0 if isinstance(value, float) and value == 0.0 else value


def test_any_changes_of_iceberg_lead_to_the_rows_of_a_dict(lake: IcebergFiles) -> None:
    """Keys of all types, with NULL, zeros and NaN, in files of their own, beside a column that only the table has."""
    chance = random.Random(7)
    keys: dict[str, tuple[pa.DataType, list[Any]]] = {
        "text": (pa.string(), [None, "", "a", "b", "c"]),
        "flag": (pa.bool_(), [None, True, False]),
        "ratio": (pa.float64(), [None, math.nan, 0.0, -0.0, 1.5]),
        "small": (pa.int16(), [None, 0, -1, 32767]),
        "price": (pa.decimal128(10, 2), [None, Decimal("0.00"), Decimal("-1.25")]),
        "data": (pa.binary(), [None, b"", b"\x00"]),
        "at": (pa.timestamp("us"), [None, AT]),
    }
    for number in range(6):
        names = chance.sample(sorted(keys), 1 + number % 3)
        fields = [(name, keys[name][0]) for name in names]
        columns = pa.schema([*fields, ("value", pa.int64())])
        lake.opened(f"t{number}", pa.schema([*columns, ("note", pa.string())]), names)
        target, expected = lake.opened(f"t{number}", columns, names), {}
        for epoch in range(8):
            changes = {}
            for _ in range(chance.randint(0, 5)):
                # NaN is one object here, so it equals itself.
                key = tuple(plain(chance.choice(keys[name][1])) for name in names)
                changes[key] = chance.choice(("+U", "+U", "-D"))
            for key, row_kind in changes.items():
                expected.pop(key, None)
                if row_kind == "+U":
                    expected[key] = epoch
            rows = [
                {"row_kind": row_kind, **dict(zip(names, key, strict=True)), "value": epoch}
                for key, row_kind in changes.items()
            ]
            target.apply("q", epoch, [changes_of(rows, columns)] if rows else [])
        result = [(tuple(row[name] for name in names), row["value"]) for row in lake.rows(f"t{number}")]
        assert sorted(map(repr, result)) == sorted(map(repr, expected.items())), names


@pytest.mark.parametrize("lake", ["file", OVER_REST], indirect=True)
def test_columns_that_only_an_iceberg_table_has_are_left_alone(lake: IcebergFiles) -> None:
    """They keep their values, and are NULL in new rows; a required one takes no NULL."""
    whole = pa.schema([*PAIRS, pa.field("note", pa.string())])
    rows = [{"key": key, "value": 1, "note": f"of {key}"} for key in ("a", "b", "c")]
    lake.opened("t", whole, ["key"]).apply("other", 0, [changes_of(rows, whole)])
    changes = [{"key": "b", "value": 2}, {"key": "d", "value": 2}, {"row_kind": "-D", "key": "c"}]
    lake.opened("t", PAIRS, ["key"]).apply("q", 0, [changes_of(changes, PAIRS)])
    assert sorted(lake.rows("t"), key=lambda row: row["key"]) == [
        {"key": "a", "value": 1, "note": "of a"},
        {"key": "b", "value": 2, "note": "of b"},
        {"key": "d", "value": 2, "note": None},
    ]
    required_schema = pa.schema([pa.field("key", pa.string(), nullable=False), *list(PAIRS)[1:]])
    with lake.opened_catalog() as catalog:
        catalog.create_table(("shop", "required"), schema=required_schema)
    target = lake.opened("required", PAIRS, ["key"])
    target.apply("q", 0, [changes_of([{"key": "a", "value": 1}], PAIRS)])
    with pytest.raises(RejectedError, match="the column key is required, and a change has NULL there"):
        target.apply("q", 1, [changes_of([{"key": None, "value": 1}], PAIRS)])
    assert (target.last_epoch("q"), lake.rows("required")) == (0, [{"key": "a", "value": 1}])


@pytest.mark.parametrize("lake", ["file", OVER_REST], indirect=True)
def test_epochs_of_an_iceberg_table_outlive_its_snapshots(lake: IcebergFiles) -> None:
    """They remain when snapshots expire, and go back with the table when it is rolled back."""
    target = lake.opened("t", PAIRS, ["key"])
    snapshots = []
    for epoch, query in enumerate(("first", "q", "q", "q")):
        target.apply(query, epoch, [changes_of([{"key": "a", "value": epoch}], PAIRS)], 100 + epoch)
        with lake.opened_catalog() as catalog:
            snapshots.append(catalog.load_table(("shop", "t")).current_snapshot().snapshot_id)
    for snapshot, marks in ((snapshots[2], [2, 102, 0]), (snapshots[0], [None, None, 0])):
        with lake.opened_catalog() as catalog:
            catalog.load_table(("shop", "t")).manage_snapshots().rollback_to_snapshot(snapshot).commit()
        assert [target.last_epoch(name) for name in ("q", offsets_name("q"), "first")] == marks
    target.apply("q", 1, [changes_of([{"key": "a", "value": 1}], PAIRS)])
    target.apply("last", 7, [])
    with lake.opened_catalog() as catalog:
        table = catalog.load_table(("shop", "t"))
        current = table.current_snapshot().snapshot_id
        expired_snapshots = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(expired_snapshots).commit()
        assert len(catalog.load_table(("shop", "t")).snapshots()) == 1
    assert [target.last_epoch(name) for name in ("first", "q", "last")] == [0, 1, 7]


def test_iceberg_tables_that_cannot_be_written_are_refused(lake: IcebergFiles, tmp_path: Path) -> None:
    """The format's version, a name without a namespace, a catalogue that nothing describes, or that is away."""
    lake.opened("new", PAIRS, ["key"])
    with lake.opened_catalog() as catalog:
        metadata = Path(catalog.load_table(("shop", "new")).metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": 3, "next-row-id": 0}))
    with pytest.raises(RejectedError, match="has the format version 3, and pyiceberg writes up to 2"):
        lake.opened("new", PAIRS, ["key"])
    with pytest.raises(
        RejectedError, match=r"the catalogue nowhere of the target is not configured: .*\.pyiceberg\.yaml"
    ):
        IcebergTable("nowhere", ("shop", "t"), PAIRS, ["key"], create=True, add_columns=False).prepare()
    for uri in (
        {"type": "rest", "uri": "http://127.0.0.1:9"},
        {"type": "sql", "uri": "sqlite:////no/folder/catalog.db"},
    ):
        away = IcebergFiles(tmp_path, **uri)
        with pytest.raises(RetryableError, match=f"table shop.t in {away.catalog} is not available: "):
            away.opened("t", PAIRS, ["key"])
    assert Address.of("iceberg://lake/shop.eu.t").in_catalog() == ("lake", ("shop", "eu", "t"))
    for url in ("iceberg://lake/t", "iceberg:///shop.t", "iceberg:lake/shop.t", "iceberg://lake/shop."):
        with pytest.raises(RejectedError, match="the target iceberg has a catalogue and a table with its namespace"):
            Address.of(url).in_catalog()
