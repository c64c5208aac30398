"""Consistency of the deployment files with each other and with the code; nothing is started."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.pylock import Pylock
from packaging.utils import canonicalize_name

from foldflight.server.ops.metrics import METRICS
from foldflight.server.run.settings import SETTINGS
from tests.deploy.kit import run

ROOT = Path(__file__).parents[2]
_TEXTS = {".md", ".py", ".sh", ".toml", ".yaml", ".yml", ""}
CHART = ROOT / "helm" / "foldflight"
# What the chart has values of its own for, or nothing to do with.
OF_THE_CHART = {"modules", "host", "port", "health_port", "http_port", "workers", "drain_s", "peers", "ready_file"}
OF_THE_CHART |= {
    "server_id",
    "tokens",
    "tokens_file",
    "tls_cert_file",
    "tls_key_file",
    "tls_client_ca_file",
    "state_keys",
    "bundle_keys",
    "bundle_keys_file",
    "otlp_endpoint",
}
# What a metric's name may be followed by in a query: a histogram's series.
SERIES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
EXPORTED = {name + end for name, row in METRICS.items() for end in SERIES[row.type]}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


VALUES = load(CHART / "values.yaml")
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
RULES = [rule for group in load(CHART / "files/rules.yml")["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((CHART / "dashboards/foldflight.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
COMPOSE = load(ROOT / "docker-compose.yml")


def names_in(expression: str) -> set[str]:
    """Return the metrics in a query: ours, metrics of processes, and recorded ones."""
    result = re.findall(r"\b(?:foldflight[_:]|process_)[a-z0-9_:]+", re.sub(r'"[^"]*"', "", expression))
    return {name for name in result if name != "process_"}


def test_rules_name_exported_metrics() -> None:
    """Each rule uses metrics that a server exports or an earlier rule records, and alerts have a remedy."""
    known_values = set(EXPORTED)
    for rule in RULES:
        assert names_in(rule["expr"]), rule
        assert names_in(rule["expr"]) <= known_values, rule
        known_values.add(rule.get("record", rule.get("alert")))
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert set(rule["annotations"]) == {"summary", "remedy"}


def test_every_rule_has_a_test() -> None:
    """The tests of promtool name each alert and each recorded series."""
    tests_text = (ROOT / "tests/deploy/rules_test.yml").read_text(encoding="utf-8")
    assert [rule for rule in RULES if rule.get("record", rule.get("alert")) not in tests_text] == []


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_dashboard_asks_for_exported_metrics(expression: str) -> None:
    """Each query of the dashboard uses exported series and existing labels, and respects the selection."""
    names = names_in(expression)
    assert names
    assert names <= EXPORTED
    assert expression.count('job=~"$job",instance=~"$server"') == len(re.findall(r"\{[^}]*\}", expression))
    labels = {label for name in names for label in METRICS[re.sub(r"_(bucket|sum|count)$", "", name)].labels}
    grouping_labels = {label.strip() for each in re.findall(r"by \(([^)]*)\)", expression) for label in each.split(",")}
    assert grouping_labels <= labels | {"instance", "job", "le"}


def test_the_dashboard_shows_every_metric() -> None:
    """Every exported metric is on the dashboard, except parts of others."""
    shown_metrics = {re.sub(r"_(bucket|sum|count)$", "", name) for each in EXPRESSIONS for name in names_in(each)}
    details = {name for name in METRICS if name.startswith("process_")} - {"process_cpu_seconds_total"}
    assert set(METRICS) - shown_metrics - details == set()


def test_panels_have_names_places_and_ids_of_their_own() -> None:
    """No panel hides another."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken_cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken_cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken_cells |= cells
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)


def test_the_charts_values_keep_their_schema() -> None:
    """The defaults are valid, and every value of values.yaml is described."""
    jsonschema.validate(VALUES, SCHEMA)
    assert described_paths(VALUES, SCHEMA) == set()


