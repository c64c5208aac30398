#!/usr/bin/env bash
# bson in JavaScript: `EJSON.stringify` writes the Long 9007199254740993 as 9007199254740992, and -0 as 0.
#
# Guess: extended JSON is there to keep MongoDB's types, and digits of JSON are not limited, so a Long comes out as it is.
# Seen with bson 7.3.4: by default ("relaxed") a Long and a bigint are made JavaScript numbers before they are written, so
# 9223372036854775807 becomes 9223372036854776000, which is no Long any more. `EJSON.parse` of `$numberLong` rounds likewise. With `relaxed:
# false` both are right. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund bson@7.3.4
cat >main.mjs <<'JS'
import assert from "node:assert";
import { EJSON, Long } from "bson";

const document = { a: Long.fromString("9007199254740993"), b: Long.MAX_VALUE, c: 123456789012345678n };
const seen = [EJSON.stringify(document), EJSON.stringify(document, { relaxed: false }), EJSON.stringify({ x: -0 })];
console.log(seen);
assert.deepStrictEqual(seen, [
  '{"a":9007199254740992,"b":9223372036854776000,"c":123456789012345680}',
  '{"a":{"$numberLong":"9007199254740993"},"b":{"$numberLong":"9223372036854775807"},"c":{"$numberLong":"123456789012345678"}}',
  '{"x":0}',
]);
const written = '{"x":{"$numberLong":"9007199254740993"}}';
assert.strictEqual(EJSON.parse(written).x, 9007199254740992);
assert.strictEqual(String(EJSON.parse(written, { relaxed: false }).x), "9007199254740993");
JS
node main.mjs
