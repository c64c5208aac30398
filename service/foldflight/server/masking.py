"""Asterisks in the place of the server's secrets, in what functions tell engines: log lines and errors.

The clients of models put keys into their exceptions, and an engine keeps these in its own logs and tables.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.exchange.frames import Frame, Log
from foldflight.fold.failures import ERROR
from foldflight.shipping.secrets import mask_of_texts


def without_secrets(reply: Frame) -> Frame:
    """Return an answer whose log lines, or errors of single rows or groups, have asterisks for secrets."""
    if isinstance(reply, Log):
        return _mask_log(reply, mask_of_texts())
    batch = getattr(reply, "batch", None)
    if batch is None or ERROR not in batch.schema.names:
        return reply
    index = batch.schema.get_field_index(ERROR)
    errors = batch.column(index)
    if errors.null_count == len(errors):
        return reply
    mask = mask_of_texts()
    masked = [
        each and {name: None if text is None else mask(text) for name, text in each.items()}
        for each in errors.to_pylist()
    ]
    column = pa.array(masked, errors.type)
    return dataclasses.replace(reply, batch=batch.set_column(index, batch.schema.field(index), column))


def error_without_secrets(error: FunctionError) -> FunctionError:
    """Return the error of a function that ends an exchange, with asterisks for secrets."""
    mask = mask_of_texts()
    masked = copy.copy(error)
    masked.message, masked.args = mask(error.message), (mask(error.message),)
    masked.row, masked.trace = (text and mask(text) for text in (error.row, error.trace))
    masked.story = tuple(map(mask, error.story))
    return masked


def _mask_log(log: Log, mask: Callable[[str], str]) -> Log:
    records = [
        dataclasses.replace(
            each, message=mask(each.message), fields={name: mask(value) for name, value in each.fields.items()}
        )
        for each in log.records
    ]
    return Log(tuple(records))
