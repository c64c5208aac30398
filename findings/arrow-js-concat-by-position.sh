#!/usr/bin/env bash
# Arrow in JavaScript: `concat` of tables with the columns x, y and y, x puts y under x.
#
# Guess: columns are united by their names, as in Python, or another order is an error, and so are other types.
# Seen with apache-arrow 21.2.0: the columns of the second table come under those of the first by their position. 1.5 of Float64 under Int32
# is still 1.5 in memory, and 0 after the table was written and read. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund apache-arrow@21.2.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import { Int32, Table, tableFromArrays, tableFromIPC, tableToIPC, vectorFromArray } from "apache-arrow";

const column = (x) => vectorFromArray([x], new Int32());
const first = new Table({ x: column(1), y: column(10) });
const second = new Table({ y: column(20), x: column(2) });
const united = first.concat(second).toArray().map((row) => row.toJSON());
console.log("x, y and y, x:", united);
assert.deepStrictEqual(united, [{ x: 1, y: 10 }, { x: 20, y: 2 }]);

const mixed = tableFromArrays({ x: Int32Array.of(1) }).concat(tableFromArrays({ x: Float64Array.of(1.5) }));
const seen = [mixed, tableFromIPC(tableToIPC(mixed))].map((table) => [...table.getChild("x")]);
console.log("Int32 and Float64, in memory and read again:", seen);
assert.deepStrictEqual(seen, [[1, 1.5], [1, 0]]);
JS
node main.mjs
