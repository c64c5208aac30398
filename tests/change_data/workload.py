"""What happens in the database: rows before the connectors start, then phases of statements."""

from __future__ import annotations

from typing import Final

KINDS: Final = """INSERT INTO inv.kinds (
    c_small, c_int, c_big, c_num, c_num38, c_numint, c_numfree, c_real, c_double, c_money, c_bool, c_text, c_varchar,
    c_char, c_bytea, c_date, c_time, c_time3, c_timetz, c_ts, c_ts0, c_ts3, c_tstz, c_interval, c_uuid, c_json, c_jsonb,
    c_ints, c_texts, c_nums, c_tss, c_dates, c_enum, c_hstore, c_inet, c_cidr, c_mac, c_range, c_tsrange, c_daterange,
    c_bit1, c_bit8, c_varbit, c_xml, c_point, c_citext, c_ltree, c_oid, c_tsv
) VALUES """
PLAIN: Final = """(1, 100, 9007199254740993, 12.34, 1234567890123456789.0123456789, 42, 1.50, 1.1, 2.5, '12.34', true,
    'plain', 'vary', 'ab', '\\x00ff10', '2025-01-31', '10:11:12.123456', '10:11:12.345', '10:11:12.5+02',
    '2025-01-31 10:11:12.123456', '2025-01-31 10:11:12', '2025-01-31 10:11:12.345', '2025-01-31 10:11:12.123456+02',
    '1 day 02:03:04.5', '00000000-0000-4000-8000-000000000001', '{"a": 1}', '{"a": [1, 2]}', '{1,NULL,3}', '{x,"y z"}',
    '{1.10,2.20}', '{"2025-01-31 10:11:12.5"}', '{2025-01-31}', 'mid', 'k=>v, n=>NULL', '10.0.0.1/24', '10.0.0.0/8',
    '08:00:2b:01:02:03', '[1,5)', '["2025-01-01 00:00:00","2025-01-02 00:00:00")', '[2025-01-01,2025-02-01)',
    B'1', B'10000001', B'101', '<r/>', '(1.5,2.5)', 'MiXed', 'top.sub', 16384, to_tsvector('simple', 'one two'))"""
EDGES: Final = """(-32768, -2147483648, -9223372036854775808, -26588.24, -0.0000000001, -1, -0.001, 'NaN', 'Infinity',
    '-0.01', false, '', '', '', '', '1969-12-31', '23:59:59.999999', '00:00:00', '23:59:59-12',
    '1969-12-31 23:59:59.999999',
    '1900-01-01 00:00:00', '9999-12-31 23:59:59.999', '1969-12-31 23:59:59.999999+00', '-1 mons',
    '00000000-0000-4000-8000-000000000002', 'null', '"t"', '{}', '{NULL}', '{NULL,-0.01}', '{}', '{NULL}', 'low', '',
    '::1', '::/0', '00:00:00:00:00:01', 'empty', '(,)', 'empty', B'0', B'00000000', B'', '<r>é</r>', '(0,0)', 'ÉÑ', 'a',
    0, '')"""
OTHERS: Final = """(2, 200, 300, 0.05, 0.0000000001, 999999999999, 123456789012345678901234567890.123, 3.14159, 1e-300,
    '1000.00', true, E'line\\n"q" ü', 'vary2', 'abcdef', '\\x01', '2024-02-29', '12:00:00', '12:00:00.001',
    '00:00:00+00',
    '2025-06-30 12:00:00', '2025-06-30 12:00:00', '2025-06-30 12:00:00.5', '2025-06-30 12:00:00+00', '3 days',
    '00000000-0000-4000-8000-000000000003', '[1]', '1', '{1}', '{}', '{5.00}', '{"2025-01-31 00:00:00",NULL}',
    '{1970-01-01}', 'high', 'a=>1', '192.168.0.1', '192.168.0.0/16', 'ff:ff:ff:ff:ff:ff', '(0,9]',
    '[2025-01-01,2025-06-01]', '[2025-01-01,)', B'1', B'11111111', B'11110000111100001111', '<a>b</a>', '(-1,1)', 'x',
    'a.b.c', 4294967295, '''z''')"""
NOTHING: Final = f"({', '.join(['NULL'] * 49)})"
LARGE: Final = "repeat('abcdefghij', 1000)"  # 10 kB, which PostgreSQL stores out of line
ORDERS: Final = "(id, customer, amount, qty, price, ordered, paid, due, note) VALUES "


def both(statements: list[str], *tables: str) -> list[str]:
    """Return statements for each table."""
    return [statement.replace("TABLE", f"inv.{table}") for table in tables for statement in statements]


