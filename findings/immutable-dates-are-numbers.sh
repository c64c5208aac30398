#!/usr/bin/env bash
# Immutable: a Date and the number of its milliseconds are one key of a Map and one element of a Set.
#
# Guess: keys of different types are different keys, as in JavaScript's own Map.
# Seen with immutable 5.1.4: `is` compares by `valueOf`, so a Date is equal to its number and a group of both is one. The maximum of a
# list with undefined is undefined, that with NaN is NaN, and the minimum of 1, null, 3 is null, where `sort` puts undefined last. (Needs
# node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund immutable@5.1.4
cat >main.mjs <<'JS'
import assert from "node:assert";
import { is, List, Map, Set } from "immutable";

const date = new Date(5);
const seen = [is(date, 5), Map([[date, "date"]]).get(5), Set([date, 5]).size, List([date, 5]).groupBy((x) => x).size];
const extremes = [List([1, undefined, 3]).max(), List([1, null, 3]).min(), List([3, NaN, 1]).max()];
console.log(seen, extremes, List([1, undefined, 3]).sort().last());
assert.deepStrictEqual(seen, [true, "date", 1, 1]);
assert.deepStrictEqual(extremes, [undefined, null, NaN]);
JS
node main.mjs
