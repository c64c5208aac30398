#!/usr/bin/env bash
# Arrow in JavaScript: as Float16, 1e-8 is -Infinity, and 1e-10 is 0.00005.
#
# Guess: a number too small for the type is 0, or the smallest number, as with NumPy, Arrow in Python and C.
# Seen with apache-arrow 21.2.0: the conversion shifts the digits by the exponent, and below 2^-25 the shift wraps around. Embeddings and
# weights have such numbers, and one of them makes each sum and each product infinite. Other numbers are rounded up to the next: 65519,
# which is nearer to 65504, is 65504, and 3e-8 is 6e-8. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund apache-arrow@21.2.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import { Float16, vectorFromArray } from "apache-arrow";

const values = [1.5, 6e-8, 1e-8, -1e-8, 1e-10, 0];
const seen = [...vectorFromArray(values, new Float16())];
values.forEach((value, i) => console.log(`${value} as Float16: ${seen[i]}`));
assert.deepStrictEqual(seen.slice(2, 4), [-Infinity, -Infinity]);
assert.ok(seen[0] === 1.5 && Math.abs(seen[1] - 6e-8) < 1e-9 && seen[5] === 0);
assert.ok(seen[4] > 5e-5 && seen[4] < 6e-5);
JS
node main.mjs
