"""Scalar functions as machine code, compiled from the author's `eval`.

As with accumulators, compiled code is faster and never changes a result. It stops at the first row whose result could
differ from Python's, and the interpreter evaluates the rest of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.ext.compiler.arena import CONTROLS, MARK, RAISED, Arena
from foldflight.ext.compiler.columns import columns_of
from foldflight.ext.compiler.compiled import results_of
from foldflight.ext.compiler.program import Loops, NoProgram
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Rows
from foldflight.fold.scalar.evaluation import InterpretedScalar, Scalar


class CompiledScalar(Scalar):
    """Evaluates a step: with the interpreter until compiling is worthwhile, then by machine code if that is possible.

    Args:
        inner: The interpreter.
        find: Called with the number of the next rows. It returns None until compiling is worthwhile, and then the
            compiled code or the reason why there is none.

    Raises:
        RejectedError: The errors of `find`.
    """

    def __init__(self, inner: InterpretedScalar, find: Callable[[int], Loops | NoProgram | None]) -> None:
        self.inner = inner
        self.bound = inner.bound
        self._find = find
        self._program: Loops | NoProgram | None = find(0)
        self._progress = np.zeros(CONTROLS, np.int64)
        self._progress[MARK] = -1
        self._arena = Arena(self._progress)

    @property
    def mode(self) -> Mode:
        return Mode.COMPILED if isinstance(self._program, Loops) else self.inner.mode

    def values(self, rows: Rows) -> pa.Array:
        if self._program is None:
            self._program = self._find(len(rows))
        program = self._program
        if not isinstance(program, Loops):
            return self.inner.values(rows)
        return self.inner.values_of_called_rows(rows, lambda called_rows: self._values(called_rows, program))

    def _values(self, rows: Rows, program: Loops) -> pa.Array:
        columns, valid, unfit = columns_of(rows, program.arguments)
        loop = None if columns is None or unfit is not None else program.rows(nulls=bool(valid))
        if loop is None:
            return self.inner.values(rows)
        values, known_mask = program.allocate(len(rows))
        self._progress[0] = 0
        try:
            self._arena.take_texts()
            self._arena.run(loop, (program.instance, self._progress, columns, valid, values, known_mask), list, ())
        except RAISED:
            done_count = int(self._progress[0])
            rest = self.inner.values(rows.part(done_count))
            return pa.concat_arrays([self._cast(values[:done_count], known_mask[:done_count]), rest])
        return self._cast(values, known_mask)

    def _cast(self, values: Any, known_mask: Any) -> pa.Array:
        return results_of(values, known_mask, self.bound.result_type)

    def close(self) -> None:
        self.inner.close()
