#!/usr/bin/env bash
# mingo: of 3, NaN and 1 the maximum is 1 and the minimum 3, and `$sort` leaves 3 before 1.
#
# Guess: MongoDB's aggregation in JavaScript gives MongoDB's results: NaN is the least number, and each sum with it is NaN.
# Seen with mingo 7.2.7: NaN is neither less nor greater than a number, so what comes after it replaces what was before it, and a sort of
# values with a NaN depends on their order; `$sort` with `$limit` returns others than the largest. `$sum` and `$avg` skip a NaN. (Needs node
# and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund mingo@7.2.7
cat >main.mjs <<'JS'
import assert from "node:assert";
import { Aggregator } from "mingo";

const run = (values, ...stages) => new Aggregator(stages).run(values.map((x) => ({ x })));
const sorted = (values) => run(values, { $sort: { x: 1 } }).map(({ x }) => x);
const group = { $group: { _id: null, sum: { $sum: "$x" }, average: { $avg: "$x" }, least: { $min: "$x" }, most: { $max: "$x" } } };
const seen = {
  "1, 3 in a group": run([1, 3], group),
  "3, NaN, 1 in a group": run([3, NaN, 1], group),
  "3, 1, 2 sorted": sorted([3, 1, 2]),
  "3, NaN, 1, 2 sorted": sorted([3, NaN, 1, 2]),
};
console.log(seen);
assert.deepStrictEqual(Object.values(seen), [
  [{ _id: null, sum: 4, average: 2, least: 1, most: 3 }],
  [{ _id: null, sum: 4, average: 2, least: 3, most: 1 }],
  [1, 2, 3],
  [3, NaN, 1, 2],
]);
JS
node main.mjs