BEFORE: Final[list[str]] = [
    KINDS + PLAIN,
    KINDS + NOTHING,
    *both(
        [
            f"""INSERT INTO TABLE {ORDERS}
            (1, 'north', 10.00, 1, 1.5, '2025-01-31 10:00:00', '2025-01-31 10:00:00+00', '2025-02-28', 'a'),
            (2, 'north', 20.50, 2, 2.5, '2025-02-01 10:00:00', NULL, NULL, NULL),
            (3, 'south', -26588.24, 3, 3.5, '2025-02-02 10:00:00', '2025-02-03 00:00:00+00', '2025-03-01', '')"""
        ],
        "orders",
        "orders_key",
    ),
    *both(
        ["INSERT INTO TABLE VALUES (1, 1, 'nut', 5, 50), (1, 2, 'bolt', 6, NULL), (2, 1, 'nut', 7, 70)"],
        "lines",
        "lines_full",
    ),
    *both(
        [
            f"INSERT INTO TABLE VALUES (1, 'north', 10, {LARGE}, decode({LARGE}, 'escape'))",
            "INSERT INTO TABLE VALUES (2, 'south', 20, 'short', '\\x01')",
        ],
        "docs_full",
        "docs_key",
    ),
    "INSERT INTO inv.nokey VALUES ('north', 1), ('north', 1), ('south', 2)",
    "INSERT INTO inv.emptied VALUES (1, 10), (2, 20)",
    "INSERT INTO inv.evolving VALUES (1, 'north', 10), (2, 'south', 20)",
]
_LINE = "order_id = 3"
PHASES: Final[list[list[str | list[str]]]] = [
    [
        *(KINDS + row for row in (EDGES, OTHERS, OTHERS)),
        *both(
            [
                f"""INSERT INTO TABLE {ORDERS}
                (4, 'east', 7.25, 1, NULL, '2025-02-04 00:00:00.000001', '2025-02-04 01:02:03.000004+00',
                '2025-01-01', 'x')
                """,
                "UPDATE TABLE SET amount = 11.00 WHERE id = 1",
                "UPDATE TABLE SET customer = 'south', qty = 5 WHERE id = 2",
            ],
            "orders",
            "orders_key",
        ),
        *both(
            [
                "UPDATE TABLE SET qty = 8 WHERE order_id = 1 AND line_no = 1",
                "UPDATE TABLE SET line_no = 9 WHERE order_id = 1 AND line_no = 2",
                "DELETE FROM TABLE WHERE order_id = 2",
            ],
            "lines",
            "lines_full",
        ),
        "UPDATE inv.nokey SET amount = 5 WHERE customer = 'north'",
        "INSERT INTO inv.evolving VALUES (3, 'north', 30)",
    ],
    [
        "UPDATE inv.kinds SET c_num = 99.99, c_ts = '2025-07-01 00:00:00.5', c_text = 'new' WHERE id = 1",
        "UPDATE inv.kinds SET c_int = 7 WHERE id = 2",
        "DELETE FROM inv.kinds WHERE id = 5",
        *both(["UPDATE TABLE SET id = 40 WHERE id = 4", "DELETE FROM TABLE WHERE id = 3"], "orders", "orders_key"),
        *(
            both(
                [
                    "INSERT INTO TABLE VALUES (3, 1, 'cap', 1, 10)",
                    f"UPDATE TABLE SET qty = 2 WHERE {_LINE}",
                    f"DELETE FROM TABLE WHERE {_LINE}",
                    "INSERT INTO TABLE VALUES (3, 1, 'cap', 4, 40)",
                ],
                table,
            )
            for table in ("lines", "lines_full")
        ),
        *both(
            [
                "UPDATE TABLE SET size = 11 WHERE id = 1",
                "UPDATE TABLE SET owner = 'east', body = 'now short' WHERE id = 1",
                f"INSERT INTO TABLE VALUES (3, 'east', 30, {LARGE}, NULL)",
                "UPDATE TABLE SET size = 31 WHERE id = 3",
            ],
            "docs_full",
            "docs_key",
        ),
        "DELETE FROM inv.nokey WHERE customer = 'south'",
        "ALTER TABLE inv.evolving ADD COLUMN tax INT",
        "INSERT INTO inv.evolving VALUES (4, 'east', 40, 4)",
        "UPDATE inv.evolving SET amount = 11 WHERE id = 1",
        "ALTER TABLE inv.evolving ALTER COLUMN amount TYPE numeric(12, 2)",
        "UPDATE inv.evolving SET amount = 13.5 WHERE id = 1",
        "DELETE FROM inv.evolving WHERE id = 3",
        "SELECT pg_logical_emit_message(true, 'note', 'hello')",
    ],
    [
        "DELETE FROM inv.kinds WHERE id = 2",
        *both(["DELETE FROM TABLE WHERE customer = 'south'"], "orders", "orders_key"),
        *both(["DELETE FROM TABLE WHERE id = 1"], "docs_full", "docs_key"),
        "INSERT INTO inv.nokey VALUES ('north', 5), ('west', NULL)",
        "INSERT INTO inv.emptied VALUES (3, 30)",
        "TRUNCATE inv.emptied",
        "INSERT INTO inv.emptied VALUES (4, 40)",
        "ALTER TABLE inv.evolving RENAME COLUMN customer TO client",
        "UPDATE inv.evolving SET amount = 14.5 WHERE id = 1",
    ],
]
