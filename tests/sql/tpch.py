"""TPC-H's tables with a few random rows, in the value ranges that its queries select from."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

NATIONS = ["BRAZIL", "CANADA", "FRANCE", "GERMANY", "CHINA", "INDIA"]
REGIONS = ["AMERICA", "EUROPE", "ASIA"]

SCHEMAS = {
    "region": "r_regionkey bigint, r_name string",
    "nation": "n_nationkey bigint, n_name string, n_regionkey bigint",
    "supplier": "s_suppkey bigint, s_name string, s_address string, s_nationkey bigint, s_phone string, "
    "s_acctbal decimal(15,2), s_comment string",
    "customer": "c_custkey bigint, c_name string, c_address string, c_nationkey bigint, c_phone string, "
    "c_acctbal decimal(15,2), c_mktsegment string, c_comment string",
    "part": "p_partkey bigint, p_name string, p_mfgr string, p_brand string, p_type string, p_size int, "
    "p_container string",
    "partsupp": "ps_partkey bigint, ps_suppkey bigint, ps_availqty int, ps_supplycost decimal(15,2)",
    "orders": "o_orderkey bigint, o_custkey bigint, o_orderstatus string, o_totalprice decimal(15,2), o_orderdate date, "
    "o_orderpriority string, o_shippriority int, o_comment string",
    "lineitem": "l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_quantity decimal(15,2), "
    "l_extendedprice decimal(15,2), l_discount decimal(15,2), l_tax decimal(15,2), l_returnflag string, "
    "l_linestatus string, l_shipdate date, l_commitdate date, l_receiptdate date, l_shipmode string",
}


def tables(seed: int = 1) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table."""
    rng = random.Random(seed)

    def money(low: float, high: float) -> Decimal:
        return Decimal(f"{rng.uniform(low, high):.2f}")

    def day(first: int = 0, last: int = 4 * 365) -> dt.date:
        return dt.date(1993, 1, 1) + dt.timedelta(rng.randint(first, last))

    result: dict[str, list[tuple[Any, ...]]] = {
        "region": list(enumerate(REGIONS)),
        "nation": [(key, name, key // 2) for key, name in enumerate(NATIONS)],
        "supplier": [
            (key, f"Supplier {key}", f"street {key}", key % 6, f"{10 + key % 6}-1", money(-99, 999), "a comment")
            for key in range(12)
        ],
        "customer": [
            (key, f"Customer {key}", f"road {key}", key % 6, f"{rng.choice([13, 31, 23, 29])}-2", money(-99, 999),
             rng.choice(["BUILDING", "MACHINERY"]), "a comment")
            for key in range(40)
        ],
        "part": [
            (key, f"{rng.choice(['forest', 'green', 'a green'])} {key}", "a maker",
             rng.choice(["Brand#12", "Brand#23", "Brand#45"]), rng.choice(["ECONOMY BRASS", "PROMO TIN"]),
             rng.choice([3, 9, 14, 19, 23]), rng.choice(["MED BOX", "SM CASE"]))
            for key in range(30)
        ],
        "partsupp": [
            (part, supplier, rng.randint(1, 100), money(1, 100)) for part in range(30) for supplier in range(part % 3, 12, 3)
        ],
        "orders": [
            (key, rng.randrange(25), rng.choice("FOP"), money(100, 9999), day(), rng.choice(["1-URGENT", "2-HIGH", "5-LOW"]),
             0, rng.choice(["fine", "special requests"]))
            for key in range(150)
        ],
        "lineitem": [],
    }  # fmt: skip
    for order in result["orders"]:
        for _ in range(rng.randint(1, 5)):
            part = rng.randrange(30)
            ship = order[4] + dt.timedelta(rng.randint(1, 200))
            commit, receipt = ship + dt.timedelta(rng.randint(-20, 40)), ship + dt.timedelta(rng.randint(1, 30))
            result["lineitem"].append(
                (order[0], part, part % 3 + 3 * rng.randrange(4), Decimal(rng.randint(1, 50)), money(100, 9999),
                 Decimal(rng.randint(0, 10)) / 100, Decimal(rng.randint(0, 8)) / 100, rng.choice("ANR"), rng.choice("FO"),
                 ship, commit, receipt, rng.choice(["MAIL", "SHIP", "AIR"]))
            )  # fmt: skip
    return result
