#!/usr/bin/env bash
# @msgpack/msgpack: a Map and a Set become {}, and a Float64Array of one number eight bytes.
#
# Guess: a Map becomes a map, as MessagePack has one, a Set an array, and what cannot be written is an error.
# Seen with @msgpack/msgpack 3.1.2: objects are written by their own properties, of which Map and Set have none, without an error. A typed
# array comes back as its bytes. -0 comes back as 0, and undefined as null. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund @msgpack/msgpack@3.1.2
cat >main.mjs <<'JS'
import assert from "node:assert";
import { decode, encode } from "@msgpack/msgpack";

const seen = [new Map([["a", 1]]), new Set([1, 2]), new Float64Array([1]), { a: undefined }, -0].map((value) => {
  const read = decode(encode(value));
  console.log(value, "is read as", read);
  return read;
});
assert.deepStrictEqual(seen.slice(0, 2), [{}, {}]);
assert.strictEqual(seen[2].length, 8);
assert.deepStrictEqual(seen[3], { a: null });
assert.ok(Object.is(seen[4], 0));
JS
node main.mjs
