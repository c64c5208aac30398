#!/usr/bin/env bash
# Arrow in JavaScript: the decimal 1.50 of scale 2 is 150, as a number, as a text and in JSON.
#
# Guess: a value of a decimal column knows its scale, or is not converted to a number.
# Seen with apache-arrow 21.2.0: the value is a big integer of the bytes, and nothing applies the scale, which is in the type only. In JSON
# it is even a text in quotes within a text. Sums of amounts from a file or from Flight are a hundred times too large. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund apache-arrow@21.2.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import { Decimal, makeData, makeVector, Table, tableFromIPC, tableToIPC } from "apache-arrow";

const column = makeVector(makeData({ type: new Decimal(2, 10, 128), data: new Uint32Array([150, 0, 0, 0]) }));
const table = tableFromIPC(tableToIPC(new Table({ amount: column })));
const amount = table.getChild("amount").get(0);
const seen = [Number(amount), String(amount), amount > 2, JSON.stringify(table.get(0))];
console.log(`1.50 as ${table.schema.fields[0].type} with scale ${table.schema.fields[0].type.scale}:`, seen);
assert.deepStrictEqual(seen, [150, "150", true, '{"amount":"\\"150\\""}']);
JS
node main.mjs
