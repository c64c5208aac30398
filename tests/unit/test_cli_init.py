"""`foldflight init` writes a project, and never over files of the user."""

from __future__ import annotations

import tomllib
from pathlib import Path

from click.testing import CliRunner

from foldflight.cli.main import cli

ROOT = Path(__file__).parents[2]


def init(folder):
    return CliRunner().invoke(cli, ["init", str(folder)])


def test_a_project_has_what_its_readme_lists(tmp_path):
    """All files that README.md names are written, and are named by it; the output lists them."""
    run = init(tmp_path / "orders")
    assert run.exit_code == 0, run.output
    written_files = {
        str(path.relative_to(tmp_path / "orders")) for path in (tmp_path / "orders").rglob("*") if path.is_file()
    }
    readme = (tmp_path / "orders/README.md").read_text(encoding="utf-8")
    assert written_files == {
        "Dockerfile", "README.md", "batch_job.py", "changes/1.csv", "pyproject.toml", "stream_job.py",
        "test_weighted_avg.py", "weighted_avg.py",
    }  # fmt: skip
    for name in written_files - {"README.md", "pyproject.toml"}:
        assert f"`{name}`" in readme or f"`{name.split('/')[0]}/`" in readme, name
        assert f"wrote {tmp_path / 'orders' / name}" in run.output
    project = tomllib.loads((tmp_path / "orders/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(each.startswith("foldflight[") for each in project["dependencies"])


def test_the_next_command_installs_what_the_tests_need(tmp_path, monkeypatch):
    """The wheel alone has neither pytest nor hypothesis; where both are, the next command is pytest."""
    assert f"cd {tmp_path / 'here'} && pytest " in init(tmp_path / "here").output
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "hypothesis" else object())
    output = init(tmp_path / "bare").output
    assert f"cd {tmp_path / 'bare'} && pip install 'foldflight[testing]' pytest && pytest " in output


def test_files_of_the_user_are_never_overwritten(tmp_path):
    """A folder that is not empty, and a name that is a file, are refused, and nothing is written."""
    (tmp_path / "weighted_avg.py").write_text("mine")
    run = init(tmp_path)
    assert run.exit_code == 1
    assert "is not empty" in run.output
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    assert init(tmp_path / "weighted_avg.py").exit_code == 2


def test_a_folder_that_cannot_be_made_is_an_error_in_words(tmp_path):
    """The message names the folder and the cause."""
    (tmp_path / "file").write_text("")
    run = init(tmp_path / "file" / "orders")
    assert run.exit_code == 1
    assert "cannot be written: Not a directory" in run.output


def test_the_function_equals_the_one_of_the_examples():
    """The README shows one function, and the examples have the same."""
    ours = (ROOT / "service/foldflight/cli/project/weighted_avg.py").read_text(encoding="utf-8")
    examples = (ROOT / "examples/weighted_avg.py").read_text(encoding="utf-8")
    assert ours.split('"""', 2)[2] == examples.split('"""', 2)[2]
