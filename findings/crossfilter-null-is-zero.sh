#!/usr/bin/env bash
# crossfilter: null, 0, false and "" are one key, and a filter for null finds them all.
#
# Guess: a filter for 0 finds 0 only, and null is a group of its own.
# Seen with crossfilter2 1.5.4: values are compared by `<` and `>`, so those that are neither less nor greater are equal: the group of null
# has the rows of 0, false and "" too, and which of them names it depends on the sort. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund crossfilter2@1.5.4
cat >main.mjs <<'JS'
import assert from "node:assert";
import crossfilter from "crossfilter2";

const dimension = crossfilter([{ x: null }, { x: 0 }, { x: "" }, { x: false }, { x: 1 }]).dimension((row) => row.x);
const groups = dimension.group().all().map((group) => group.value);
const found = [null, 0, 1].map((x) => dimension.filterExact(x).top(Infinity).length);
console.log("rows by group:", groups, "rows found for null, 0, 1:", found);
assert.deepStrictEqual([groups, found], [[4, 1], [4, 4, 1]]);
JS
node main.mjs
