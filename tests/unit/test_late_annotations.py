"""Local classes and functions of authors, with annotations that Python 3.14 evaluates when they are asked for."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit import test_local_annotations as as_texts

IMPORT = "from __future__ import annotations\n"


@pytest.fixture(scope="module")
def late() -> Any:
    """The tests of annotations that are texts, compiled without the import that makes them texts."""
    path = Path(as_texts.__file__)
    source = path.read_text(encoding="utf-8")
    assert source.count(IMPORT) == 1
    module = ModuleType("annotations_that_are_evaluated_late")
    sys.modules[module.__name__] = module
    vars(module)["lock"] = threading.Lock()  # no class uses it, so nobody must pickle it
    exec(compile(source.replace(IMPORT, "\n"), path, "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules[module.__name__]


TESTS = [name for name in vars(as_texts) if name.startswith("test_")]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations where they are written")
@pytest.mark.parametrize("name", TESTS)
def test_late_annotations_are_read_like_texts(late: Any, name: str) -> None:
    """What holds for annotations that are texts holds for those without the import."""
    if name == "test_the_state_is_typed_and_folded":
        for form in late.FORMS:
            getattr(late, name)(form)
    elif name == "test_members_named_as_types_do_not_hide_them":
        with pytest.raises(TypeError, match="'function' object is not subscriptable"):  # for Python itself they do
            getattr(late, name)()
    else:
        getattr(late, name)()
