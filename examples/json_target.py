"""A target of one's own: a file of JSON, for `write_table`."""

import json
import sys
from pathlib import Path

from foldflight.testing import TARGET_KEYS, check_target


class JsonFile:
    def __init__(self, path, keys):
        self.path, self.keys = Path(path), keys

    def read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {"epochs": {}, "rows": []}

    def last_epoch(self, query):
        return self.read()["epochs"].get(query)

    def apply(self, query, epoch, changes):
        state = self.read()
        if state["epochs"].get(query, -1) >= epoch:
            return
        rows = {tuple(row[key] for key in self.keys): row for row in state["rows"]}
        for part in changes:  # Arrow tables: row_kind, then the columns of the query
            for row in part.to_pylist():
                key = tuple(row[key] for key in self.keys)
                if row.pop("row_kind") == "-D":
                    rows.pop(key, None)
                else:
                    rows[key] = row
        state = {"epochs": {**state["epochs"], query: epoch}, "rows": list(rows.values())}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.replace(self.path)  # rows and epoch at once


def check(path):
    """Return the results of all laws of a target."""
    return check_target(lambda: JsonFile(path, TARGET_KEYS), lambda: JsonFile(path, TARGET_KEYS).read()["rows"])


if __name__ == "__main__":
    for result in check(sys.argv[1]):
        print(result.passed, result.law, result.detail)
