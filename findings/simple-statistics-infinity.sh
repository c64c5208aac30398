#!/usr/bin/env bash
# simple-statistics: the sum of infinity and 1 is NaN, and the geometric mean of 1e200 and 1e200 is infinite.
#
# Guess: a sum with an infinity is infinite; geometric means are computed by logarithms.
# Seen with simple-statistics 7.12.1: `sum` compensates its rounding by infinity - infinity, so it is NaN, and so is `mean`; `sumSimple` is
# infinite. `geometricMean` multiplies: infinite for large values and 0 for small ones; `logAverage` is right. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund simple-statistics@7.12.1
cat >main.mjs <<'JS'
import assert from "node:assert";
import * as ss from "simple-statistics";

const seen = {
  "sum of infinity and 1": ss.sum([Infinity, 1]),
  "mean of 1 and infinity": ss.mean([1, Infinity]),
  "sumSimple of infinity and 1": ss.sumSimple([Infinity, 1]),
  "geometricMean of 1e200": ss.geometricMean([1e200, 1e200]),
  "geometricMean of 1e-200": ss.geometricMean([1e-200, 1e-200]),
};
console.log(seen, ss.logAverage([1e200, 1e200]));
assert.deepStrictEqual(Object.values(seen), [NaN, NaN, Infinity, Infinity, 0]);
assert(Math.abs(ss.logAverage([1e200, 1e200]) / 1e200 - 1) < 1e-9);
JS
node main.mjs
