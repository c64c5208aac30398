"""Runs the functions of `flink_functions` in PyFlink; for the interpreter of PyFlink's environment.

It reads {"rows": [[id, k, value, weight, word], ...]} from standard input and prints one JSON line:
{"final": {k: [...]}, "updating": {k: [...]}}, the results of each key over all rows, and over the last row of each id.
"""

import json
import sys

from flink_functions import DistinctSum, ListViewConcat, Spread, WeightedAvg
from pyflink.common import Row, RowKind
from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
from pyflink.table.udf import udaf

SETTINGS = {
    "parallelism.default": "1",
    "rest.bind-address": "127.0.0.1",
    "rest.address": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1",
    "jobmanager.bind-host": "127.0.0.1",
    "taskmanager.memory.managed.size": "64mb",
}


def plain(value):
    return list(value) if isinstance(value, Row) else value


def results(table):
    """Return the last values of each key of both updating results."""
    result = {"final": {}, "updating": {}}
    with table.execute().collect() as changes:
        for change in changes:
            which, key, *values = change
            if change.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                result[which][key] = [plain(value) for value in values]
            elif change.get_row_kind() is RowKind.DELETE:
                del result[which][key]
    return result


def main():
    rows = json.load(sys.stdin)["rows"]
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in SETTINGS.items():
        tables.get_config().set(name, value)
    for name, function in [
        ("weighted_avg", WeightedAvg),
        ("list_concat", ListViewConcat),
        ("distinct_sum", DistinctSum),
        ("spread", Spread),
    ]:
        tables.create_temporary_function(name, udaf(function()))
    types = {"id": DataTypes.INT(), "k": DataTypes.STRING(), "v": DataTypes.BIGINT(), "w": DataTypes.INT()}
    types["word"] = DataTypes.STRING()
    schema = DataTypes.ROW([DataTypes.FIELD(name, type_) for name, type_ in types.items()])
    tables.create_temporary_view("source", tables.from_elements([tuple(row) for row in rows], schema))
    columns = "weighted_avg(v, w), distinct_sum(v), spread(v)"
    table = tables.sql_query(
        f"SELECT 'final', k, {columns}, list_concat(word, '-') FROM source GROUP BY k UNION ALL "
        f"SELECT 'updating', k, {columns}, CAST(NULL AS STRING) FROM "
        "(SELECT id, LAST_VALUE(k) AS k, LAST_VALUE(v) AS v, LAST_VALUE(w) AS w FROM source GROUP BY id) GROUP BY k"
    )
    print(json.dumps(results(table)), flush=True)


main()
