#!/usr/bin/env bash
# tidy.js: of 1, '5' and 3 the sum is 9, the median 3, and the mean 2.
#
# Guess: a summary takes a text for a number in all its functions, or in none.
# Seen with @tidyjs/tidy 2.6.1: `sum`, `median` and `variance` make numbers of texts, of true and of dates; `mean` leaves them out of its
# sum and its count. If all are texts, as in a CSV, the mean is undefined, the sum right, and the maximum of '10' and '9' is '9'. (Needs
# node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund @tidyjs/tidy@2.6.1
cat >main.mjs <<'JS'
import assert from "node:assert";
import { max, mean, median, sum, summarize, tidy } from "@tidyjs/tidy";

const functions = { sum: sum("x"), mean: mean("x"), median: median("x"), max: max("x") };
const seen = [[1, 5, 3], [1, "5", 3], ["10", "9"], [1, true, 3]].map((values) => {
  const [row] = tidy(values.map((x) => ({ x })), summarize(functions));
  console.log(values, row);
  return Object.values(row);
});
assert.deepStrictEqual(seen, [[9, 3, 3, 5], [9, 2, 3, "5"], [19, undefined, 9.5, "9"], [5, 2, 1, 3]]);
JS
node main.mjs
