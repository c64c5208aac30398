"""Runs in files that the workers of a host share: complete or absent, bounded, and verified."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from foldflight.engine.state import runs
from foldflight.engine.state.manifest import Storage
from foldflight.engine.state.runs import HostCache, RunCache, private_folder
from foldflight.engine.state.table import StateTable, TableBounds, TableLayout
from tests.laws.test_statetable_model import Store

LAYOUT = TableLayout(pa.schema([("k", pa.int64())]), pa.schema([("state_0", pa.int64())]))


def table(store: Store, host_cache: HostCache | None) -> StateTable:
    """Open a table like a worker that has nothing in memory."""
    cache = RunCache(bytes_max=1 << 20, host_cache=host_cache)
    bounds = TableBounds(piece_rows_max=8, fan_in=2, merge_rows_max=10, merge_share=2)
    return StateTable(LAYOUT, Storage(store, cache, bounds))


def keys(values: list[int]) -> pa.RecordBatch:
    """Return keys."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["k"])


def put(subject: StateTable, values: dict[int, int]) -> None:
    """Commit groups."""
    states = pa.RecordBatch.from_arrays([pa.array(list(values.values()), pa.int64())], names=["state_0"])
    subject.commit(keys(list(values)), np.ones(len(values), np.int64), states)


def find(subject: StateTable, values: list[int]) -> list[int | None]:
    """Look groups up."""
    states: list[int | None] = subject.lookup(keys(values)).states.column("state_0").to_pylist()
    return states


class CountingStore(Store):
    """A state store that counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def run(self, run_id: str) -> bytes | None:
        self.asked += 1
        return super().run(run_id)


def test_a_worker_takes_what_another_has_written(tmp_path: Path) -> None:
    """A run is read from the file of another process instead of the state store."""
    store = CountingStore()
    put(table(store, HostCache(tmp_path, bytes_max=1 << 20)), {1: 10, 2: 20})
    assert find(table(store, HostCache(tmp_path, bytes_max=1 << 20)), [1, 2, 3]) == [10, 20, None]
    assert store.asked == 0
    assert find(table(store, None), [2]) == [20]
    assert store.asked == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"\x07"])
def test_a_damaged_file_is_dropped(tmp_path: Path, damage: object) -> None:
    """A damaged or incomplete file is replaced by the run from the state store."""
    store = CountingStore()
    put(table(store, HostCache(tmp_path, bytes_max=1 << 20)), {1: 10})
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(good))  # type: ignore[operator]
    assert find(table(store, HostCache(tmp_path, bytes_max=1 << 20)), [1]) == [10]
    assert store.asked == 1
    assert file.read_bytes() == good


@pytest.fixture
def checked_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose checksums are checked, by name."""
    names: list[str] = []
    unseal = runs.unseal
    monkeypatch.setattr(runs, "unseal", lambda magic, data, what: names.append(what) or unseal(magic, data, what))
    return names


def test_mapped_runs_take_no_memory_of_the_cache(tmp_path: Path, checked_names: list[str]) -> None:
    """Runs of a table that is larger than the cache are mapped and checked once, and are in memory no more."""
    store, host = CountingStore(), HostCache(tmp_path, bytes_max=1 << 20)
    for start in range(0, 400, 40):
        put(table(store, host), {key: -key for key in range(start, start + 40)})
    checked_names.clear()
    cache = RunCache(bytes_max=0, host_cache=host)
    subject = StateTable(LAYOUT, Storage(store, cache))
    for _ in range(3):
        assert find(subject, list(range(400))) == [-key for key in range(400)]
    assert len(checked_names) == subject.pieces == len(set(checked_names))
    assert (cache.bytes, store.asked) == (0, 0)
    assert cache.mapped_bytes >= 400 * 32
    cache.drop(list(store.runs))
    assert cache.mapped_bytes == 0


def test_the_address_space_is_bounded(tmp_path: Path, checked_names: list[str]) -> None:
    """The least recently used runs are unmapped beyond the limit; those that return are not checked again."""
    store, host = CountingStore(), HostCache(tmp_path, bytes_max=1 << 20)
    put(table(store, host), {key: -key for key in range(80)})
    checked_names.clear()
    cache = RunCache(bytes_max=0, host_cache=host, mapped_bytes_max=1_000)
    subject = StateTable(LAYOUT, Storage(store, cache))
    for key in [*range(80), *range(80)]:
        assert find(subject, [key]) == [-key]
        assert cache.mapped_bytes <= 1_000
    assert len(checked_names) == subject.pieces
    assert store.asked == 0


