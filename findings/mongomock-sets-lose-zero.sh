#!/usr/bin/env bash
# mongomock: the $addToSet of 0 and 5 is [None, 5], and $sum counts True as 1.
#
# Guess: a mock of MongoDB in Python may lack operators, but those that it has are MongoDB's: $addToSet has each value once, $sum and $avg
# leave out what is no number, booleans among it, and $max compares values of several types by MongoDB's order of types.
# Seen with mongomock 4.3.0: $addToSet puts None in the place of what is false in Python, 0, "" and False, so 0 and "" are one element.
# $sum of True and 2 is 3, their $avg 1.5, and True and 1 are one group and one element of a set. $max of 1, NaN, 3 is 3, and of NaN, 1, 3
# it is NaN; of 1 and "a" it is a TypeError, though a $sort of them works. A find for NaN finds nothing.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mongomock==4.3.0 pymongo==4.15.3
"$folder/venv/bin/python" - <<'PYTHON'
import math

import mongomock

collection = mongomock.MongoClient().db.collection


def fill(values):
    collection.drop()
    collection.insert_many([{"x": value} for value in values])


def expect(operator, values, expected):
    fill(values)
    (row,) = collection.aggregate([{"$group": {"_id": None, "result": {operator: "$x"}}}])
    print(operator, values, row["result"])
    assert repr(row["result"]) == repr(expected)


expect("$addToSet", [0, 5], [None, 5])
expect("$addToSet", [0, "", False], [None])
expect("$push", [0, 5], [0, 5])
expect("$sum", [True, 2], 3)
expect("$avg", [True, 2], 1.5)
expect("$addToSet", [1, True], [1])
expect("$max", [1, math.nan, 3], 3)
expect("$max", [math.nan, 1, 3], math.nan)
fill([1, True])
groups = list(collection.aggregate([{"$group": {"_id": "$x", "rows": {"$sum": 1}}}]))
print("groups of 1 and True:", groups)
assert groups == [{"_id": 1, "rows": 2}]
fill(["a", 1])
assert [row["x"] for row in collection.aggregate([{"$sort": {"x": 1}}])] == [1, "a"]
try:
    expect("$max", ["a", 1], "a")
except TypeError as error:
    print("$max of 'a' and 1:", error)
else:
    raise AssertionError("no error")
fill([math.nan])
assert list(collection.find({"x": math.nan})) == []
PYTHON
