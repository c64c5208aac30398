#!/usr/bin/env bash
# protobuf: the JSON number 9007199254740993.0 is read as the integer 9007199254740992.
#
# Guess: int64 is exact in JSON: it is written as a text for that reason, and a number that is no integer, or not exact, is refused.
# Seen with protobuf 7.36.2: 1.5 is refused, and 9007199254740993 is exact, but with ".0", as programs write whose numbers are all floats,
# it goes through a float and comes out one less. "1.0" as a text is taken as well. A Struct takes the integer 2^53 + 1 and has 2^53.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet protobuf==7.36.2
"$folder/venv/bin/python" - <<'PYTHON'
from google.protobuf import json_format, struct_pb2
from google.protobuf.wrappers_pb2 import Int64Value

for text, seen in (("9007199254740993", 2**53 + 1), ('"9007199254740993"', 2**53 + 1), ("9007199254740993.0", 2**53), ('"1.0"', 1)):
    value = json_format.Parse(text, Int64Value()).value
    print(text, "is", value)
    assert value == seen
try:
    json_format.Parse("1.5", Int64Value())
except json_format.ParseError as error:
    print("1.5:", error)
else:
    raise AssertionError("1.5 is taken")
struct = struct_pb2.Struct()
struct.update({"a": 2**53 + 1})
assert struct["a"] == 2**53 and json_format.MessageToJson(Int64Value(value=2**53 + 1)) == '"9007199254740993"'
PYTHON
