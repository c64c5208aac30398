#!/usr/bin/env bash
# protobuf: a merge joins the lists of two sub-messages, and replaces the list if the sub-message is a value of a map.
#
# Guess: `MergeFrom` is recursive: where both messages have a sub-message of the same name or key, their lists are concatenated.
# Seen with protobuf 7.36.2: the value of a map is replaced as a whole, so of the partial states {"a": [1]} and {"a": [2]} only [2] is left,
# also by parsing both one after the other. A value 0 replaces that of a map, too, but not that of a field. Partial states by key must be
# merged one by one.
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
entry = state.nested_type.add(name="KeysEntry")
entry.options.map_entry = True
entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, type_name=".p.State", label=Field.LABEL_OPTIONAL)
state.field.add(name="keys", number=1, type=Field.TYPE_MESSAGE, type_name=".p.State.KeysEntry", label=Field.LABEL_REPEATED)
state.field.add(name="values", number=2, type=Field.TYPE_INT64, label=Field.LABEL_REPEATED)
state.field.add(name="sub", number=3, type=Field.TYPE_MESSAGE, type_name=".p.State", label=Field.LABEL_OPTIONAL)
state.field.add(name="count", number=4, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
pool = descriptor_pool.DescriptorPool()
pool.AddSerializedFile(file.SerializeToString())
State = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.State"))


def part(value, count):
    leaf = State(values=[value], count=count)
    return State(sub=leaf, keys={"a": leaf})


merged = part(1, 5)
merged.MergeFrom(part(2, 0))
parsed = State.FromString(part(1, 5).SerializeToString() + part(2, 0).SerializeToString())
for message in (merged, parsed):
    print("field", list(message.sub.values), message.sub.count, "map", list(message.keys["a"].values), message.keys["a"].count)
    assert list(message.sub.values) == [1, 2] and message.sub.count == 5
    assert list(message.keys["a"].values) == [2] and message.keys["a"].count == 0
PYTHON
