#!/usr/bin/env bash
# protobuf: messages with NaN are equal, messages with 0.0 and -0.0 are not, and -0.0 is no default value.
#
# Guess: `a == b` compares fields as Python does, so NaN differs from itself and the zeros are equal; a double that equals its default, 0,
# is not written (proto3), so -0.0 comes back as 0.0.
# Seen with protobuf 7.36.2: -0.0 is written and comes back as -0.0, and a message with it has a length where one with 0.0 has none. Messages
# are compared by their bits, so two results that differ in the sign of a zero are different messages with equal fields. A float that is too large
# for 32 bits becomes infinite when it is set; JSON refuses the same number.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet protobuf==7.36.2
"$folder/venv/bin/python" - <<'PYTHON'
from google.protobuf import json_format
from google.protobuf.wrappers_pb2 import DoubleValue, FloatValue

zero, negative, nan = DoubleValue(value=0.0), DoubleValue(value=-0.0), DoubleValue(value=float("nan"))
print("0.0 == -0.0:", zero == negative, "of messages,", zero.value == negative.value, "of fields")
print("NaN == NaN:", nan == DoubleValue(value=float("nan")), "of messages")
print("bytes of 0.0 and -0.0:", zero.SerializeToString(), negative.SerializeToString())
assert zero != negative and zero.value == negative.value
assert nan == DoubleValue(value=float("nan"))
assert zero.SerializeToString() == b"" and len(negative.SerializeToString()) == 9
assert str(DoubleValue.FromString(negative.SerializeToString()).value) == "-0.0"
large = FloatValue(value=1e39)
print("1e39 as float:", large.value)
assert large.value == float("inf")
try:
    json_format.Parse("1e39", FloatValue())
except json_format.ParseError as error:
    print("JSON:", error)
else:
    raise SystemExit("JSON does not refuse it any more")
PYTHON
