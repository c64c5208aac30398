"""The guide's `spark-submit --master k8s`, run by the real spark-submit against a recorder in place of a cluster.

What it creates in Kubernetes is validated with the schemas of Kubernetes. Not shown: Debian and PyPI have no API
server, so none validates it (admission, defaults, whether names exist). test_chart.py validates the chart's objects
in the same way. A driver in the cluster makes the executors' pods, and they are not seen here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.kit import ROOT, run
from tests.deploy.test_chart import KUBERNETES

GUIDE = ROOT / "docs/how-to/run-on-a-spark-cluster.md"


class Recorder(BaseHTTPRequestHandler):
    """Answers like an API server that accepts everything, and keeps what it was given."""

    protocol_version = "HTTP/1.1"
    given: list[dict[str, Any]]

    def _accept(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.given.append(json.loads(json.dumps(body)))
        body["metadata"] |= {"uid": "1", "resourceVersion": "1", "namespace": "default"}
        answer = json.dumps(body).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PATCH = do_PUT = _accept  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.slow
def test_objects_that_spark_submit_creates_are_valid(tmp_path: Path) -> None:
    """The driver's pod has the guide's image, account, job and fleet; all objects pass the schemas of Kubernetes."""
    import pyspark

    (block,) = re.findall(r"^```text\n(spark-submit --master k8s.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    Recorder.given = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = Path(pyspark.__file__).parent
    command = block.replace("https://KUBERNETES:6443", f"http://127.0.0.1:{server.server_port}")
    try:
        subprocess.run(
            [
                "bash",
                "-ec",
                command.replace("--name", "--conf spark.kubernetes.submission.waitAppCompletion=false --name"),
            ],
            env={**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}", "SPARK_HOME": str(home)},
            check=True,
            timeout=240,
        )
    finally:
        server.shutdown()
        server.server_close()
    kinds = {each["kind"]: each for each in Recorder.given}
    assert kinds.keys() == {"Pod", "Service", "NetworkPolicy", "ConfigMap"}
    spec = kinds["Pod"]["spec"]
    (driver,) = spec["containers"]
    assert (driver["image"], spec["serviceAccountName"]) == ("REGISTRY/prices:1", "spark")
    assert driver["args"][-2:] == ["local:///opt/jobs/job.py", "grpc://folds-foldflight:8815"]
    validate = Path(sys.executable).with_name("kubernetes-validate")
    for kind, each in kinds.items():
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps(each))
        for version in KUBERNETES:
            run(str(validate), "-k", version, "--strict", str(file))
