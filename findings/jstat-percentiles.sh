#!/usr/bin/env bash
# jStat: the 99th percentile of 1, 2, 3, 100 is 3, their second quartile 2 and their median 2.5.
#
# Guess: `percentile`, `quartiles` and `median` are of one kind, and a percentile between the last two values is between them.
# Seen with jstat 1.9.6: `percentile` interpolates as spreadsheets do, but not between the last two values, where it takes the lower one.
# `quartiles` takes the values at the rounded quarters of the length; the first of one value is undefined. So a 99th percentile of up to a
# hundred values never shows the outlier. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund jstat@1.9.6
cat >main.mjs <<'JS'
import assert from "node:assert";
import jstat from "jstat";

const values = [1, 2, 3, 100];
const seen = {
  "percentiles 50, 60, 99, 100": [0.5, 0.6, 0.99, 1].map((p) => jstat.percentile(values, p)),
  quartiles: jstat.quartiles(values),
  median: jstat.median(values),
  "quartiles of 5": jstat.quartiles([5]),
};
console.log("of 1, 2, 3, 100:", seen);
assert.deepStrictEqual(Object.values(seen), [[2.5, 2.8, 3, 100], [1, 2, 3], 2.5, [undefined, 5, 5]]);
JS
node main.mjs
