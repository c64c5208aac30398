#!/usr/bin/env bash
# msgpackr and cbor-x: -0 comes back as 0, in msgpackr a Set as an array and a Float32Array as bytes.
#
# Guess: MessagePack and CBOR have 64-bit floats, so -0 is one, as NaN is; msgpackr keeps a Set as JavaScript's structured clone does.
# Seen with msgpackr 2.1.4 and cbor-x 1.6.9: a number that equals its integer part is written as an integer, which has no -0, so
# 1 / x changes its sign. Inside a Float64Array cbor-x keeps it. msgpackr writes sets without a mark, unless moreTypes is set.
# (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund msgpackr@2.1.4 cbor-x@1.6.9
cat >main.mjs <<'JS'
import assert from "node:assert";
import { decode, encode } from "cbor-x";
import { Packr, pack, unpack } from "msgpackr";

const more = new Packr({ moreTypes: true });
const seen = {
  "msgpackr: 1 / -0": 1 / unpack(pack(-0)),
  "cbor-x: 1 / -0": 1 / decode(encode(-0)),
  "cbor-x: 1 / -0 in a Float64Array": 1 / decode(encode(new Float64Array([-0])))[0],
  "msgpackr: a Set": unpack(pack(new Set([1]))).constructor.name,
  "msgpackr with moreTypes: a Set": more.unpack(more.pack(new Set([1]))).constructor.name,
  "msgpackr: a Float32Array": unpack(pack(new Float32Array([1.5]))).constructor.name,
  "cbor-x: a Set": decode(encode(new Set([1]))).constructor.name,
};
console.log(seen);
assert.deepStrictEqual(Object.values(seen), [Infinity, Infinity, -Infinity, "Array", "Set", "Buffer", "Set"]);
JS
node main.mjs
