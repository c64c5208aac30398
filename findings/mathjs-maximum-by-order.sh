#!/usr/bin/env bash
# Math.js: the maximum of two times in microseconds is the first of them, and `sort` leaves them as they are.
#
# Guess: comparisons of plain numbers are exact, or not, but `max`, `min`, `sort` and `median` of them are those of JavaScript.
# Seen with mathjs 15.2.0: numbers that differ by less than 10^-12 of them are equal, for times of today in microseconds 1.7 milliseconds.
# So `max(t, t + 1000)` is t, `min(t + 1000, t)` is t + 1000, and the `mode` of three different times is all of them. `floor` of
# 2.9999999999999 is 3. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund mathjs@15.2.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import * as math from "mathjs";

const time = 1_750_000_000_000_000;
const since = (value) => (Array.isArray(value) ? value.map((x) => x - time) : value - time);
const seen = {
  "max(t, t + 1000)": since(math.max(time, time + 1000)),
  "max(t + 1000, t)": since(math.max(time + 1000, time)),
  "min(t + 1000, t)": since(math.min(time + 1000, time)),
  "sort(t + 1000, t, t + 500)": since(math.sort([time + 1000, time, time + 500])),
  "max(t, t + 2000)": since(math.max(time, time + 2000)),
};
console.log("microseconds since t:", seen);
assert.deepStrictEqual(Object.values(seen), [0, 1000, 1000, [1000, 0, 500], 2000]);
assert.strictEqual(math.floor(2.9999999999999), 3);
JS
node main.mjs
