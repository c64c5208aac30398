#!/usr/bin/env bash
# json-bigint: 1234567890.1234567 is an error with native BigInts, and without them 1.1234567890123456 + 1 is a text.
#
# Guess: it changes integers that a number cannot hold, and leaves fractions alone.
# Seen with json-bigint 1.0.0: each number of more than 15 characters is taken for a big integer, with its point, sign and exponent. With
# `useNativeBigInt` BigInt refuses a fraction; without it a fraction becomes a BigNumber, which `+` joins as a text. So whether JSON is
# read depends on how many digits a double happens to be written with. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund json-bigint@1.0.0
cat >main.mjs <<'JS'
import assert from "node:assert";
import JSONbig from "json-bigint";

const native = JSONbig({ useNativeBigInt: true });
assert.throws(() => native.parse('{"x": 1234567890.1234567}'), /to a BigInt/);
const seen = [native.parse('{"x": 0.1}').x, JSONbig.parse('{"x": 0.1}').x + 1, JSONbig.parse('{"x": 1.1234567890123456}').x + 1];
console.log(seen);
assert.deepStrictEqual(seen, [0.1, 1.1, "1.12345678901234561"]);
JS
node main.mjs
