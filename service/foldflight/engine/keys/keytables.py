"""Hash tables of keys. Their compiled loops are several times as fast as NumPy.

The hash depends on a seed that differs between processes, so that nobody can construct keys that collide. Ids depend on
the order of the keys alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foldflight.fold.accelerator import COMPILER

# Rows after which the loops are compiled: with numba imported already, and without. They save about 0.1 us a row;
# importing numba and compiling them takes one to two seconds.
_HOT_ROWS: Final = 1 << 19
_COLD_ROWS: Final = 1 << 22
_ROOM: Final = 1 << 10  # first capacity of a table, in keys
_BYTES: Final = 1 << 14  # first capacity for the content of strings, in bytes
# Cells of a table for each key of its capacity.
_CELLS_PER_KEY: Final = 2
_NO_BYTES: Final = np.zeros(8, np.uint8)
# Bytes after the last string, because the loops read eight bytes at once.
_BEHIND: Final = 8

_logger: Final = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]
Rows = npt.NDArray[np.intp]


class KeyLoops:
    """The compiled loops of this process. Thread-safe; at worst the loops are compiled twice."""

    def __init__(self) -> None:
        self._rows = 0
        self._has_failed = False
        self._loops: Mapping[str, Any] | None = None

    def when_hot(self, rows: int) -> Mapping[str, Any] | None:
        """Count keys that are looked up without the loops. Return the loops once compiling is worthwhile, else None.

        If they cannot be compiled in this process, for example with NUMBA_DISABLE_JIT, that is logged once.
        """
        if self._loops is None and not self._has_failed:
            self._rows += rows
            if self._rows >= (_HOT_ROWS if "numba" in sys.modules else _COLD_ROWS):
                try:
                    compiler = COMPILER.find()
                    self._loops = None if compiler is None else compiler.key_loops("user")
                    self._has_failed = self._loops is None
                except Exception as error:  # noqa: BLE001 - keys are found without compiled loops, too
                    self._has_failed = True
                    _logger.warning("keys are looked up without compiled loops, which is slower: %r", error)
        return self._loops


KEY_LOOPS: Final = KeyLoops()
"""Compiled loops with which engines find keys."""


class NumberTable:
    """A table that maps 64-bit numbers to ids.

    Args:
        loops: The loops.
        seed: Seed of the hash.
        table_keys: n different numbers, which get the ids 0 to n - 1.
    """

    def __init__(self, loops: Mapping[str, Any], seed: np.uint64, table_keys: npt.NDArray[np.int64]) -> None:
        self._loops = loops
        self._seed = seed
        self._count = len(table_keys)
        self._table_keys = np.zeros(_room(self._count), np.int64)
        self._table_keys[: self._count] = table_keys
        self._rebuild()

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """The numbers, by id."""
        return self._table_keys[: self._count]

    def ids(self, values: npt.NDArray[np.int64]) -> tuple[Ids, Rows]:
        """Return the ids of n numbers, and the rows in which new numbers appear first, ascending."""
        ids, firsts = np.empty(len(values), np.int32), np.empty(len(values), np.intp)
        state = np.array([self._count, 0, 0], np.int64)
        values = np.ascontiguousarray(values)
        while not self._loops["numbers"](values, ids, firsts, self._cells, self._table_keys, state, self._seed):
            self._count = int(state[0])
            self._table_keys = _grow(self._table_keys, _room(self._count))
            self._rebuild()
        self._count = int(state[0])
        return ids, firsts[: state[2]].copy()

    def _rebuild(self) -> None:
        self._cells = np.zeros(_CELLS_PER_KEY * len(self._table_keys), np.uint32)
        self._loops["insert_numbers"](self._cells, self._table_keys, self._count, self._seed)


class TextTable:
    """A table that maps str or bytes to ids.

    Args:
        loops: The loops.
        seed: Seed of the hash.
    """

    def __init__(self, loops: Mapping[str, Any], seed: np.uint64) -> None:
        self._loops = loops
        self._seed = seed
        self._count = 0
        self._hashes, self._ends = np.zeros(_ROOM, np.uint64), np.zeros(_ROOM + 1, np.int64)
        self._table_keys = np.zeros(_BYTES, np.uint8)
        self._rebuild()

    def __len__(self) -> int:
        return self._count

    def ids(self, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> tuple[Ids, Rows]:
        """Return the ids of n texts, and the rows in which new texts appear first, ascending.

        Args:
            offsets: n + 1 offsets in `data`: text i is `data[offsets[i]:offsets[i + 1]]`.
            data: The bytes of the texts.
        """
        count = len(offsets) - 1
        ids, firsts = np.empty(count, np.int32), np.empty(count, np.intp)
        state = np.array([self._count, 0, 0], np.int64)
        data = data if len(data) else _NO_BYTES
        while not self._loops["texts"](
            offsets, data, ids, firsts, self._cells, self._hashes, self._ends, self._table_keys, state, self._seed
        ):
            self._count = int(state[0])
            self._grow(int(offsets[state[1] + 1] - offsets[state[1]]))
        self._count = int(state[0])
        return ids, firsts[: state[2]].copy()

    def _grow(self, size: int) -> None:
        """Enlarge the table for at least one more string of `size` bytes."""
        used_bytes = int(self._ends[self._count])
        if used_bytes + size + _BEHIND > len(self._table_keys):
            self._table_keys = _grow(self._table_keys, max(2 * len(self._table_keys), used_bytes + size + _BEHIND))
        if self._count == len(self._hashes):
            self._hashes = _grow(self._hashes, 2 * self._count)
            self._ends = _grow(self._ends, 2 * self._count + 1)
            self._rebuild()

    def _rebuild(self) -> None:
        self._cells = np.zeros(_CELLS_PER_KEY * len(self._hashes), np.uint64)
        self._loops["insert_texts"](self._cells, self._hashes, self._count)


def _room(count: int) -> int:
    """Return the number of cells for more than `count` keys: a power of two."""
    return max(_ROOM, 1 << count.bit_length())


def _grow(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    larger_array = np.zeros(size, array.dtype)
    larger_array[: len(array)] = array
    return larger_array
