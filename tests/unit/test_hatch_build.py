"""The build hook compiles the loop of Java functions where it can."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HOOK = Path(__file__).parents[2] / "service" / "hatch_build.py"


@pytest.fixture
def hook() -> Any:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("version", "compiles"), [("1.8.0_401", False), ("11.0.2", False), ("17", True), ("25", True)])
def test_an_old_javac_does_not_end_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Any, version: str, compiles: bool
) -> None:
    """A javac that cannot compile for Java 17 is as good as none."""
    javac = tmp_path / "bin" / "javac"
    javac.parent.mkdir()
    javac.write_text(
        f'#!/bin/sh\nif [ $1 = -version ]; then echo javac {version}; exit; fi\necho "$@" >> {tmp_path}/calls\n'
    )
    javac.chmod(0o755)
    monkeypatch.setenv("PATH", f"{javac.parent}:/bin:/usr/bin")
    hook.CustomBuildHook.initialize(SimpleNamespace(root=str(tmp_path), target_name="sdist"), "1", {})
    calls = tmp_path / "calls"
    assert calls.is_file() == compiles
    assert not compiles or calls.read_text().startswith("--release 17 -d ")
