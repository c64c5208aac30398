#!/usr/bin/env bash
# pg-mem: COUNT(x) FILTER (WHERE x > 1) counts all rows, NULL AND FALSE is NULL, and NULL NOT IN (1) is true.
#
# Guess: what the PostgreSQL in memory accepts, it computes as PostgreSQL; what it lacks is an error.
# Seen with pg-mem 3.0.5: FILTER is parsed and dropped. A sum over a count of integers is 1.5, where PostgreSQL has 1; a sum of BIGINT is
# a float; 70000 is a SMALLINT; and a month after 31 January is 1 March. A test against it passes for a query that is wrong, and the
# reverse. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund pg-mem@3.0.5
cat >main.mjs <<'JS'
import assert from "node:assert";
import { newDb } from "pg-mem";

const database = newDb();
const expected = {
  "SELECT COUNT(x) FILTER (WHERE x > 1) AS v FROM (VALUES (1), (2)) t(x)": 2,
  "SELECT NULL AND FALSE AS v": null,
  "SELECT COUNT(*) AS v FROM (VALUES (NULL), (1)) t(x) WHERE x NOT IN (1)": 1,
  "SELECT SUM(x) / COUNT(x) AS v FROM (VALUES (1), (2)) t(x)": 1.5,
  "SELECT SUM(x::bigint) AS v FROM (VALUES (9007199254740993), (0)) t(x)": 9007199254740992,
  "SELECT 70000::smallint AS v": 70000,
};
for (const [query, value] of Object.entries(expected)) {
  const [row] = database.public.many(query);
  console.log(`${query}: ${row.v}`);
  assert.strictEqual(row.v, value);
}
const [{ day }] = database.public.many("SELECT '2024-01-31'::date + interval '1 month' AS day");
console.log(day);
assert.strictEqual(day.toISOString().slice(0, 7), "2024-03");
JS
node main.mjs
