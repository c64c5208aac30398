#!/usr/bin/env bash
# Databend: of one row the sample covariance is infinite and the sample deviation is 0.
#
# Guess: both are NULL, as in PostgreSQL, DuckDB and Snowflake, or both NaN: they divide by n - 1, which is 0.
# Seen with databend 1.2.453: `covar_samp` is inf for any row, also by group, `stddev_samp` and `stddev` are 0. So an average of the groups'
# covariances is infinite because of one small group, and a group of one looks like one without deviation. Over no rows they are NULL.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet databend==1.2.453 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import math
import os
import tempfile

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    from databend import SessionContext

    session = SessionContext()

    def ask(sql):
        return [tuple(row.values()) for row in session.sql(sql).to_arrow_table().to_pylist()]

    sql = "select k, covar_samp(x, x), stddev_samp(x), stddev(x) from (values ('one', 1), ('two', 2), ('two', 4)) t(k, x)"
    groups = ask(sql + " group by k order by k")
    print(groups, "no rows", ask(sql.replace("k, ", "", 1) + " where x > 5"))
    os.chdir("/")
assert groups[0] == ("one", math.inf, 0, 0)
assert groups[1][1] == 2 and abs(groups[1][2] - math.sqrt(2)) < 1e-9
PYTHON
