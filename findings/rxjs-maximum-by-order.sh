#!/usr/bin/env bash
# RxJS: the maximum of 3, NaN, 1, 2 is 2, and `windowCount(2)` of four values has a third window, which is empty.
#
# Guess: the maximum is 3 or NaN, and four values are two windows of two.
# Seen with rxjs 7.8.2: `max` keeps the last value once a comparison with NaN failed, so what was before the NaN is forgotten.
# `windowCount` opens the next window when one is full, `bufferCount` does not; a count or a mean for each window therefore has one more
# row, of no values, whenever the length is a multiple. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund rxjs@7.8.2
cat >main.mjs <<'JS'
import assert from "node:assert";
import { bufferCount, from, lastValueFrom, max, mergeMap, min, toArray, windowCount } from "rxjs";

const collect = (...steps) => lastValueFrom(from([1, 2, 3, 4]).pipe(...steps, toArray()));
const seen = [
  await lastValueFrom(from([3, NaN, 1, 2]).pipe(max())),
  await lastValueFrom(from([1, NaN, 3, 2]).pipe(min())),
  await collect(windowCount(2), mergeMap((window) => window.pipe(toArray()))),
  await collect(bufferCount(2)),
];
console.log(JSON.stringify(seen));
assert.deepStrictEqual(seen, [2, 2, [[1, 2], [3, 4], []], [[1, 2], [3, 4]]]);
JS
node main.mjs
