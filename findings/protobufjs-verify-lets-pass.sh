#!/usr/bin/env bash
# protobufjs: `verify` lets 2^40 pass as an int32, which is written as 0, and 1e300 as a float, which is infinite.
#
# Guess: what `verify` finds valid, as its documentation has it be called before `encode`, is written as it is.
# Seen with protobufjs 8.8.1: it looks whether a number is an integer, and not at the range: integers are cut to their lower bits, so 2^31
# is negative, -1 as uint32 4294967295, and 1e300 as int64 is 0 by `encode` and 9223372036854775807 by `fromObject`. A field that is 0 then
# is not even there. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund protobufjs@8.8.1
cat >main.mjs <<'JS'
import assert from "node:assert";
import protobuf from "protobufjs";

const definition = 'syntax = "proto3"; message M { int32 i = 1; uint32 u = 2; float f = 3; int64 l = 4; }';
const message = protobuf.parse(definition).root.lookupType("M");
const read = (value) => message.toObject(message.decode(message.encode(value).finish()), { longs: String });
const seen = [{ i: 2 ** 40 }, { i: 2 ** 31 }, { u: -1 }, { f: 1e300 }, { l: 1e300 }].map((value) => {
  assert.strictEqual(message.verify(value), null);
  console.log(value, "is valid, and read as", read(value), "by fromObject", read(message.fromObject(value)));
  return [read(value), read(message.fromObject(value))];
});
assert.deepStrictEqual(seen.map(([encoded]) => encoded), [{}, { i: -(2 ** 31) }, { u: 2 ** 32 - 1 }, { f: Infinity }, {}]);
assert.deepStrictEqual(seen[4][1], { l: "9223372036854775807" });
assert.strictEqual(message.verify({ i: 1.7 }), "i: integer expected");
JS
node main.mjs
