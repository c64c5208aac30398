"""Write helm/foldflight/README.md: the values of the chart, from values.yaml and its comments."""

from __future__ import annotations

import re
from pathlib import Path

CHART = Path(__file__).with_name("foldflight")
HEAD = """\
# The chart `foldflight`

A fleet of stateless servers: a Deployment with drain, probes, spread, disruption budget and network policy; Services
for engines, for balancers and for the status of the fleet; and optionally autoscaling, objects of the Prometheus
operator and a dashboard for Grafana.

    helm install folds ./helm/foldflight --set functions.modules={my_functions} --set functions.configMap=my-functions
    helm test folds

Functions are modules: in an image `FROM foldflight/server`, or as files of a ConfigMap
(`kubectl create configmap my-functions --from-file=my_functions.py`).

The Service balances connections. To balance each exchange, put a proxy that speaks HTTP/2 in front of the headless
Service; [`deploy/envoy.yaml`](../../deploy/envoy.yaml) is a configuration of Envoy for that. Engines outside of the
cluster connect through a Gateway (`routes.flight`) or an ingress controller (`ingress.flight`). It must not end
streams that are silent while a job computes, and it must use TLS to the servers if `tls.secret` is set.

*Rotated Secrets.* A server reads tokens and bundle keys again when they change. It reads state keys and certificates
when it starts, so a checksum of their content is an annotation of the pods, and the next `helm upgrade` replaces the
servers one by one. If charts are rendered without a cluster (`helm template`), or certificates are renewed between
upgrades, use a controller that watches Secrets, and set its annotation in `deploymentAnnotations`.

*In another chart.* As a dependency, the chart takes its values under `foldflight`, and has
`condition: foldflight.enabled`.

## Values

Any other value is refused by `values.schema.json`. This table is written by `helm/generate.py` from `values.yaml`.

| value | default | meaning |
|---|---|---|
"""


def values_table(text: str) -> list[tuple[str, str, str]]:
    """Return (path, default, meaning) of each value: a comment describes the line below it."""
    rows: list[tuple[str, str, str]] = []
    path: list[tuple[int, str]] = []
    comment = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment = f"{comment} {stripped[1:].strip()}".strip()
            continue
        match = re.fullmatch(r"(\s*)(\w+):(?: (.+))?", line)
        if match is None:
            comment = ""
            continue
        indent, name, value = len(match[1]), match[2], match[3]
        path = [(depth, each) for depth, each in path if depth < indent] + [(indent, name)]
        if value is not None:
            rows.append((".".join(each for _, each in path), value, comment))
        comment = ""
    return rows


def readme(values: str) -> str:
    """Return the README."""
    lines = [f"| `{path}` | `{default}` | {meaning} |" for path, default, meaning in values_table(values)]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Write it."""
    (CHART / "README.md").write_text(readme((CHART / "values.yaml").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
