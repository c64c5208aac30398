#!/usr/bin/env bash
# avsc: a text is greater than another by `compare`, and less by `compareBuffers`.
#
# Guess: Avro has one order: texts are compared by their bytes in UTF-8, and NaN has one place, so both functions sort alike.
# Seen with avsc 5.7.9: `compare` of strings is JavaScript's, by UTF-16: U+FFFF is greater than U+10000, and less in the encoded form.
# Of doubles, both NaN > 1 and 1 > NaN, so a sort depends on the order of its input. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund avsc@5.7.9
cat >main.mjs <<'JS'
import assert from "node:assert";
import avro from "avsc";

const [text, double] = ["string", "double"].map((name) => avro.Type.forSchema(name));
const both = (type, a, b) => [type.compare(a, b), type.compareBuffers(type.toBuffer(a), type.toBuffer(b))];
const seen = {
  "U+FFFF and U+10000": both(text, "\uffff", "\u{10000}"),
  "a and b": both(text, "a", "b"),
  "NaN and 1": both(double, NaN, 1),
  "1 and NaN": both(double, 1, NaN),
};
console.log(seen);
assert.deepStrictEqual(Object.values(seen), [[1, -1], [-1, -1], [1, 1], [1, 1]]);
JS
node main.mjs