def described_paths(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> set[str]:
    """Return values that the schema lacks, and names in the schema without a value."""
    properties = schema.get("properties")
    if properties is None or path == ".settings":
        return set()
    wrong = {f"{path}.{name}" for name in set(values) ^ set(properties)}
    for name, value in values.items():
        if isinstance(value, dict) and name in properties:
            wrong |= described_paths(value, properties[name], f"{path}.{name}")
    return wrong


def test_the_schema_is_strict_everywhere() -> None:
    """A misspelled value is refused at every depth; only Kubernetes' own objects are not checked."""

    def strict(schema: dict[str, Any], path: str) -> list[str]:
        inner = schema.get("properties", {})
        loose = [path] if inner and schema.get("additionalProperties") is not False else []
        return loose + [each for name, part in inner.items() for each in strict(part, f"{path}.{name}")]

    assert strict(SCHEMA, "") == []


def test_the_chart_takes_every_setting_of_a_server() -> None:
    """A setting is a value of the chart or a key under `settings` with the same name."""
    assert set(SCHEMA["properties"]["settings"]["properties"]) == set(SETTINGS) - OF_THE_CHART
    assert set(SETTINGS) >= OF_THE_CHART


def test_the_charts_readme_is_generated() -> None:
    """helm/generate.py writes the table of values, and every value has a description."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "helm/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert (CHART / "README.md").read_text(encoding="utf-8") == generate.readme(text)
    table = generate.values_table(text)
    assert [path for path, _, meaning in table if not meaning] == []
    assert {path.partition(".")[0] for path, _, _ in table} == set(VALUES)


def test_versions_agree() -> None:
    """The chart deploys the version of this repository."""
    chart = load(CHART / "Chart.yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["appVersion"] == project["version"]


def test_compose_publishes_on_the_loopback_only() -> None:
    """All published ports are bound to the loopback address."""
    published_ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert len(published_ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in published_ports)


def test_compose_gives_a_drain_its_time() -> None:
    """A container is not killed before the drain time is over, and has a read-only file system and no capabilities."""
    server = COMPOSE["services"]["server"]
    assert int(server["stop_grace_period"].rstrip("s")) > server["environment"]["FOLDFLIGHT_DRAIN_S"]
    variables = {setting.variable for setting in SETTINGS.values()}
    assert set(server["environment"]) <= variables
    for service in COMPOSE["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_compose_starts_again_what_dies() -> None:
    """Services are restarted when they end, unless they were stopped; the job is not."""
    restarts = {name: service.get("restart") for name, service in COMPOSE["services"].items()}
    assert restarts.pop("spark") is None
    assert set(restarts.values()) == {"unless-stopped"}


def test_the_balancer_ends_no_stream_by_itself() -> None:
    """Envoy has no timeout for streams, and does not ping servers, because pings would end idle streams."""
    envoy = load(ROOT / "deploy/envoy.yaml")["static_resources"]
    flight = next(each for each in envoy["listeners"] if each["name"] == "flight")
    manager = flight["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["stream_idle_timeout"] == manager["request_timeout"] == "0s"
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    assert route["timeout"] == "0s"
    servers = next(each for each in envoy["clusters"] if each["name"] == "servers")
    assert servers["lb_policy"] == "LEAST_REQUEST"
    assert "connection_keepalive" not in json.dumps(servers)
    endpoint = servers["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["health_check_config"]["port_value"] == SETTINGS["health_port"].default


def test_the_balancers_admin_is_its_own() -> None:
    """The administration port of Envoy is not reachable from its network."""
    admin = load(ROOT / "deploy/envoy.yaml")["admin"]["address"]["socket_address"]
    assert admin["address"] == "127.0.0.1"
    assert f"{admin['address']}/{admin['port_value']}" in COMPOSE["services"]["balancer"]["healthcheck"]["test"][3]


def test_no_file_names_a_registry_of_packages() -> None:
    """Images use the package index for which pip is configured."""
    for name in ("Dockerfile", "docker-compose.yml", "tests/deploy/Dockerfile"):
        assert not re.search(
            r"https?://|index-url|^# *syntax=", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE
        )


def locked_packages(name: str) -> dict[tuple[str, str], set[str]]:
    """Return the hashes of each (package, version) in a file of requirements."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    rows = [line.split(" --hash=sha256:") for line in text.splitlines()]
    heads = [row[0].split(";")[0].strip().split("==") for row in rows]
    return {(head[0], head[1]): {digest.strip() for digest in row[1:]} for head, row in zip(heads, rows, strict=True)}


def test_both_forms_of_the_lock_agree() -> None:
    """pylock.toml has the versions and hashes of requirements.txt, and names no host."""
    text = (ROOT / "pylock.toml").read_text(encoding="utf-8")
    lock = Pylock.from_dict(tomllib.loads(text))
    files = {
        (each.name, str(each.version)): [*(each.wheels or ()), *([each.sdist] if each.sdist else ())]
        for each in lock.packages
    }
    digests = {package: {file.hashes["sha256"] for file in present} for package, present in files.items()}
    assert digests == locked_packages("requirements.txt")
    assert all(file.url is None and file.path is not None for present in files.values() for file in present)
    assert not any(each.index for each in lock.packages)


@pytest.mark.parametrize(
    ("bill", "lock"), [("server", "requirements.txt"), ("spark", "requirements-spark.txt")], ids=["server", "spark"]
)
def test_the_bill_of_materials_lists_the_packages_of_the_lock(bill: str, lock: str) -> None:
    """The bill of materials of an image has the packages that are locked for it, and depends on nothing else."""
    content = json.loads((ROOT / f"deploy/{bill}.cdx.json").read_text(encoding="utf-8"))
    components = {(canonicalize_name(each["name"]), each["version"]) for each in content["components"]}
    assert components == set(locked_packages(lock))
    names = {each["bom-ref"] for each in content["components"]} | {content["metadata"]["component"]["bom-ref"]}
    assert {ref for each in content["dependencies"] for ref in each.get("dependsOn", ())} <= names
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert content["metadata"]["component"]["version"] == project["version"]


def test_a_clone_refers_to_no_file_outside_it() -> None:
    """Scripts, tests and documents name no folder beside the repository."""
    beside = "../" + "shared"
    files = run("git", "ls-files", cwd=ROOT).splitlines()
    assert [name for name in files if (ROOT / name).suffix in _TEXTS and beside in (ROOT / name).read_text()] == []


def test_a_missing_tool_is_reported_in_one_line() -> None:
    """Without container engine and programs the run fails with one remedy, and no test fails in a way of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in {"DEPLOY_TOOLS", "BASE_IMAGE"}}
    command = (sys.executable, "-m", "pytest", "-q", "-m", "slow", "tests/deploy/test_chart.py")
    result = run(*command, cwd=ROOT, env=environment, check=False)
    assert result.count("ERROR at setup") == 1
    assert 'run eval "$(tests/deploy/tools.sh start)" first' in result
    assert re.search(r"^\d+ skipped, .*1 error", result, re.MULTILINE), result
