#!/bin/sh
# Make in the folder $3 an environment of Python $2, which this machine need not have, with the locked packages that the
# main tests use, and with those of requirements-newest.txt. It shares PySpark and foldflight with the environment $1.
# Idempotent.
#
# Debian's next release has the newest Pythons. Python and what it links to are unpacked, not installed: neither root nor
# that release is needed, but apt-get and dpkg-deb are.
set -eu
venv=$1
version=$2
folder=$3
release=forky

newer=tests/spark/requirements-newest.txt
if cat requirements-dev.txt "$newer" | cmp -s - "$folder/made-from.txt" \
  && "$folder/bin/python$version" -c '' 2>/dev/null; then
  exit 0
fi
rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

unpack_python() {
  root=$folder/debian
  work=$folder/apt
  mkdir -p "$root" "$work/lists/partial" "$work/cache/archives/partial"
  signed_by=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$signed_by] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $release main" >"$work/sources.list"
  # The index of the next release is valid for a week, and copies of it may be older. Signatures are checked.
  cat >"$work/apt.conf" <<EOF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::State::status "/dev/null";
Dir::Cache "$work/cache";
Acquire::Check-Valid-Until "false";
Acquire::Retries "5";
APT::Install-Recommends "false";
EOF
  APT_CONFIG="$work/apt.conf" apt-get -qq update
  APT_CONFIG="$work/apt.conf" apt-get -qq -y install --download-only "python$version-venv"
  for package in "$work"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$root"
  done
  rm -rf "$work"
  sed -i "s#^_pkg_dir = .*#_pkg_dir = '$root/usr/share/python-wheels'#" "$root/usr/lib/python$version/ensurepip/__init__.py"
  # Python runs with the C library for which it was built, and the programs that it starts with the machine's.
  program=$root/usr/bin/python$version
  loader=$(find "$root/usr" -name 'ld-linux-*' | head -n 1)
  libraries=$(dirname "$(find "$root/usr/lib" -name libc.so.6)")
  mv "$program" "$program.elf"
  printf '#!/bin/sh\nexec "%s" --argv0 "$0" --library-path "%s" "%s" "$@"\n' "$loader" "$libraries" "$program.elf" >"$program"
  chmod +x "$program"
}

program=$(command -v "python$version" || true)
if [ -z "$program" ] || ! "$program" -c '' 2>/dev/null; then
  echo "setup: unpacking Python $version of Debian into $folder"
  unpack_python
fi
"$program" -m venv "$folder"

# Those of the service, Spark's, and those of the tests.
cp requirements.txt "$folder/requirements.txt"
sed -n '/^[a-z]/h; G; /\n\(attrs\|cffi\|cryptography\|grpcio-status\|hypothesis\|iniconfig\|packaging\|pluggy\|pycparser\|pytest\|pytest-rerunfailures\|python-dateutil\|pytz\|sortedcontainers\|trustme\|tzdata\|zstandard\)==/{s/\n.*//; p}' \
  requirements-dev.txt >"$folder/requirements-tests.txt"
echo "setup: installing packages for Python $version into $folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
  --requirement "$folder/requirements.txt" --requirement "$folder/requirements-tests.txt" --requirement "$newer"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for each in pyspark pyspark-*.dist-info py4j foldflight-*.dist-info; do
  # shellcheck disable=SC2086
  ln -s "$PWD/$venv"/lib/python3*/site-packages/$each "$packages/"
done
echo "$PWD/service" >"$packages/foldflight.pth"
cat requirements-dev.txt "$newer" >"$folder/made-from.txt"
