#!/usr/bin/env bash
# protobuf: reading a missing key of a map adds it to the message, and extending a list by nothing sets the message that has it.
#
# Guess: `message.counts["x"]` of a missing key is 0 or a KeyError; reading changes neither the length nor the bytes, as reading a missing
# sub-message does not.
# Seen with protobuf 7.36.2: the key is added with the value 0 and is written, so two equal states differ after one was looked into, and a
# state grows with each question. `get` and `in` do not add. `message.sub.list.extend([])` makes HasField("sub") true.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet protobuf==7.36.2
"$folder/venv/bin/python" - <<'PYTHON'
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
file = descriptor_pb2.FileDescriptorProto(name="state.proto", package="p", syntax="proto3")
state = file.message_type.add(name="State")
entry = state.nested_type.add(name="CountsEntry")
entry.options.map_entry = True
entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
entry.field.add(name="value", number=2, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
state.field.add(name="counts", number=1, type=Field.TYPE_MESSAGE, type_name=".p.State.CountsEntry", label=Field.LABEL_REPEATED)
state.field.add(name="values", number=2, type=Field.TYPE_INT64, label=Field.LABEL_REPEATED)
state.field.add(name="sub", number=3, type=Field.TYPE_MESSAGE, type_name=".p.State", label=Field.LABEL_OPTIONAL)
pool = descriptor_pool.DescriptorPool()
pool.AddSerializedFile(file.SerializeToString())
State = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.State"))

one, other = State(), State()
assert one.counts.get("x", 0) == 0 and "x" not in one.counts and one == other
print("value", one.counts["x"], "length", len(one.counts), "bytes", one.ByteSize(), "equal", one == other)
assert len(one.counts) == 1 and one.ByteSize() > 0 and one != other
assert other.sub.counts.get("x") in (None, 0) and not other.HasField("sub")
other.sub.values.extend([])
print("sub after extend([])", other.HasField("sub"))
assert other.HasField("sub")
PYTHON