def test_runs_that_others_removed_are_unmapped(tmp_path: Path) -> None:
    """A process does not keep the disk space of files that another process has removed after a merge."""
    store, host = CountingStore(), HostCache(tmp_path, bytes_max=1 << 20)
    put(table(store, host), {key: -key for key in range(80)})
    cache = RunCache(bytes_max=0, host_cache=host, mapped_bytes_max=16_000)
    subject = StateTable(LAYOUT, Storage(store, cache))
    find(subject, list(range(80)))
    mapped_names = sorted(cache._mapped_pieces)
    host.drop(mapped_names)
    other = Store()
    put(table(other, host), {key: -key for key in range(80)})
    find(StateTable(LAYOUT, Storage(other, cache)), list(range(80)))
    assert len(mapped_names) > 3
    assert not set(mapped_names) & set(cache._mapped_pieces)


@pytest.mark.slow
def test_random_workers_agree_with_a_dict(tmp_path: Path) -> None:
    """Lookups are right for all workers, whatever was removed; merged runs have no files."""
    rng = random.Random(3)
    store, model = Store(), dict[int, int]()
    caches = [RunCache(bytes_max=4_000, host_cache=HostCache(tmp_path, bytes_max=20_000)) for _ in range(3)]
    bounds = TableBounds(piece_rows_max=8, fan_in=2, merge_rows_max=10, merge_share=2)
    for epoch in range(150):
        cache = rng.choice(caches)
        subject = StateTable(LAYOUT, Storage(store, cache, bounds))
        assert find(subject, list(range(40))) == [model.get(key) for key in range(40)]
        values = dict.fromkeys(rng.sample(range(40), 6), epoch)
        put(subject, values)
        model |= values
    assert {path.stem for path in tmp_path.iterdir()} <= set(store.runs)


def test_the_files_are_bounded_and_the_unused_go_first(tmp_path: Path) -> None:
    """Used files stay, files of dead processes and unused ones are removed; a run that is too large has no file."""
    cache = HostCache(tmp_path, bytes_max=160_000)
    draft = tmp_path / "left.123"
    draft.write_bytes(bytes(5_000))
    os.utime(draft, (1, 1))
    cache.put("used", b"u" * 1_000)
    for number in range(100):
        cache.put(f"run{number}", bytes([number]) * 5_000)
        for place, path in enumerate(sorted(tmp_path.glob("run*.run"), key=lambda path: int(path.stem[3:]))):
            os.utime(path, (10 + place, 10 + place))
        data = cache.get("used")
        assert data is not None
        assert data.to_pybytes() == b"u" * 1_000
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 175_000
    assert not draft.exists()
    assert cache.get("run0") is None
    assert cache.get("run99") is not None
    cache.put("large", bytes(20_000))
    assert cache.get("large") is None


def test_mapped_bytes_outlive_their_file(tmp_path: Path) -> None:
    """A run that another process removes stays readable while it is mapped."""
    cache = HostCache(tmp_path, bytes_max=1 << 20)
    cache.put("a", b"x" * 10_000)
    data = cache.get("a")
    assert data is not None
    cache.drop(["a", "never"])
    assert cache.get("a") is None
    assert data.to_pybytes() == b"x" * 10_000


@pytest.mark.slow
def test_many_processes_never_see_half_a_file(tmp_path: Path) -> None:
    """While processes write, read and remove files at once, a run is complete or absent."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(str(tmp_path), seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
        assert worker.exitcode == 0


def _work(folder: str, seed: int) -> None:
    rng = random.Random(seed)
    cache = HostCache(Path(folder), bytes_max=200_000)
    for _ in range(2_000):
        number = rng.randrange(60)
        expected = bytes([number]) * (100 * number + 1)
        match rng.randrange(5):
            case 0:
                cache.drop([str(number)])
            case 1 | 2:
                cache.put(str(number), expected)
            case _:
                data = cache.get(str(number))
                assert data is None or data.to_pybytes() == expected


def test_the_folder_belongs_to_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is made for this user only; one that others can write to, a link and a file are refused."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = private_folder()
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder() == folder
    folder.chmod(0o770)
    assert private_folder() is None
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert private_folder() is None
    folder.unlink()
    folder.write_text("a file")
    assert private_folder() is None
