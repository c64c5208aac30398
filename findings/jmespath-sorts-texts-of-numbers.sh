#!/usr/bin/env bash
# jmespath.js: `sort` of 1, 10, 9 is 1, 10, 9, and `sort_by` and `max` take numbers for numbers.
#
# Guess: JMESPath sorts numbers as numbers in all its functions.
# Seen with jmespath 0.16.0: `sort` of an array of numbers compares their texts, so 10 is before 9. `sort_by` and `max` are right, so
# `sort(x)[-1]` is not `max(x)`. `reverse` of a text takes the halves of a character beyond U+FFFF apart. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund jmespath@0.16.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import jmespath from "jmespath";

const data = { x: [1, 10, 9], rows: [{ x: 1 }, { x: 10 }, { x: 9 }] };
const seen = ["sort(x)", "sort(x)[-1]", "max(x)", "sort_by(rows, &x)[].x", "reverse('a😀')"].map((query) => {
  const result = jmespath.search(data, query);
  console.log(`${query}: ${JSON.stringify(result)}`);
  return result;
});
assert.deepStrictEqual(seen, [[1, 10, 9], 9, 10, [1, 9, 10], "\ude00\ud83da"]);
JS
node main.mjs
