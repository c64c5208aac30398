#!/usr/bin/env bash
# Arrow in JavaScript: the null of an integer is 0 in `toArray()`, a missing property is NaN, and so is a text after a number.
#
# Guess: a value that is not there is null, whichever way it is read, and a table of objects takes a missing property for null.
# Seen with apache-arrow 21.2.0: `toArray` of numbers is the buffer, in which a null is 0; that of booleans, dates and texts has null. The
# vector's iterator has null for all. `tableFromJSON` makes null of null, NaN of a property that is missing, and of a text in a column that
# began with a number. Each mean of such a column is wrong or NaN. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund apache-arrow@21.2.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import { Int32, tableFromJSON, vectorFromArray } from "apache-arrow";

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const numbers = vectorFromArray([1, null, 5], new Int32());
console.log("1, null, 5:", [...numbers], "toArray", numbers.toArray(), "mean", mean([...numbers.toArray()]));
assert.deepStrictEqual([[...numbers], [...numbers.toArray()]], [[1, null, 5], [1, 0, 5]]);
assert.deepStrictEqual([...vectorFromArray([true, null]).toArray()], [true, null]);

const seen = [[{ x: 1 }, { x: null }], [{ x: 1 }, {}], [{ x: 1 }, { x: "a" }]].map((rows) => {
  const column = tableFromJSON(rows).getChild("x");
  console.log(JSON.stringify(rows), "is", [...column], "with", column.nullCount, "nulls");
  return [column.get(1), column.nullCount];
});
assert.deepStrictEqual(seen, [[null, 1], [NaN, 0], [NaN, 0]]);
JS
node main.mjs
