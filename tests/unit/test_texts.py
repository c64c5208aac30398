"""Texts as addresses and back: the same content, whatever its order, its lengths and its NULLs."""

import numpy as np
import pyarrow as pa
import pytest

from foldflight.fold import machine_values
from foldflight.fold.machine_values import from_addresses, to_addresses

WORDS = ["", "a", "büy", "\U0001f600", "a text of more than eight bytes", "\0"]


@pytest.mark.parametrize("length", [0, 1, 40, 5000])
@pytest.mark.parametrize("type_", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize("is_ordered", [False, True])
def test_texts_come_back_in_any_order(
    length: int, is_ordered: bool, type_: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts in the order of memory are taken by runs, short ones gathered in parts, others copied one by one."""
    monkeypatch.setattr(machine_values, "_EXTENT", 1 << 12)
    monkeypatch.setattr(machine_values, "_GATHERED_TEXTS", 7)
    rng = np.random.default_rng(length)
    texts = [WORDS[place] + "x" * (length and int(rng.integers(0, length))) for place in rng.integers(0, 6, 50)]
    arrays = [pa.array(part).cast(type_) for part in (texts[:20], texts[20:])]  # two regions of memory
    numbers = np.concatenate([to_addresses(each) for each in arrays])
    order = np.sort(rng.choice(50, 40, replace=False)) if is_ordered else rng.permutation(50)
    expected = pa.chunked_array(arrays).take(pa.array(order)).combine_chunks()
    assert from_addresses(numbers[order], None, type_).equals(expected)
    mask = rng.integers(0, 2, len(order)).astype(np.bool_)
    nulls = [None if is_null else value for is_null, value in zip(mask, expected.to_pylist(), strict=True)]
    result = from_addresses(np.where(mask, 1 << 50, numbers[order]), mask, type_)  # NULLs are not read
    result.validate(full=True)
    assert result.to_pylist() == nulls


def test_empty_texts_and_no_texts_come_back() -> None:
    assert from_addresses(np.zeros(0, np.int64), None, pa.string()).equals(pa.array([], pa.string()))
    assert from_addresses(np.zeros(3, np.int64), None, pa.string()).to_pylist() == [""] * 3
