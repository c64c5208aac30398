#!/usr/bin/env bash
# Lodash: the mean of 2 and undefined is 1, and that of '10' and '20' is 510.
#
# Guess: a missing value is skipped by both sum and count, or makes the mean NaN; texts are added as numbers, or are an error.
# Seen with lodash 4.18.1: `sum` skips undefined and `mean` divides by the length, so rows without a field pull `meanBy` toward 0. Texts are
# joined: '1020' / 2 is 510. The sum of nothing but missing values is undefined. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund lodash@4.18.1
cat >main.mjs <<'JS'
import assert from "node:assert";
import _ from "lodash";

const seen = {
  "sum of 2 and undefined": _.sum([2, undefined]),
  "mean of 2 and undefined": _.mean([2, undefined]),
  "meanBy with a field missing": _.meanBy([{ a: 1 }, {}], "a"),
  "mean of '10' and '20'": _.mean(["10", "20"]),
  "sumBy of a field that is missing everywhere": _.sumBy([{}, {}], "a"),
};
console.log(seen);
assert.deepStrictEqual(Object.values(seen), [2, 1, 0.5, 510, undefined]);
JS
node main.mjs
