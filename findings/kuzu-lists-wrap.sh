#!/usr/bin/env bash
# Kuzu: `sum` of two rows of 2^62 is 2^63, `list_sum` of a list of them -2^63, and the week of each date is 0.
#
# Guess: `list_sum` is `sum` over the elements of a list: exact, or an error where `+` is one; an IN with NULL follows SQL; NaN has one
# place in the order of numbers.
# Seen with Kuzu 0.11.3: `sum` of INT64 is an INT128; `list_sum` keeps the type and wraps around, two INT8 of 100 give -56, though
# 2^62 + 2^62 is an error. `date_part('week', ...)` is 0 for each date. NOT x IN [2, NULL] is true for 1, so it finds rows that SQL does
# not. The minimum of 1, NaN, 3 is 3, as is the maximum, since `<` with a NaN on either side is true; ORDER BY has NaN last, and each NaN
# is a group of its own.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet kuzu==0.11.3
"$folder/venv/bin/python" - <<'PYTHON'
import kuzu

connection = kuzu.Connection(kuzu.Database(":memory:"))


def rows(query):
    result, found = connection.execute(query), []
    while result.has_next():
        found.append(result.get_next())
    print(query, "->", found)
    return found


large, nan = 2**62, "cast('NaN', 'DOUBLE')"
assert rows(f"UNWIND [{large}, {large}] AS x RETURN sum(x)") == [[2**63]]
assert rows(f"RETURN list_sum([{large}, {large}])") == [[-(2**63)]]
assert rows("RETURN list_sum([cast(100, 'INT8'), cast(100, 'INT8')])") == [[-56]]
try:
    rows(f"RETURN {large} + {large}")
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("no error")
assert rows("UNWIND ['2024-01-01', '2024-06-03', '2020-12-31'] AS d RETURN date_part('week', date(d))") == [[0]] * 3
assert rows("UNWIND [1, 2] AS x WITH x WHERE NOT x IN [2, NULL] RETURN x") == [[1]]
assert rows(f"UNWIND [1.0, {nan}, 3.0] AS x RETURN min(x), max(x)") == [[3, 3]]
assert rows(f"RETURN 3.0 < {nan}, {nan} < 3.0, 3.0 > {nan}, {nan} > 3.0") == [[True, True, False, False]]
assert [str(x) for (x,) in rows(f"UNWIND [1.0, {nan}, 3.0] AS x RETURN x ORDER BY x")] == ["1.0", "3.0", "nan"]
assert len(rows(f"UNWIND [{nan}, {nan}] AS x RETURN x, count(*)")) == 2
PYTHON
