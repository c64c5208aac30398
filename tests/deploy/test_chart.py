"""The chart, tested with real helm: rendered for several sets of values, linted, packaged and validated."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from foldflight.server.run.settings import load_settings
from tests.deploy.kit import ROOT, run, tool

pytestmark = pytest.mark.every_turn

CHART = ROOT / "helm" / "foldflight"
KUBERNETES = ("1.30", "1.34")
FULL: dict[str, Any] = {
    "functions": {"modules": ["my_functions", "more.functions"], "configMap": "my-functions"},
    "workers": 4,
    "settings": {"exchanges_max": 128, "message_bytes_max": "32MiB", "idle_s_max": 30.5, "log_level": "debug"},
    "auth": {"tokensSecret": "tokens", "stateKeysSecret": "keys", "bundleKeysSecret": "bundle-keys"},
    "tls": {"secret": "certificate", "clientCaSecret": "ca"},
    "resources": {"limits": {"cpu": "4", "memory": "8Gi"}},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    "autoscaling": {"enabled": True, "min": 3, "max": 30},
    "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "data"}}}]},
    "metrics": {part: {"enabled": True} for part in ("serviceMonitor", "rules", "dashboard")},
    "traces": {"endpoint": "http://collector.monitoring:4318"},
    "recordings": {"volume": {"persistentVolumeClaim": {"claimName": "recordings"}}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "folds", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "deploymentAnnotations": {"e": "f"},
    "extraEnv": [{"name": "FOLDFLIGHT_LOG_FORMAT", "value": "console"}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "podSecurityContext": {"runAsUser": 7, "runAsGroup": None, "supplementalGroups": [9]},
    "containerSecurityContext": {"runAsNonRoot": True},
    "routes": {
        "flight": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["folds.example.com"]},
        "status": {"enabled": True, "parentRefs": [{"name": "gateway"}], "annotations": {"g": "h"}},
    },
    "ingress": {
        "flight": {"enabled": True, "className": "nginx", "host": "folds.example.com", "tlsSecret": "public"},
        "status": {"enabled": True, "annotations": {"i": "j"}},
    },
}
_FLEET_PAGE = (ROOT / "docs" / "explanation" / "fleet.md").read_text(encoding="utf-8")
DEVICE: dict[str, Any] = yaml.safe_load(_FLEET_PAGE.partition("```yaml\n")[2].partition("```")[0])
SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "device": DEVICE,
    "full": FULL,
    "keda": {"autoscaling": {"enabled": True, "kind": "keda", "cpuPercent": 0}},
    "page": {"ingress": {"status": {"enabled": True}}},
    "open": {"networkPolicy": {"enabled": False}, "nameOverride": "folds", "replicas": 1, "preStopSeconds": 0},
}


def helm(*arguments: str, check: bool = True) -> str:
    return run(tool("helm"), *arguments, check=check)


def render(values: dict[str, Any], tmp_path: Path, *flags: str) -> list[dict[str, Any]]:
    """Return the objects that the chart renders for these values."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    text = helm("template", "folds", str(CHART), "--namespace", "jobs", "--values", str(file), *flags)
    return [each for each in yaml.safe_load_all(text) if each is not None]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def ways_in(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules of all routes and ingresses."""
    kinds = ("GRPCRoute", "HTTPRoute", "Ingress")
    return [rule for kind in kinds for each in of_kind(objects, kind) for rule in each["spec"]["rules"]]


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = of_kind(objects, "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


@pytest.fixture(params=SETS, ids=str)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    """The objects of the chart for each set of values."""
    return render(SETS[request.param], tmp_path)


def test_lint_is_strict_and_finds_nothing(tmp_path: Path) -> None:
    """`helm lint --strict` of every set of values."""
    for name, values in SETS.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--values", str(file))


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_the_objects(objects: list[dict[str, Any]], version: str, tmp_path: Path) -> None:
    """Each object conforms to the schema of its kind, without unknown fields."""
    foreign = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "GRPCRoute", "HTTPRoute"}
    known_values = [each for each in objects if each["kind"] not in foreign]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(known_values), encoding="utf-8")
    validate = Path(sys.executable).with_name("kubernetes-validate")
    output = run(str(validate), "-k", version, "--strict", str(file))
    assert output.count("passed for resource") == len(known_values)


def test_pods_ask_for_a_device_as_the_page_says(tmp_path: Path) -> None:
    """The values of the page "Which functions belong on a fleet" reach the pods, and other limits stay."""
    pod = pod_of(render(DEVICE, tmp_path))
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}
    assert container["resources"]["requests"]
    assert pod["nodeSelector"] == DEVICE["nodeSelector"]
    assert pod["tolerations"] == DEVICE["tolerations"]
    assert DEVICE["extraEnv"][0] in container["env"]


def test_names_are_unique_and_selectors_match_the_pods(objects: list[dict[str, Any]]) -> None:
    """Names are unique in their kind, labels are the usual ones, and selectors match the pods."""
    assert len({(each["kind"], each["metadata"]["name"]) for each in objects}) == len(objects)
    (deployment,) = of_kind(objects, "Deployment")
    selector = deployment["spec"]["selector"]["matchLabels"]
    pod_labels = deployment["spec"]["template"]["metadata"]["labels"]
    customary = {f"app.kubernetes.io/{each}" for each in ("name", "instance", "component")}
    assert set(selector) == customary
    assert selector.items() <= pod_labels.items()
    for each in objects:
        labels = each["metadata"]["labels"]
        assert customary | {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"} <= set(labels)
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    for service in services.values():
        assert service["spec"]["selector"] == selector
    backends = re.findall(r'"name": "([^"]+)", "port": (?:{"number": )?(\d+)', json.dumps(ways_in(objects)))
    assert len(backends) == sum(text.count("backend") for text in map(json.dumps, ways_in(objects)))
    for name, port in backends:
        assert int(port) in {each["port"] for each in services[name]["spec"]["ports"]}
    (test,) = of_kind(objects, "Pod")
    assert not selector.items() <= test["metadata"]["labels"].items(), "the test's pod must not get traffic"


def test_pods_are_restricted(objects: list[dict[str, Any]]) -> None:
    """Every pod meets the restricted standard: no root, no capabilities, a read-only root file system."""
    for pod in (pod_of(objects), of_kind(objects, "Pod")[0]["spec"]):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            writable = [path for path, mount in mounts.items() if not mount.get("readOnly")]
            assert writable == ["/tmp", *(["/recordings"] if "/recordings" in mounts else [])]


def test_a_server_gets_the_time_to_drain(objects: list[dict[str, Any]]) -> None:
    """A server is killed only after pause and drain, replaced before it goes, and probed at the right pages."""
    pod = pod_of(objects)
    (server,) = pod["containers"]
    settings = settings_of(objects)
    pause_s = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause_s + settings["drain_s"]
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    probes = {name: server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}


def settings_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings file that the chart writes, as TOML reads it."""
    (config,) = [each for each in of_kind(objects, "ConfigMap") if "foldflight.toml" in each["data"]]
    return tomllib.loads(config["data"]["foldflight.toml"])


def test_the_server_reads_the_settings_file(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    """`foldflight serve` loads the settings file of the chart; the container has the same ports."""
    (config,) = [each for each in of_kind(objects, "ConfigMap") if "foldflight.toml" in each["data"]]
    file = tmp_path / "foldflight.toml"
    file.write_text(config["data"]["foldflight.toml"], encoding="utf-8")
    settings = load_settings({"config": str(file)}, {})
    (server,) = pod_of(objects)["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"flight": settings.port, "health": settings.health_port, "http": settings.http_port}
    assert {*settings.peers} < {service["metadata"]["name"] for service in of_kind(objects, "Service")}
    assert settings.host == "0.0.0.0"


def test_values_reach_the_server(tmp_path: Path) -> None:
    """Modules, settings, secrets and certificates are where the server looks for them."""
    objects = render(FULL, tmp_path)
    settings = settings_of(objects)
    assert {name: settings[name] for name in FULL["settings"]} == FULL["settings"]
    assert settings["workers"] == 4
    pod = pod_of(objects)
    (server,) = pod["containers"]
    assert server["args"] == ["serve", "my_functions", "more.functions"]
    volume_of_path = {mount["mountPath"]: mount["name"] for mount in server["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert secrets[volume_of_path[str(Path(settings["tokens_file"]).parent)]] == "tokens"
    assert secrets[volume_of_path[str(Path(settings["bundle_keys_file"]).parent)]] == "bundle-keys"
    assert secrets[volume_of_path[str(Path(settings["tls_cert_file"]).parent)]] == "certificate"
    assert secrets[volume_of_path[str(Path(settings["tls_client_ca_file"]).parent)]] == "ca"
    (keys,) = [each for each in server["env"] if each["name"] == "FOLDFLIGHT_STATE_KEYS"]
    assert keys["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "state-keys"}
    ports = [port for each in of_kind(objects, "Service") for port in each["spec"]["ports"] if port["name"] == "flight"]
    assert len(ports) == 2
    assert all("appProtocol" not in port for port in ports), "with TLS the port is no cleartext HTTP/2"


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("http://collector.monitoring:4318", 4318), ("https://collector.example.com/otlp", 443), ("http://[fd00::7]", 80)],
)
def test_servers_reach_the_collector_of_traces(endpoint: str, port: int, tmp_path: Path) -> None:
    """The endpoint is a setting, and the network policy permits its port, which it does not without an endpoint."""
    (without,) = of_kind(render({}, tmp_path), "NetworkPolicy")
    objects = render({"traces": {"endpoint": endpoint}}, tmp_path)
    assert settings_of(objects)["otlp_endpoint"] == endpoint
    (policy,) = of_kind(objects, "NetworkPolicy")
    added_rules = [each for each in policy["spec"]["egress"] if each not in without["spec"]["egress"]]
    assert added_rules == [{"ports": [{"port": port, "protocol": "TCP"}]}]


def test_recordings_are_written_only_into_a_volume(tmp_path: Path) -> None:
    """With a volume it is mounted, and the setting names its folder; without one nothing is recorded."""
    assert "record" not in settings_of(render({}, tmp_path))
    objects = render({"recordings": {"volume": {"emptyDir": {"sizeLimit": "2Gi"}}}}, tmp_path)
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert {"name": "recordings", "emptyDir": {"sizeLimit": "2Gi"}} in pod["volumes"]
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "recordings")
    assert settings_of(objects)["record"] == mount["mountPath"]


def test_a_change_of_settings_makes_new_pods(tmp_path: Path) -> None:
    """The pods have a checksum of the settings file, so that a change of settings causes a rollout, and only then."""

    def checksum(values: dict[str, Any]) -> str:
        (deployment,) = of_kind(render(values, tmp_path), "Deployment")
        result: str = deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return result

    assert checksum({}) == checksum({"replicas": 5})
    assert checksum({}) != checksum({"settings": {"exchanges_max": 3}})


def test_an_upgrade_changes_nothing_that_cannot_change(tmp_path: Path) -> None:
    """Fields that Kubernetes does not allow to change stay the same for all values, also in the next version."""
    fixed_values = {"nameOverride": "", "fullnameOverride": ""}

    def immutable_fields(objects: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
        result: dict[tuple[str, str], Any] = {}
        for each in objects:
            spec = each.get("spec", {})
            if each["kind"] == "Deployment":
                result["Deployment", each["metadata"]["name"]] = spec["selector"]
            if each["kind"] == "Service":
                result["Service", each["metadata"]["name"]] = (spec.get("clusterIP"), spec["selector"])
        return result

    before = immutable_fields(render({}, tmp_path))
    assert len(before) == 4
    for values in SETS.values():
        assert (
            before.items()
            <= immutable_fields(render({**values, **fixed_values, "image": {"tag": "9.9.9"}}, tmp_path)).items()
        )


def test_a_node_pulls_the_image_of_the_digest(tmp_path: Path) -> None:
    """With a digest, a node pulls exactly that image; another text is refused before anything is installed."""
    digest = "sha256:" + "0f" * 32
    objects = render({"image": {"tag": "2", "digest": digest}}, tmp_path)
    assert pod_of(objects)["containers"][0]["image"] == f"foldflight/server:2@{digest}"
    assert pod_of(render({"image": {"tag": "2"}}, tmp_path))["containers"][0]["image"] == "foldflight/server:2"
    result = helm("template", "folds", str(CHART), "--set", "image.digest=latest", check=False)
    assert "digest" in result
    assert "Deployment" not in result


def test_scaling_owns_the_number_of_servers(tmp_path: Path) -> None:
    """With autoscaling the Deployment has no number of replicas. Both kinds scale by open exchanges, down slowly."""
    (deployment_of_seven,) = of_kind(render({"replicas": 7}, tmp_path), "Deployment")
    assert deployment_of_seven["spec"]["replicas"] == 7
    for kind, name in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        objects = render({"autoscaling": {"enabled": True, "kind": kind}}, tmp_path)
        (deployment,) = of_kind(objects, "Deployment")
        assert "replicas" not in deployment["spec"]
        (scaler,) = of_kind(objects, name)
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        text = json.dumps(scaler)
        assert "foldflight_exchanges_open" in text
        assert '"stabilizationWindowSeconds": 600' in text
        others = {"HorizontalPodAutoscaler", "ScaledObject"} - {name}
        assert not any(of_kind(objects, other) for other in others)


def test_users_can_add_settings_that_the_chart_does_not_have(tmp_path: Path) -> None:
    """Additional variables, volumes and mounts are added to the server, and annotations to the Deployment."""
    objects = render(FULL, tmp_path)
    pod = pod_of(objects)
    (server,) = pod["containers"]
    assert FULL["extraEnv"][0] in server["env"]
    assert FULL["extraVolumeMounts"][0] in server["volumeMounts"]
    assert FULL["extraVolumes"][0] in pod["volumes"]
    assert {mount["name"] for mount in server["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["metadata"]["annotations"] == FULL["deploymentAnnotations"]


def test_security_contexts_can_be_changed_field_by_field(tmp_path: Path) -> None:
    """A given field replaces the default, null removes a field, and others stay, also in the pod of the test."""
    objects = render(FULL, tmp_path)
    for pod in (pod_of(objects), of_kind(objects, "Pod")[0]["spec"]):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 7,
            "fsGroup": 10001,
            "supplementalGroups": [9],
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert pod["containers"][0]["securityContext"]["runAsNonRoot"] is True
    own = pod_of(render({}, tmp_path))["securityContext"]
    assert [own[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [10001] * 3


def test_openshift_chooses_the_user(tmp_path: Path) -> None:
    """On a cluster that assigns users to projects, the chart names no user unless the values do."""
    for values, expected in (({}, None), ({"podSecurityContext": {"runAsUser": 5}}, 5)):
        security = pod_of(render(values, tmp_path, "--api-versions", "security.openshift.io/v1"))["securityContext"]
        assert security.get("runAsUser") == expected
        assert {"runAsGroup", "fsGroup"}.isdisjoint(security)
        assert security["runAsNonRoot"] is True


def test_the_chart_can_be_a_dependency(tmp_path: Path) -> None:
    """A parent chart sets global values and a condition, and the values of this chart under its name."""
    parent = tmp_path / "parent"
    shutil.copytree(CHART, parent / "charts" / "foldflight")
    dependency = {"name": "foldflight", "version": "1.0.0", "condition": "foldflight.enabled"}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump({**chart, "icon": "file:///icon.png"}), encoding="utf-8")
    own = {"enabled": True, "replicas": 5, "podSecurityContext": {"runAsUser": 5}}
    values = {"global": {"region": "north", "imageRegistry": "images.example.com"}, "foldflight": own}
    (parent / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    objects = [each for each in yaml.safe_load_all(helm("template", "release", str(parent))) if each]
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 5
    assert pod_of(objects)["securityContext"]["runAsUser"] == 5
    assert not helm("template", "release", str(parent), "--set", "foldflight.enabled=false").strip()


def test_routes_and_ingresses_expose_calls_and_the_status_page_only(tmp_path: Path) -> None:
    """Routes and ingresses lead calls to the servers; only the status page and its data are exposed of the pages."""
    objects = render(FULL, tmp_path)
    (grpc,) = of_kind(objects, "GRPCRoute")
    assert grpc["spec"]["hostnames"] == ["folds.example.com"]
    assert grpc["spec"]["parentRefs"] == [{"name": "gateway"}]
    assert grpc["spec"]["rules"][0]["matches"] == [{"method": {"service": "arrow.flight.protocol.FlightService"}}]
    (http,) = of_kind(objects, "HTTPRoute")
    assert http["metadata"]["annotations"] == {"g": "h"}
    assert [match["path"] for match in http["spec"]["rules"][0]["matches"]] == [
        {"type": "Exact", "value": "/"},
        {"type": "Exact", "value": "/status"},
    ]
    flight, page = of_kind(objects, "Ingress")
    assert flight["spec"]["ingressClassName"] == "nginx"
    assert flight["spec"]["tls"] == [{"secretName": "public", "hosts": ["folds.example.com"]}]
    (rule,) = flight["spec"]["rules"]
    assert rule["host"] == "folds.example.com"
    assert [path["path"] for path in rule["http"]["paths"]] == ["/arrow.flight.protocol.FlightService"]
    assert [path["path"] for path in page["spec"]["rules"][0]["http"]["paths"]] == ["/", "/status"]
    assert {"host", "tls"}.isdisjoint(page["spec"]["rules"][0] | page["spec"])
    assert not ways_in(render({}, tmp_path))


class Cluster(ThreadingHTTPServer):
    """The part of the Kubernetes API that helm needs to render a chart: kinds, and Secrets by name."""

    def __init__(self, objects: list[dict[str, Any]], secrets: dict[str, dict[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        kinds = {(each["apiVersion"], each["kind"]) for each in objects} | {("v1", "Secret")}
        groups = sorted({version for version, _ in kinds if "/" in version})
        self.answers: dict[str, Any] = {
            "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in groups]},
        }
        for version in {version for version, _ in kinds}:
            names = [kind for result, kind in kinds if result == version]
            path = f"/apis/{version}" if "/" in version else f"/api/{version}"
            self.answers[path] = {
                "kind": "APIResourceList",
                "groupVersion": version,
                "resources": [
                    {"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]} for kind in names
                ],
            }
        for name, data in secrets.items():
            self.answers[f"/api/v1/namespaces/jobs/secrets/{name}"] = {
                "kind": "Secret",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "jobs"},
                "data": data,
            }


def _group(version: str) -> dict[str, Any]:
    preferred_version = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [preferred_version], "preferredVersion": preferred_version}


class _Api(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        result = self.server.answers.get(self.path.partition("?")[0])
        not_found_status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        self.send_response(404 if result is None else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(not_found_status if result is None else result).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it)
        pass


def test_a_rotated_secret_makes_new_pods(tmp_path: Path) -> None:
    """A checksum of the pods covers keys and certificates that a server reads once, not those that it reads again."""
    values = {"auth": {"stateKeysSecret": "keys", "tokensSecret": "tokens"}, "tls": {"secret": "certificate"}}

    def checksum(**secrets: str) -> str | None:
        with Cluster(render(values, tmp_path), {name: {"data": value} for name, value in secrets.items()}) as cluster:
            threading.Thread(target=cluster.serve_forever, args=(0.02,), daemon=True).start()
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{cluster.server_port}"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
            file = tmp_path / "kubeconfig"
            file.write_text(yaml.safe_dump(config), encoding="utf-8")
            cluster_options = ("--dry-run=server", "--disable-openapi-validation", "--kubeconfig", str(file))
            (deployment,) = of_kind(render(values, tmp_path, *cluster_options), "Deployment")
            cluster.shutdown()
        result: str | None = deployment["spec"]["template"]["metadata"]["annotations"].get("checksum/secrets")
        return result

    before = checksum(keys="b25l", certificate="b25l", tokens="b25l")
    assert before is not None
    assert checksum(keys="b25l", certificate="b25l", tokens="b25l") == before
    assert checksum(keys="b25l", certificate="b25l", tokens="dHdv") == before
    assert len({before, checksum(keys="dHdv", certificate="b25l"), checksum(keys="b25l", certificate="dHdv")}) == 3
    assert checksum() is None, "Secrets that are not there yet come with the pods that read them"


def test_monitors_rules_and_dashboards_select_the_servers(tmp_path: Path) -> None:
    """The scrape selects the Service of the peers by its labels. Rules and dashboard equal the files."""
    objects = render(FULL, tmp_path)
    (monitor,) = of_kind(objects, "ServiceMonitor")
    expected = monitor["spec"]["selector"]["matchLabels"]
    result = [each for each in of_kind(objects, "Service") if expected.items() <= each["metadata"]["labels"].items()]
    assert [each["metadata"]["name"] for each in result] == ["folds-foldflight-peers"]
    assert result[0]["spec"]["publishNotReadyAddresses"] is True
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in result[0]["spec"]["ports"]}
    (rules,) = of_kind(objects, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((CHART / "files/rules.yml").read_text(encoding="utf-8"))
    (dashboard,) = [each for each in of_kind(objects, "ConfigMap") if "foldflight.json" in each["data"]]
    original = json.loads((CHART / "dashboards/foldflight.json").read_text(encoding="utf-8"))
    assert json.loads(dashboard["data"]["foldflight.json"]) == original


def test_the_network_lets_in_who_is_named(tmp_path: Path) -> None:
    """Clients may connect to Flight, observers to the pages, the fleet to both; a server to DNS, peers, a collector."""
    (policy,) = of_kind(render(FULL, tmp_path), "NetworkPolicy")
    own = {"app.kubernetes.io/instance": "folds", "app.kubernetes.io/name": "foldflight"}
    flight, pages = policy["spec"]["ingress"]
    assert flight["from"] == [*FULL["networkPolicy"]["clients"], {"podSelector": {"matchLabels": own}}]
    assert pages["from"] == [{"podSelector": {}}, {"podSelector": {"matchLabels": own}}]
    assert {port["port"] for port in flight["ports"]} == {"flight", "health"}
    assert [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["egress"]] == [
        [53, 53],
        [8817],
        [4318],
    ]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("replica=3", "replica"),
        ("settings.exchange_max=3", "exchange_max"),
        ("settings.port=3", "port"),
        ("workers=0", "workers"),
        ("autoscaling.kind=cron", "autoscaling"),
        ("tls.clientCaSecret=ca", "tls"),
        ("functions.modules={my-functions}", "functions"),
        ("metrics.serviceMonitor.interval=often", "interval"),
        ("nameOverride=folds.v2", "nameOverride"),
        ("fullnameOverride=2folds", "fullnameOverride"),
        ("autoscaling.enabled=true,autoscaling.min=20", "autoscaling.min is 20"),
        ("routes.flight.enabled=true", "parentRefs"),
        ("ingress.flight.host=https://x", "host"),
        ("extraEnv[0].nmae=X", "extraEnv"),
    ],
)
def test_the_schema_refuses_values_that_cannot_work(value: str, complaint: str) -> None:
    """An unknown or invalid value is refused before anything is installed, and the error names it."""
    command = [tool("helm"), "template", "folds", str(CHART), "--set", value]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode != 0
    assert complaint in process.stderr


def test_names_of_services_have_no_dots() -> None:
    """The name of a release may contain dots (folds.v2), but not the names of its Services."""
    objects = yaml.safe_load_all(helm("template", "folds.v2", str(CHART)))
    names = {each["metadata"]["name"] for each in objects if each and each["kind"] == "Service"}
    assert names == {f"folds-v2-foldflight{part}" for part in ("", "-headless", "-peers")}


def test_the_package_has_all_and_only_the_charts_files(tmp_path: Path) -> None:
    """The package of `helm package` renders the same objects as the folder."""
    helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("foldflight-*.tgz")
    with tarfile.open(package) as archive:
        names = {name.removeprefix("foldflight/") for name in archive.getnames()}
    on_disk = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert names == on_disk
    assert helm("template", "folds", str(package)) == helm("template", "folds", str(CHART))


def test_notes_say_where_to_connect(tmp_path: Path) -> None:
    """The notes show the URL, and say that calls need no token unless one is set."""
    plain = helm("install", "folds", str(CHART), "--dry-run=client", "--namespace", "jobs")
    assert 'connect("grpc://folds-foldflight.jobs:8815")' in plain
    assert "auth.tokensSecret" in plain
    notes_without_network = helm(
        *("install", "folds", str(CHART), "--dry-run=client", "--set", "auth.tokensSecret=t", "--set", "tls.secret=c")
    )
    assert 'connect("grpc+tls://' in notes_without_network.partition("NOTES:")[2]
    assert "auth.tokensSecret" not in notes_without_network.partition("NOTES:")[2]
    assert "networkPolicy" not in plain.partition("NOTES:")[2]
    shut = ("install", "folds", str(CHART), "--dry-run=client", "--set", "metrics.serviceMonitor.enabled=true")
    notes = helm(*shut, "--set", "service.type=LoadBalancer").partition("NOTES:")[2]
    assert "networkPolicy.observers" in notes
    assert "networkPolicy.clients" in notes
    outside = ("install", "folds", str(CHART), "--dry-run=client", "--set", "ingress.status.enabled=true")
    notes = helm(*outside, "--set", "ingress.flight.enabled=true").partition("NOTES:")[2]
    assert "networkPolicy.observers" in notes
    assert "networkPolicy.clients" in notes


def test_promtool_takes_rules_dashboard_and_configuration(tmp_path: Path) -> None:
    """Rules pass their tests, every query of the dashboard parses, and the configuration of Prometheus is valid."""
    promtool = tool("promtool")
    assert "SUCCESS" in run(promtool, "test", "rules", str(ROOT / "tests/deploy/rules_test.yml"))
    dashboard = json.loads((CHART / "dashboards/foldflight.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    plain = [query.replace("$__rate_interval", "5m") for query in queries]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(plain)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    assert f"SUCCESS: {len(queries)} rules found" in run(promtool, "check", "rules", str(file))
    configuration = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text(encoding="utf-8"))
    configuration["rule_files"] = [str(CHART / "files/rules.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    assert "SUCCESS" in run(promtool, "check", "config", str(tmp_path / "prometheus.yml"))


def test_envoy_takes_its_configuration() -> None:
    """Envoy accepts the file."""
    output = run(tool("envoy"), "--mode", "validate", "--config-path", str(ROOT / "deploy/envoy.yaml"), check=False)
    assert "configuration 'deploy/envoy.yaml' OK" in output.replace(str(ROOT) + "/", "")
