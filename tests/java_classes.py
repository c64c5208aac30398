"""Java classes of tests: compiled in the Java virtual machine of the test by Janino, which comes with PySpark.

So these tests need neither javac nor a network. Janino knows no records, lambdas and parameter names; tests of those,
and of the loop over chunks, which must be compiled, need javac (`needs_javac`), which CI installs.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from foldflight import udaf
from foldflight.ext.java import jvm

LOOPS = Path(jvm.__file__).parent / "src" / "foldflight" / "Loops.java"
needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="there is no javac; CI installs one")


class State:
    sum: int
    count: int


@udaf(input_types=["BIGINT", "INT"], result_type="BIGINT", skip_nulls=True, name="weighted_avg")
class InPython:
    """`WEIGHTED_AVG` in Python: the same state, the same values."""

    def create_accumulator(self) -> State:
        state = State()
        state.sum = state.count = 0
        return state

    def accumulate(self, state, value, weight):
        state.sum += value * weight
        state.count += weight

    def retract(self, state, value, weight):
        state.sum -= value * weight
        state.count -= weight

    def merge(self, state, other):
        state.sum += other.sum
        state.count += other.count

    def get_value(self, state):
        if state.count == 0:
            return None
        whole = abs(state.sum) // abs(state.count)  # Java rounds towards zero
        return whole if (state.sum < 0) == (state.count < 0) else -whole


def jar(
    folder: Path, source: str, *, name: str = "functions", javac: bool = False, beside: Mapping[str, str] | None = None
) -> Path:
    """Compile the source of a public class, and the sources of classes beside it by name; return a jar with all."""
    folder.mkdir(parents=True, exist_ok=True)
    package = source.partition("package ")[2].partition(";")[0].strip()
    simple = source.partition("public class ")[2].split()[0]
    sources, classes = {simple: source, **(beside or {})}, folder / f"{name}-classes"
    for each, text in sources.items():
        (folder / f"{each}.java").write_text(text, encoding="utf-8")
    classes.mkdir()
    (_javac if javac else _janino)([folder / f"{each}.java" for each in sources], classes)
    jar_file = folder / f"{name}.jar"
    with zipfile.ZipFile(jar_file, "w") as archive:
        for class_file in sorted(classes.rglob("*.class")):
            archive.write(class_file, class_file.relative_to(classes))
        archive.writestr("META-INF/where", str(jar_file))  # each jar is a new one for the cache of loaded jars
    assert (classes / package.replace(".", "/") / f"{simple}.class").is_file()
    return jar_file


def _javac(files: list[Path], classes: Path) -> None:
    subprocess.run(["javac", "--release", "17", "-parameters", "-d", classes, *files], check=True)


@functools.cache
def _loaded_janino() -> Any:
    jpype = jvm.java()
    url, loader = jpype.JClass("java.net.URL"), jpype.JClass("java.net.URLClassLoader")
    jars = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    urls = [url(each.as_uri()) for each in jars if each.name.startswith(("janino-", "commons-compiler-"))]
    janino = loader(urls, jpype.JClass("java.lang.ClassLoader").getPlatformClassLoader())
    return jpype.JClass(janino.loadClass("org.codehaus.janino.Compiler"))


def _janino(files: list[Path], classes: Path) -> None:
    compiler, path = _loaded_janino()(), jvm.java().JClass("java.io.File")
    compiler.setDestinationDirectory(path(str(classes)), False)
    compiler.setDebugLines(True)
    compiler.setDebugSource(True)
    compiler.compile([path(str(each)) for each in files])


def compile_loops(folder: Path) -> Path:
    """Return a folder with the compiled `Loops`: the build's if it is up to date, otherwise this one."""
    build_folder = LOOPS.parents[2] / "compiled"
    class_file = build_folder / "foldflight" / "Loops.class"
    if class_file.is_file() and class_file.stat().st_mtime > LOOPS.stat().st_mtime:
        return build_folder
    subprocess.run(["javac", "--release", "17", "-d", folder, LOOPS], check=True)
    return folder


WEIGHTED_AVG = (Path(__file__).parents[1] / "examples" / "WeightedAvg.java").read_text(encoding="utf-8")

MIXED = """
package com.acme;

public class Mixed {
  public static class State {
    public boolean seen;
    public byte bytes;
    public short shorts;
    public int ints;
    public float floats;
    public double doubles;
    public Long largest;
  }

  public State createAccumulator() {
    return new State();
  }

  public void accumulate(State state, String text, Double number, boolean flag, short small, Long large) {
    state.seen = state.seen || flag;
    state.bytes += 1;
    state.shorts += small;
    state.ints += text == null ? 1000 : text.length();
    if (number != null) {
      state.floats += number.floatValue();
      state.doubles += number.doubleValue();
    }
    if (large != null && (state.largest == null || large.longValue() > state.largest.longValue())) {
      state.largest = large;
    }
  }

  public void merge(State state, Iterable others) {
    java.util.Iterator each = others.iterator();
    while (each.hasNext()) {
      State other = (State) each.next();
      state.seen = state.seen || other.seen;
      state.bytes += other.bytes;
      state.shorts += other.shorts;
      state.ints += other.ints;
      state.floats += other.floats;
      state.doubles += other.doubles;
      if (other.largest != null && (state.largest == null || other.largest > state.largest)) {
        state.largest = other.largest;
      }
    }
  }

  public double getValue(State state) {
    return state.doubles + state.floats + state.ints + (state.largest == null ? 0 : state.largest.longValue());
  }
}
"""

# It keeps what it returns: a number is its own accumulator. A negative one makes it raise, from two methods deep.
SUM_OF_BOXES = """
package com.acme;

public class Total {
  public Long createAccumulator() {
    return Long.valueOf(0);
  }

  public Long accumulate(Long total, Long value) {
    return checked(total, value);
  }

  public Long checked(Long total, Long value) {
    if (value == null) {
      return total;
    }
    if (value.longValue() < 0) {
      throw new IllegalArgumentException("negative: " + value);
    }
    return value.longValue() == 13 ? null : Long.valueOf(total.longValue() + value.longValue());
  }

  public Long merge(Long total, Long other) {
    return Long.valueOf(total.longValue() + other.longValue());
  }

  public Long getValue(Long total) {
    if (total.longValue() == 42) {
      throw new IllegalStateException("no value for 42");
    }
    return total;
  }
}
"""
