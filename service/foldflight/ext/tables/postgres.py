r"""A table in PostgreSQL, by psycopg 3. Each part of an epoch is copied into a temporary table and merged from there.

The copy is in the text format of COPY: a line for each row, tabs between columns, `\N` for NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.targets import DELETE, key_of_row, missing_columns, offsets_name
from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.ext.tables.merge_sql import driver, quote_name
from foldflight.functions.types.arrow import is_nested

if TYPE_CHECKING:
    import psycopg

ZERO: Final = "\x00"
_psycopg: Final = partial(driver, "postgresql", "psycopg", extra="postgres")
_NEW, _GONE = '"foldflight_new"', '"foldflight_gone"'
_NULLS_NOT_DISTINCT: Final = 150000  # UNIQUE NULLS NOT DISTINCT came with PostgreSQL 15
# A host that vanishes closes no connection. Each side then notices after a minute, where Linux would take two hours.
_ALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}  # the first two in seconds
_LOST_S: Final = {"connect_timeout": 10, "tcp_user_timeout": 60_000, **_ALIVE}  # tcp_user_timeout is in milliseconds
# SQLSTATEs of a server that ends connections or statements, lacks resources, is a standby, or ends one of two
# transactions in conflict: another attempt may succeed.
_LOST: Final = ("08", "40", "53", "55006", "55P03", "57", "58", "25P03", "25P04", "25006")
# libpq has no SQLSTATE for a connection that is refused, so these are the texts of PostgreSQL and of PgBouncer.
_NO_LOGIN: Final = re.compile(
    r'authentication failed|role ".*" (?:does not exist|is not permitted)|no password supplied'
    r"|pg_hba\.conf|no such user"
)
_NO_DATABASE: Final = re.compile(r'database ".*" does not exist|permission denied for database|no such database')
_NO_SETTING: Final = re.compile(
    r"connection is bad: invalid |unrecognized configuration parameter|certificate|authentication method requirement"
    r"|server does not support SSL"
)
_LOCATION: Final = re.compile(r"line (\d+)(?:, column ([^:]+))?")
_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_INDEXES: Final = """
    SELECT array_agg(attname::text), bool_or(coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)),
        bool_or(indimmediate)
    FROM pg_index AS i
    JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY((indkey::smallint[])[0:indnkeyatts - 1])
    WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
    GROUP BY indexrelid"""


class PostgresTable:
    """A target. A unique index over the keys finds the rows, so an epoch costs what it changes.

    Args:
        url: The URL of the database, as libpq takes it.
        table: The name of the table, in parts.
        columns: The columns of the query.
        keys: The columns that identify a row.
        create: Whether to create the table if it does not exist.
        add_columns: Whether to add columns that the table lacks.
    """

    def __init__(
        self,
        url: str,
        table: tuple[str, ...],
        columns: pa.Schema,
        keys: Sequence[str],
        *,
        create: bool,
        add_columns: bool,
    ) -> None:
        self.name = ".".join(table)
        self._url, self._columns, self._keys = url, columns, list(keys)
        self._create, self._add_columns = create, add_columns
        self._table = quote_name(table)
        self._epochs = quote_name((*table[:-1], "foldflight_epochs"))
        self._name_in_schema = table[-1]
        self._takes_null_keys = False
        self._vectors: frozenset[str] = frozenset()

    def prepare(self) -> None:
        """Create the table, or check its columns and its index, and add the columns that it lacks."""
        column_types = {field.name: postgres_type(field.type) for field in self._columns}
        for name, type_ in column_types.items():
            if type_ is None:
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"table {self.name}: PostgreSQL has no type for the column {name} of the query, "
                    f"{self._columns.field(name).type}; convert it in the query, for example with to_json",
                )
        with self._connect() as connection, connection.transaction():
            # Without this lock, two queries that create the same table at the same time would fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('foldflight'))")
            if not self._exists(connection, self._epochs):  # IF NOT EXISTS needs the right to create in any case
                connection.execute(
                    f"CREATE TABLE {self._epochs} (query text, table_name text, epoch bigint NOT NULL, "
                    "committed_at timestamptz NOT NULL, PRIMARY KEY (query, table_name))"
                )
            existing_columns = self._existing_columns(connection)
            if not existing_columns:
                if not self._create:
                    raise RejectedError("SETTINGS", f"there is no table {self.name}; create it, or give create=True")
                columns = ", ".join(f"{quote_name(name)} {type_}" for name, type_ in column_types.items())
                nulls = "NULLS NOT DISTINCT " if connection.info.server_version >= _NULLS_NOT_DISTINCT else ""
                connection.execute(
                    f"CREATE TABLE {self._table} ({columns}, UNIQUE {nulls}({self._name_list(self._keys)}))"
                )
                # PostgreSQL refuses updates of a published table without a replica identity. It is FULL, because
                # keys may be NULL, so they cannot be a primary key.
                connection.execute(f"ALTER TABLE {self._table} REPLICA IDENTITY FULL")
                # Forget the epochs of a dropped table of this name. Otherwise a query that had filled it would go on
                # after its last epoch, and this new table would lack all rows before that.
                connection.execute(f"DELETE FROM {self._epochs} WHERE table_name = %s", [self._name_in_schema])
                existing_columns = self._existing_columns(connection)
            for field in missing_columns(self.name, self._columns, existing_columns, add_columns=self._add_columns):
                connection.execute(
                    f"ALTER TABLE {self._table} ADD COLUMN {quote_name(field.name)} {column_types[field.name]}"
                )
            self._check_index(connection)

    def _exists(self, connection: psycopg.Connection[Any], table: str) -> bool:
        return connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)

    def _existing_columns(self, connection: psycopg.Connection[Any]) -> dict[str, pa.DataType | str]:
        names = dict(connection.execute(_COLUMNS, [self._table]).fetchall())
        self._vectors = frozenset(name for name, type_ in names.items() if is_pgvector(type_))
        return {name: type_of(type_) for name, type_ in names.items()}

    def _check_index(self, connection: psycopg.Connection[Any]) -> None:
        keys = self._name_list(self._keys)
        indexes = connection.execute(_INDEXES, [self._table])
        matching_indexes = [(nulls, immediate) for names, nulls, immediate in indexes if set(names) == set(self._keys)]
        if not matching_indexes:
            raise RejectedError(
                "SETTINGS",
                f"table {self.name} has no unique index over its keys {', '.join(self._keys)}: CREATE UNIQUE INDEX ON "
                f"{self._table} ({keys}) NULLS NOT DISTINCT",
            )
        if not all(immediate for _, immediate in matching_indexes):
            raise RejectedError(
                "SETTINGS",
                f"table {self.name} has a unique constraint over its keys {', '.join(self._keys)} that is DEFERRABLE, "
                "and INSERT ... ON CONFLICT refuses such a table: drop it, and add one that is not",
            )
        self._takes_null_keys = any(nulls for nulls, _ in matching_indexes)

    def has_rows(self) -> bool:
        """Return whether the table has any rows."""
        with self._connect() as connection:
            return connection.execute(f"SELECT FROM {self._table} LIMIT 1").fetchone() is not None

    def last_epoch(self, query: str) -> int | None:
        with self._connect() as connection:
            select = f"SELECT epoch FROM {self._epochs} WHERE query = %s AND table_name = %s"
            row = connection.execute(select, [query, self._name_in_schema]).fetchone()
            return None if row is None else row[0]

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table], offsets: int | None = None) -> None:
        names = self._name_list(self._columns.names)
        with self._connect() as connection, connection.transaction():
            # A driver whose host vanished must not hold the lock on the row below for hours.
            for name, value in _ALIVE.items():
                connection.execute(f"SET LOCAL tcp_{name} = {value}")
            # The row is also the lock: another driver of the same query waits here, and then finds the epoch.
            mark_result = connection.execute(
                f"INSERT INTO {self._epochs} AS kept VALUES (%s, %s, %s, now()) ON CONFLICT (query, table_name) "
                "DO UPDATE SET epoch = EXCLUDED.epoch, committed_at = EXCLUDED.committed_at "
                "WHERE kept.epoch < EXCLUDED.epoch",
                [query, self._name_in_schema, epoch],
            )
            if not mark_result.rowcount:
                return
            if offsets is not None:
                connection.execute(
                    f"INSERT INTO {self._epochs} VALUES (%s, %s, %s, now()) ON CONFLICT (query, table_name) "
                    "DO UPDATE SET epoch = EXCLUDED.epoch, committed_at = EXCLUDED.committed_at",
                    [offsets_name(query), self._name_in_schema, offsets],
                )
            connection.execute(
                f"CREATE TEMPORARY TABLE {_NEW} ON COMMIT DROP AS SELECT {names} FROM {self._table} WITH NO DATA"
            )
            connection.execute(
                f"CREATE TEMPORARY TABLE {_GONE} ON COMMIT DROP AS "
                f"SELECT {self._name_list(self._keys)} FROM {self._table} WITH NO DATA"
            )
            for part in changes:
                is_deleted = pc.equal(part[ROW_KIND], DELETE)
                self._set(connection, part.filter(pc.invert(is_deleted)).select(self._columns.names))
                self._delete(connection, part.filter(is_deleted).select(self._keys))

    def _set(self, connection: psycopg.Connection[Any], rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._check_keys(rows)
        self._copy(connection, _NEW, rows)
        names = [name for name in self._columns.names if name not in self._keys]
        sets = ", ".join(f"{quote_name(name)} = EXCLUDED.{quote_name(name)}" for name in names)
        all_names = self._name_list(self._columns.names)
        connection.execute(
            f"INSERT INTO {self._table} ({all_names}) SELECT {all_names} FROM {_NEW} "
            f"ON CONFLICT ({self._name_list(self._keys)}) DO " + (f"UPDATE SET {sets}" if sets else "NOTHING")
        )
        connection.execute(f"TRUNCATE {_NEW}")

    def _delete(self, connection: psycopg.Connection[Any], rows: pa.Table) -> None:
        """Delete rows by key. NULL equals NULL: there is a statement for each set of NULL columns, to use the index."""
        if not rows.num_rows:
            return
        self._check_keys(rows)
        self._copy(connection, _GONE, rows)
        tests = ", ".join(f"{quote_name(key)} IS NULL" for key in self._keys)
        for nulls in connection.execute(f"SELECT DISTINCT {tests} FROM {_GONE}").fetchall():
            same = " AND ".join(
                f"kept.{key} IS NULL AND gone.{key} IS NULL" if is_null else f"kept.{key} = gone.{key}"
                for key, is_null in zip(map(quote_name, self._keys), nulls, strict=True)
            )
            connection.execute(f"DELETE FROM {self._table} AS kept USING {_GONE} AS gone WHERE {same}")
        connection.execute(f"TRUNCATE {_GONE}")

    def _check_keys(self, rows: pa.Table) -> None:
        if self._takes_null_keys:
            return
        for key in self._keys:
            nulls = rows.filter(pc.is_null(rows[key]))
            if nulls.num_rows:
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"table {self.name}: the key column {key} is NULL, and the unique index over the keys takes NULLs "
                    f"as different. In PostgreSQL 15 or newer: CREATE UNIQUE INDEX ON {self._table} "
                    f"({self._name_list(self._keys)}) NULLS NOT DISTINCT, and drop the other one. Or replace NULL in "
                    "the query, for example with coalesce",
                    group=key_of_row(nulls, self._keys, 0),
                )

    def _copy(self, connection: psycopg.Connection[Any], table: str, rows: pa.Table) -> None:
        """Copy rows into a temporary table, whose columns have the types of the table."""
        import psycopg

        for field in rows.schema:
            if types.is_string(field.type) or types.is_large_string(field.type):
                zeros = rows.filter(pc.match_substring(rows[field.name], ZERO))
                if zeros.num_rows:
                    raise RejectedError(
                        "SCHEMA_MISMATCH",
                        f"table {self.name}: a text of the column {field.name} has the character U+0000, which "
                        "PostgreSQL cannot store; remove it in the query",
                        group=key_of_row(zeros, self._keys, 0),
                    )
        try:
            # Arrow's texts are UTF-8, whatever the encoding of the connection is.
            copy_statement = f"COPY {table} FROM STDIN (ENCODING 'UTF8')"
            with connection.cursor() as cursor, cursor.copy(copy_statement) as copy:
                copy.write(copy_text(rows, self._vectors))
        except psycopg.DataError as error:
            location = _LOCATION.search(error.diag.context or "")
            if location is None:
                raise
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"table {self.name} refuses a value"
                f"{f' of the column {location[2]}' if location[2] else ''}: {error.diag.message_primary}",
                group=key_of_row(rows, self._keys, int(location[1]) - 1),
            ) from error

    def _name_list(self, names: Sequence[str]) -> str:
        return ", ".join(map(quote_name, names))

    def _options(self) -> dict[str, Any]:
        """Return the parameters of the connection. An error does not show the URL, which may have a password."""
        psycopg = _psycopg()
        authority, _, path = self._url.partition("://")[2].partition("?")[0].partition("/")
        if authority.count("@") < 2 and "@" not in path:
            with suppress(psycopg.ProgrammingError):  # its text may have the password
                options: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self._url)
                return options
        raise RejectedError(
            "SETTINGS",
            f"table {self.name}: libpq cannot read the URL of the database, which is like postgresql://user:password@"
            "host/db?name=value. Write special characters of user and password as %XX, as urllib.parse.quote with "
            "safe='' does, and give only parameters of libpq. The URL is not shown, because it may have a password",
        )

    @contextmanager
    def _connect(self) -> Iterator[psycopg.Connection[Any]]:
        psycopg = _psycopg()
        options = self._options()
        try:
            connection = psycopg.connect(**{**_LOST_S, **options}, autocommit=True)
        except psycopg.OperationalError as error:
            raise self._not_connected(error, options) from error
        try:
            with connection:
                yield connection
        except psycopg.Error as error:
            if error.sqlstate.startswith(_LOST) if error.sqlstate else isinstance(error, psycopg.OperationalError):
                raise self._unreachable(error) from error
            details = [error.diag.message_primary or str(error), error.diag.message_detail, error.diag.message_hint]
            column = f", column {error.diag.column_name}" if error.diag.column_name else ""
            raise RejectedError(
                "SCHEMA_MISMATCH", f"table {self.name}{column}: {'; '.join(filter(None, details))}"
            ) from error

    def _not_connected(self, error: psycopg.OperationalError, options: dict[str, Any]) -> FoldflightError:
        """Return the error of a connection that was not made, without the password."""
        names = {each.keyword.decode(): each.val for each in _psycopg().pq.Conninfo.get_defaults()}
        user, base = (options.get(name) or (names[name] or b"").decode() for name in ("user", "dbname"))
        message, database = str(error), base or user
        # The message may be in any language, but pgconn tells whether the password was missing.
        if _NO_LOGIN.search(message) or (error.pgconn is not None and error.pgconn.needs_password):
            return RejectedError(
                "UNAUTHENTICATED",
                f"the database of table {self.name} does not let the user {user} into {database}: {message}. Correct "
                "user and password of the URL (with %XX), of ~/.pgpass or PGPASSWORD, or the user's rights",
            )
        if _NO_DATABASE.search(message):
            return RejectedError(
                "SETTINGS",
                f"table {self.name}: the user {user} cannot use the database {database}: {message}. Correct the name "
                "behind the host in the URL, or create the database",
            )
        if _NO_SETTING.search(message):
            return RejectedError(
                "SETTINGS",
                f"table {self.name}: a connection to the database is not possible with these settings: {message}. "
                "Correct the URL, or the variables PG... of libpq",
            )
        return self._unreachable(error)

    def _unreachable(self, error: psycopg.Error) -> RetryableError:
        return RetryableError("UNREACHABLE", f"the database of table {self.name} does not answer: {error}")


"""The one character that a text in PostgreSQL cannot have."""

_ESCAPED: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_LARGE: Final = pa.large_string()
# PostgreSQL's names of types without parameters, those that are created first.
_NAMES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp without time zone": pa.timestamp("us"),
    "interval": pa.duration("us"),
    "character varying": pa.string(),
    "character": pa.string(),
    "numeric": pa.decimal256(76, 38),
}


def postgres_type(type_: pa.DataType) -> str | None:
    """Return the type of a column that holds an Arrow type; None if PostgreSQL has none."""
    if types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if types.is_list(type_) or types.is_large_list(type_):
        inner = None if is_nested(type_.value_type) else postgres_type(type_.value_type)
        return None if inner is None else f"{inner}[]"
    if types.is_int8(type_):
        return "smallint"
    if types.is_timestamp(type_):
        return "timestamp with time zone" if type_.tz else "timestamp without time zone"
    plain = {types.is_large_string: pa.string(), types.is_large_binary: pa.binary()}
    small_type = next((small for is_large, small in plain.items() if is_large(type_)), type_)
    return next((name for name, arrow_type in _NAMES.items() if arrow_type == small_type), None)


def type_of(name: str) -> pa.DataType | str:
    """Return the Arrow type that a column of PostgreSQL holds, by the name in `format_type`; the name if none."""
    if name.endswith("[]"):
        inner = type_of(name.removesuffix("[]"))
        return name if isinstance(inner, str) else pa.list_(inner)
    if is_pgvector(name):
        return pa.list_(pa.float32())  # the database checks the length
    base, _, parameters = name.partition("(")
    if base == "numeric" and parameters:
        precision, scale = map(int, parameters.rstrip(")").split(","))
        return pa.decimal256(precision, scale) if 0 <= scale <= precision <= 76 else name
    # A bounded varchar is taken as a text: a value that is too long is an error with its key.
    return name if parameters and base != "character varying" else _NAMES.get(base, name)


def is_pgvector(name: str) -> bool:
    """Return whether a type, by its name in `format_type`, is the vector of pgvector."""
    return name.partition("(")[0].rpartition(".")[2] == "vector"


def copy_text(rows: pa.Table, vectors: Collection[str] = ()) -> memoryview | bytes:
    """Return rows as text for `COPY ... FROM STDIN`. A row is one line.

    Args:
        rows: The rows.
        vectors: The columns that are vectors of pgvector, whose text is JSON and not an array's.
    """
    if not rows.num_rows:
        return b""
    columns = [
        _each(column, _vector_text) if name in vectors else _texts(pc.cast(column, column.type))
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    lines = pc.binary_join_element_wise(
        *columns, pa.scalar("\t", _LARGE), null_handling="replace", null_replacement="\\N"
    )
    text_lines = pc.binary_join_element_wise(lines, pa.scalar("", _LARGE), pa.scalar("\n", _LARGE))
    text = pa.concat_arrays(text_lines.chunks) if isinstance(text_lines, pa.ChunkedArray) else text_lines
    data = text.buffers()[2]
    return b"" if data is None else memoryview(data)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = column.type
    if types.is_string(type_) or types.is_large_string(type_):
        return _escape(column.cast(_LARGE))
    if types.is_binary(type_) or types.is_large_binary(type_):
        return _each(column, _binary_text)
    if types.is_list(type_) or types.is_large_list(type_):
        return _escape(_each(column, _array_text))
    if types.is_duration(type_):
        amounts = column.cast(pa.duration("us")).cast(pa.int64()).cast(_LARGE)
        return pc.binary_join_element_wise(amounts, pa.scalar("us", _LARGE), pa.scalar("", _LARGE))
    return column.cast(_LARGE)


def _escape(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    for character, replacement in _ESCAPED.items():
        texts = pc.replace_substring(texts, character, replacement)
    return texts


def _each(column: pa.ChunkedArray, to_text: Callable[[Any], str]) -> pa.ChunkedArray:
    texts = [None if value is None else to_text(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, _LARGE)])


def _binary_text(value: bytes) -> str:
    return f"\\\\x{value.hex()}"


def _array_text(values: list[Any]) -> str:
    return "{" + ",".join("NULL" if value is None else _element(value) for value in values) + "}"


def _vector_text(values: list[Any]) -> str:
    return "[" + ",".join("NULL" if value is None else repr(value) for value in values) + "]"


def _element(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
