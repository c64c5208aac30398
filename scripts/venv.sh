#!/bin/sh
# Make the virtual environment $1 with the locked requirements $2 and foldflight itself, editable. Idempotent.
#
# Debian splits Python: its python3 has the venv module but neither pip nor ensurepip until python3-venv is installed.
# So: ensurepip if it is there; otherwise a pip of the system's, pointed at the new environment; otherwise apt-get, if
# we may; otherwise say what to install.
set -eu
venv=$1
requirements=$2

find_python() {
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      # The program itself: a shim that chooses a version by folder must not choose another one later.
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  echo "setup: no Python 3.11 or newer found (tried ${PYTHON:-python3, python3.13, python3.12, python3.11})" >&2
  exit 1
}

has_ensurepip() {
  "$python" -c 'import ensurepip; ensurepip.version()' 2>/dev/null
}

has_pip() {
  # `pip --python` came with 22.3.
  "$python" -c 'import pip, sys; sys.exit([int(n) for n in pip.__version__.split(".")[:2]] < [22, 3])' 2>/dev/null
}

install_ensurepip() {
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if ! command -v apt-get >/dev/null; then
    return 1
  elif [ "$(id -u)" = 0 ]; then
    sudo=
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo="sudo -n"
  else
    return 1
  fi
  echo "setup: installing $package, which Debian leaves out of $python"
  $sudo apt-get install -y -q "$package" || { $sudo apt-get update -q && $sudo apt-get install -y -q "$package"; }
}

python=$(find_python)
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  if has_ensurepip || { ! has_pip && install_ensurepip && has_ensurepip; }; then
    "$python" -m venv --clear "$venv"
  elif has_pip; then
    "$python" -m venv --clear --without-pip "$venv"
    "$python" -m pip --python "$venv/bin/python" install --quiet pip
  else
    echo "setup: $python can make no virtual environment: it has neither ensurepip nor pip." >&2
    echo "       Install one of them (Debian, Ubuntu: sudo apt-get install python3-venv), then repeat 'make setup'." >&2
    exit 1
  fi
fi

echo "setup: installing the packages of $requirements into $venv (some minutes if they have to be downloaded)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-compile \
  --requirement "$requirements"
# pip compiles one file after the other. Packages may contain templates that are not valid Python, so failures are ignored.
"$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" || true
# The build backend is among the locked requirements: nothing unlocked is fetched for it.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
