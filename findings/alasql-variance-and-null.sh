#!/usr/bin/env bash
# AlaSQL: VARP counts NULL as a value, and VAR of 1000000001, 1000000002, 1000000003 is 0.
#
# Guess: aggregates skip NULL, as AVG and VAR do, and VAR is computed by a stable way.
# Seen with alasql 4.6.0: VARP and STDEVP divide by the count of all rows, so VARP of 1, NULL, 2 is 2/3 instead of 1/4, while VAR is 1/2.
# VAR and STDEV come from the sum of squares, which has no digit left for a small spread of large values. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund alasql@4.6.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import alasql from "alasql";

const value = (call, xs) => alasql(`SELECT ${call} AS r FROM ?`, [xs.map((x) => ({ x }))])[0].r;
const large = [1e9 + 1, 1e9 + 2, 1e9 + 3];
const seen = {
  "AVG of 1, NULL, 2": value("AVG(x)", [1, null, 2]),
  "VAR of 1, NULL, 2": value("VAR(x)", [1, null, 2]),
  "VARP of 1, NULL, 2": value("VARP(x)", [1, null, 2]),
  "VARP of 1, 2": value("VARP(x)", [1, 2]),
  "VAR of large values": value("VAR(x)", large),
  "STDEV of large values": value("STDEV(x)", large),
  "VAR of small values": value("VAR(x)", [1, 2, 3]),
};
console.log(seen);
assert.deepStrictEqual(Object.values(seen).map((x) => Math.round(x * 1e6) / 1e6), [1.5, 0.5, 0.666667, 0.25, 0, 0, 1]);
JS
node main.mjs
