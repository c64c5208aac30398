#!/bin/sh
# Unpack the PySpark that the file $2 names (one requirement with its hash) into the folder $3, for PYTHONPATH, with the
# pip of the environment $1. Idempotent.
#
# PySpark comes as an archive of 300 to 450 MB, from which pip builds a wheel and which it unpacks again: a minute. The
# archive alone is unpacked in seconds, and the other packages are those of the environment.
set -eu
venv=$1
requirement=$2
folder=$3

if cmp -s "$requirement" "$folder/requirement.txt"; then
  exit 0
fi
rm -rf "$folder"
mkdir -p "$folder/archive"
echo "setup: downloading and unpacking $(sed -n 's/ *\\$//; /==/p' "$requirement") into $folder"
"$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary pyspark --no-build-isolation \
  --require-hashes --requirement "$requirement" --dest "$folder/archive"
tar -xzf "$folder"/archive/pyspark-*.tar.gz -C "$folder" --strip-components=1
rm -rf "$folder/archive"
# Where the setup.py of PySpark puts them.
for each in jars bin sbin data licenses; do
  mv "$folder/deps/$each" "$folder/pyspark/$each"
done
mkdir -p "$folder/pyspark/python"
mv "$folder/lib" "$folder/pyspark/python/lib"
# The client that belongs to this Spark's py4j.
"$venv/bin/python" -m zipfile -e "$folder"/pyspark/python/lib/py4j-*-src.zip "$folder"
cp "$requirement" "$folder/requirement.txt"
