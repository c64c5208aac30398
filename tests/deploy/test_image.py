"""The image of a server: its user, its file system, ways to add functions, health and drain."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from testcontainers.core.container import DockerContainer

from foldflight.client import FlightTransport, close_connections
from foldflight.exchange.failover.coordinator import FailoverBounds
from tests.deploy.kit import COUNT, docker
from tests.wire.kit import end_epoch, eventually, open_request, rows

pytestmark = [pytest.mark.every_turn, pytest.mark.usefixtures("images")]

IMAGE = "foldflight/server"
RESTRICTED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
FUNCTION = '''
from foldflight import udaf


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Longest:
    """Return the greatest value."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator, value):
        accumulator[0] = max(accumulator[0], value)

    def get_value(self, accumulator):
        return accumulator[0]
'''


class Server(DockerContainer):
    """A server with a read-only file system except for /tmp, and without capabilities."""

    def __init__(self, image: str = IMAGE, *command: str, **more: object) -> None:
        super().__init__(image, **more)
        self.with_kwargs(**RESTRICTED).with_tmpfs_mount("/tmp")
        self.with_exposed_ports(8815, 8817)  # the private container engine publishes on the loopback only
        if command:
            self.with_command(list(command))

    def page(self, path: str) -> tuple[int, str]:
        """Fetch a page of the HTTP port: status and body; 0 if nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.get_exposed_port(8817)}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.get_exposed_port(8815)}"

    def await_ready(self) -> None:
        assert eventually(lambda: self.page("/readyz")[0] == 200), self.get_logs()

    def functions(self) -> dict[str, str]:
        """Return the functions that it serves."""
        result: dict[str, str] = json.loads(self.page("/status/own")[1])["functions"]
        return result


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    yield
    close_connections()


def test_the_image_has_labels_a_user_and_a_health_check() -> None:
    """The image has labels, a numeric user and a health check, and is no larger than its libraries require."""
    (facts,) = json.loads(docker("inspect", IMAGE))
    config = facts["Config"]
    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert {"title", "description", "version", "revision"} <= {key.rpartition(".")[2] for key in config["Labels"]}
    assert set(config["ExposedPorts"]) == {"8815/tcp", "8816/tcp", "8817/tcp"}
    assert config["Healthcheck"]["Test"][0] == "CMD"
    (base,) = json.loads(docker("inspect", os.environ["BASE_IMAGE"]))
    # Arrow and LLVM are 330 MB of it; headers and tests are not in it.
    assert facts["Size"] - base["Size"] < 535e6
    look = "import pathlib, pyarrow; print((pathlib.Path(pyarrow.__file__).parent / 'include').exists())"
    assert docker("run", "--rm", "--entrypoint", "python", IMAGE, "-c", look) == "False"


def test_the_bill_of_materials_lists_what_is_installed() -> None:
    """The bill of materials of each image names the packages of its environment, with their versions."""
    program = (
        "import importlib.metadata as m, json, sys;"
        "bill = json.load(open(sys.prefix + '/share/sbom/foldflight.cdx.json'));"
        "name = lambda text: text.lower().replace('_', '-');"
        "listed = {(name(each['name']), each['version']) for each in bill['components']};"
        "installed = {(name(each.name), each.version) for each in m.distributions()};"
        "print(json.dumps([sorted(listed - installed), sorted({name for name, _ in installed - listed})]))"
    )
    for image in (IMAGE, "foldflight/spark"):
        missing_names, unlisted_names = json.loads(
            docker("run", "--rm", "--entrypoint", "python", image, "-c", program)
        )
        assert missing_names == []
        assert set(unlisted_names) <= {"foldflight", "pip", "setuptools"}


def test_the_image_folds_without_rights_and_with_bounded_resources() -> None:
    """Without a user name, with a read-only root file system and with workers, it serves on the CPUs of its quota."""
    server = Server(IMAGE, "serve", "--workers", "2").with_kwargs(**RESTRICTED, nano_cpus=10**9, mem_limit="1g")
    with server:
        server.await_ready()
        with FlightTransport([server.url], deadline_s=30).open(open_request(COUNT)) as exchange:
            exchange.chunk(rows((0, 0), (0, 0)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [2]
        metrics = server.page("/metrics")[1]
        name = server.get_wrapped_container().id
        assert docker("exec", name, "id", "-u") == "10001"
        assert "Read-only" in docker("exec", name, "touch", "/functions/x", check=False)
        assert "Read-only" in docker("exec", name, "touch", "/opt/foldflight/x", check=False)
    assert "foldflight_cpus 1.0" in metrics
    assert "foldflight_workers 2.0" in metrics


def test_functions_come_from_a_folder(tmp_path: Path) -> None:
    """A module in a mounted folder that the variable names is served."""
    (tmp_path / "my_functions.py").write_text(FUNCTION)
    tmp_path.chmod(0o755)
    server = Server().with_volume_mapping(str(tmp_path), "/functions", "ro")
    with server.with_env("FOLDFLIGHT_MODULES", "my_functions"):
        server.await_ready()
        assert "longest" in server.functions()


def test_functions_come_from_a_derived_image(tmp_path: Path) -> None:
    """An image derived from ours, with a module copied into it, serves the module without further settings."""
    (tmp_path / "my_functions.py").write_text(FUNCTION)
    (tmp_path / "Dockerfile").write_text(
        f"FROM {IMAGE}\nCOPY my_functions.py /functions/\nENV FOLDFLIGHT_MODULES=my_functions\n"
    )
    docker("build", "--quiet", "--tag", "foldflight-derived", str(tmp_path))
    with Server("foldflight-derived") as server:
        server.await_ready()
        assert "longest" in server.functions()


@pytest.mark.parametrize("lines", ["{install}", "USER root\n{install}\nUSER 10001:10001"], ids=["as it is", "as root"])
def test_functions_come_from_a_package_that_a_derived_image_installs(tmp_path: Path, lines: str) -> None:
    """`RUN pip install` puts a package where the server finds it."""
    with zipfile.ZipFile(tmp_path / "packaged-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("packaged/functions.py", FUNCTION)
        wheel.writestr("packaged-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: packaged\nVersion: 1.0\n")
        wheel.writestr("packaged-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("packaged-1.0.dist-info/RECORD", "")
    run = lines.format(install="RUN pip install /packages/*.whl")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {IMAGE}\nCOPY *.whl /packages/\n{run}\nENV FOLDFLIGHT_MODULES=packaged.functions\n"
    )
    docker("build", "--quiet", "--tag", "foldflight-packaged", str(tmp_path))
    with Server("foldflight-packaged") as server:
        server.await_ready()
        assert "longest" in server.functions()


def test_the_image_runs_as_any_user() -> None:
    """As on OpenShift, an image runs as an unknown user in the group of root."""
    with Server().with_kwargs(**RESTRICTED, user="1000660000:0") as server:
        server.await_ready()
        with FlightTransport([server.url], deadline_s=30).open(open_request(COUNT)) as exchange:
            exchange.chunk(rows((0, 0), (0, 0)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [2]


def test_a_module_that_is_not_there_ends_the_container_with_the_reason() -> None:
    """A wrong module name is one line of the log, and the server ends."""
    output = docker("run", "--rm", IMAGE, "serve", "no_such_module", check=False)
    assert "no_such_module" in output
    assert "Traceback" not in output


def test_the_container_is_healthy_from_its_start_to_its_drain() -> None:
    """It is healthy when it serves. During a drain it is live but not ready, and afterwards it exits with 0."""
    with Server(IMAGE, "serve", "--drain-s", "300") as server:
        server.await_ready()
        name = server.get_wrapped_container().id
        health = "{{.State.Health.Status}}"
        assert eventually(lambda: docker("inspect", "--format", health, name) == "healthy")
        transport = FlightTransport([server.url], deadline_s=30, bounds=FailoverBounds(patience_s=0))
        with transport.open(open_request(COUNT)) as exchange:
            exchange.chunk(rows((0, 0)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [1]
            docker("kill", "--signal", "TERM", name)
            assert eventually(lambda: server.page("/readyz")[0] == 503)
            assert server.page("/healthz")[0] == 200
            assert json.loads(server.page("/status/own")[1])["state"] == "draining"
            ask = ["exec", name, "python", "-IS", "/opt/foldflight/healthcheck.py"]
            assert docker(*ask, "/healthz") == ""
            assert "503" in docker(*ask, "/readyz", check=False)
        state = "{{.State.Status}} {{.State.ExitCode}}"
        assert eventually(lambda: docker("inspect", "--format", state, name) == "exited 0")


def test_a_drain_has_an_end() -> None:
    """An exchange that does not end is ended after drain_s, and the exit code tells it."""
    with Server(IMAGE, "serve", "--drain-s", "1") as server:
        server.await_ready()
        name = server.get_wrapped_container().id
        with FlightTransport([server.url], deadline_s=30).open(open_request(COUNT)):
            docker("kill", "--signal", "TERM", name)
            state = "{{.State.Status}} {{.State.ExitCode}}"
            assert eventually(lambda: docker("inspect", "--format", state, name) == "exited 3")
