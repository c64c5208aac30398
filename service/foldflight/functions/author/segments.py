"""The bundled form of an aggregate function: one call of `fold_bundle` folds the rows of many groups."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from foldflight.functions.author.spec import Methods

A = TypeVar("A")
V = TypeVar("V")


@dataclass(slots=True)
class Segment(Generic[A]):
    """What a call of `fold_bundle` folds for one group.

    Args:
        accumulators: None of a new group, one of a known group, or several, which are to be merged in order. They come
            before the rows.
        rows: The arguments of each row, in order; none if only the value, or a merge, is asked for.
        signs: For each row 1, or -1 for a row that is retracted.
        wants_each: Whether the value after each row is needed. It may be true although no result depends on it: if all
            rows are retracted, and between two window frames of OVER.

    >>> from foldflight import Applied, Segment
    >>> Segment(accumulators=[3], rows=[(4,), (5,)], signs=[1, -1])
    Segment(accumulators=[3], rows=[(4,), (5,)], signs=[1, -1], wants_each=False)
    """

    accumulators: list[A]
    rows: list[tuple[Any, ...]]
    signs: list[int]
    wants_each: bool = False


@dataclass(slots=True)
class Applied(Generic[A, V]):
    """What `fold_bundle` returns for a segment.

    Args:
        accumulator: The accumulator after the last row.
        value: Its value.
        values: The value after each row, if the segment wants them: a list of values that do not change any more.

    >>> from foldflight import Applied, Segment
    >>> def fold_bundle(segments: list[Segment[int]]) -> list[Applied[int, int]]:
    ...     applied = []
    ...     for segment in segments:
    ...         total = sum(segment.accumulators)
    ...         for (value,), sign in zip(segment.rows, segment.signs):
    ...             total += value * sign
    ...         applied.append(Applied(total, total))
    ...     return applied
    >>> fold_bundle([Segment(accumulators=[3], rows=[(4,), (5,)], signs=[1, -1])])
    [Applied(accumulator=2, value=2, values=())]
    """

    accumulator: A
    value: V | None
    values: Sequence[V | None] = ()


class BundledForm:
    """Creates the methods of a class that has `fold_bundle` alone: the other methods are bundles of one segment.

    Args:
        cls: The author's class.
        retracts: Whether `fold_bundle` takes signs of -1.
        merges: Whether it takes segments with several accumulators.
    """

    def __init__(self, cls: type, *, retracts: bool, merges: bool) -> None:
        self.cls = cls
        self.retracts = retracts
        self.merges = merges

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        instance = self.cls(**literals)

        def apply_segment(accumulators: list[Any], rows: list[tuple[Any, ...]], sign: int = 1) -> Any:
            (outcome,) = instance.fold_bundle([Segment(accumulators, rows, [sign] * len(rows))])
            return outcome

        return Methods(
            create_accumulator=lambda: apply_segment([], []).accumulator,
            accumulate=lambda accumulator, *row: apply_segment([accumulator], [row]).accumulator,
            get_value=lambda accumulator: apply_segment([accumulator], []).value,
            retract=(lambda accumulator, *row: apply_segment([accumulator], [row], -1).accumulator)
            if self.retracts
            else None,
            merge=(lambda accumulator, other: apply_segment([accumulator, other], []).accumulator)
            if self.merges
            else None,
            fold_bundle=instance.fold_bundle,
            **{
                method_name: getattr(instance, method_name, None)
                for method_name in ("serialize", "deserialize", "migrate", "open", "close")
            },
        )


def arguments_of(annotation: Any, cls: type) -> tuple[Any, ...]:
    """Return the type arguments of `cls` in `list[cls[...]]`; nothing for another annotation, or without arguments."""
    for each in typing.get_args(annotation):
        if typing.get_origin(each) is cls:
            return typing.get_args(each)
    return ()
