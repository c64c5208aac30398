"""SQL text for the plans of batches: signs of rows, constants, queries and errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foldflight.engine.query.layout import KIND, RETRACTING
from foldflight.spark.errors import text_around

SIGN: Final = f"CASE WHEN {KIND} IN ({', '.join(map(str, RETRACTING))}) THEN -1L ELSE 1L END"
"""The sign of a row: -1 if it is retracted."""


def text(value: str) -> str:
    """Return a text as a literal of SQL, however the session reads backslashes and variables in it."""
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


# No quotes, no backslashes, and no `$`, with which names of variables begin.
_PLAIN: Final = re.compile(r"[\n !#%&()*+,\-./0-9:;<=>?A-Z\[\]^_a-z|~]*")


@dataclass(frozen=True)
class Text:
    """A query as SQL, with the methods of a DataFrame that plans of lifted batches call.

    Spark analyses a DataFrame again at each method, and a text once.
    """

    sql: str

    def selectExpr(self, *items: str) -> Text:  # noqa: N802 - as PySpark names it
        """Return a projection."""
        return Text(f"SELECT {', '.join(items)} FROM ({self.sql})")  # noqa: S608 - expressions of ours

    def where(self, condition: str) -> Text:
        """Return the rows for which a condition holds."""
        return Text(f"SELECT * FROM ({self.sql}) WHERE {condition}")  # noqa: S608 - as above


def error_text(
    code: str, message: str, function: str, names: Mapping[str, str], *, group: Sequence[str], row: Sequence[str] = ()
) -> str:
    """Return the text of an error, which `foldflight.spark.errors.error_of` reads, as SQL.

    Args:
        code: The code of the error.
        message: The message, as SQL.
        function: The name of the function.
        names: The user's names of columns.
        group: The columns of the keys.
        row: The columns of the arguments.
    """
    texts = []
    before = f"\n  function: {function}"
    for title, columns in (("group", group), ("row", row)):
        for index, column in enumerate(columns):
            lead = f"\n  {title}: " if index == 0 else ", "
            texts += [
                text(f"{before}{lead}{names.get(column, column)}="),
                f"coalesce(CAST({column} AS STRING), 'NULL')",
            ]
            before = ""
    begin, end = text_around(code)
    texts.append(text(f"{before}{end}"))
    return f"concat({text(begin)}, {message}, {', '.join(texts)})"
