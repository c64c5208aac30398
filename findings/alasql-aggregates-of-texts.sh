#!/usr/bin/env bash
# AlaSQL: MAX of texts is NULL, AVG of '1' and '2' is 6, and 1 and '1' are one group.
#
# Guess: MAX of texts is the last of them, AVG adds numbers or is an error, and values of two types are two groups, as `=` has them.
# Seen with alasql 4.6.0: MAX and MIN of texts are null, AVG joins the texts to '12' and divides by 2, SUM is null. GROUP BY makes texts of
# its values, so 1 and '1' are one group, though WHERE x = 1 finds only the first. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund alasql@4.6.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import alasql from "alasql";

const rows = (query, xs) => alasql(query, [xs.map((x) => ({ x }))]);
const seen = [
  rows("SELECT MAX(x) AS r FROM ?", ["b", "a"]),
  rows("SELECT MIN(x) AS r FROM ?", ["b", "a"]),
  rows("SELECT AVG(x) AS r FROM ?", ["1", "2"]),
  rows("SELECT SUM(x) AS r FROM ?", ["1", "2"]),
  rows("SELECT x, COUNT(*) AS n FROM ? GROUP BY x", [1, "1"]),
  rows("SELECT x FROM ? WHERE x = 1", [1, "1"]),
];
console.log(seen);
assert.deepStrictEqual(seen, [[{ r: null }], [{ r: null }], [{ r: 6 }], [{ r: null }], [{ x: 1, n: 2 }], [{ x: 1 }]]);
JS
node main.mjs
