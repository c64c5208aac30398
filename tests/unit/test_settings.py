"""Settings come from flags, environment and file, through one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tables import settings_table
from foldflight.errors import RejectedError
from foldflight.server.limits import Memory, container_room, memory_limit_of
from foldflight.server.run.settings import SETTINGS, Settings, load_settings


def test_defaults_parse_to_themselves() -> None:
    """Every default is accepted by its own parser."""
    for setting in SETTINGS.values():
        if setting.default is not None:
            assert setting.parse(setting.default) == setting.default


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    """A flag takes precedence over a variable, a variable over the file, for each setting."""
    file = tmp_path / "foldflight.toml"
    file.write_text('port = 1\nhost = "10.0.0.1"\ndrain_s = 5\n')
    settings = load_settings(
        {"config": str(file), "port": "3"}, {"FOLDFLIGHT_PORT": "2", "FOLDFLIGHT_HOST": "10.0.0.2"}
    )
    assert (settings.port, settings.host, settings.drain_s) == (3, "10.0.0.2", 5.0)
    assert settings.workers == Settings().workers


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("message_bytes_max", "64MiB", 64 * 2**20),
        ("message_bytes_max", "1000", 1000),
        ("health_port", "off", None),
        ("modules", "a.b, c", ("a.b", "c")),
        ("drain_s", "0.5", 0.5),
        ("memory_limit", "2 GiB", 2**31),
        ("memory_limit", "off", 0),
        ("state_keys", "0123456789abcdef,fedcba9876543210", ("0123456789abcdef", "fedcba9876543210")),
    ],
)
def test_texts_become_typed_values(name: str, text: str, value: object) -> None:
    """A variable's text becomes the setting's type and unit."""
    assert getattr(load_settings({}, {SETTINGS[name].variable: text}), name) == value


@pytest.mark.parametrize(
    ("flags", "environment", "mentions"),
    [
        ({"port": "70000"}, {}, ["flag --port", "0 to 65535", "'70000'"]),
        ({}, {"FOLDFLIGHT_WORKERS": "zero"}, ["variable FOLDFLIGHT_WORKERS", "1 to 256", "'zero'"]),
        ({}, {"FOLDFLIGHT_PROT": "1"}, ["variable FOLDFLIGHT_PROT", "did you mean FOLDFLIGHT_PORT?"]),
        ({}, {"FOLDFLIGHT_DRAIN_S": "nan"}, ["FOLDFLIGHT_DRAIN_S", "seconds"]),
        ({"log_format": "xml"}, {}, ["flag --log-format", "json, console"]),
        ({"message_bytes_max": "0"}, {}, ["flag --message-bytes-max", "64MiB"]),
        ({"config": "/nowhere.toml"}, {}, ["/nowhere.toml", "No such file"]),
    ],
)
def test_bad_value_names_its_source(flags: dict[str, object], environment: dict[str, str], mentions: list[str]) -> None:
    """An invalid or unknown setting is reported with its source and the remedy."""
    with pytest.raises(RejectedError) as excinfo:
        load_settings(flags, environment)
    assert excinfo.value.code == "SETTINGS"
    for mention in mentions:
        assert mention in excinfo.value.message


def test_file_errors_name_file_and_key(tmp_path: Path) -> None:
    """Errors about an unknown key, a wrong type and invalid TOML name the file."""
    file = tmp_path / "f.toml"
    for content, mention in [
        ("worker = 2", "did you mean workers?"),
        ("port = true", "'port'"),
        ("port =", "not TOML"),
    ]:
        file.write_text(content)
        with pytest.raises(RejectedError, match="SETTINGS") as excinfo:
            load_settings({"config": str(file)}, {})
        assert mention in excinfo.value.message
        assert str(file) in excinfo.value.message


def test_secrets_show_nowhere() -> None:
    """Neither the repr of the settings nor an error shows a key."""
    settings = load_settings(
        {}, {"FOLDFLIGHT_STATE_KEYS": "0123456789abcdef", "FOLDFLIGHT_TOKENS": "hush-hush-hush-hush"}
    )
    assert "0123456789abcdef" not in repr(settings)
    assert "hush-hush" not in repr(settings)
    assert settings.tokens == ("hush-hush-hush-hush",)
    with pytest.raises(RejectedError) as excinfo:
        load_settings({}, {"FOLDFLIGHT_STATE_KEYS": "short-secret"})
    assert "short-secret" not in str(excinfo.value)


def test_a_clients_variables_are_not_settings() -> None:
    """Variables of client commands are not settings; `TOKEN` as a setting is an error with the right name."""
    assert load_settings({}, {"FOLDFLIGHT_CLIENT_TOKEN": "x"}).tokens == ()
    with pytest.raises(RejectedError, match="did you mean FOLDFLIGHT_TOKENS"):
        load_settings({}, {"FOLDFLIGHT_TOKEN": "a token of some length"})


def test_kubernetes_service_links_are_not_settings() -> None:
    """Variables that Kubernetes makes for a Service named foldflight are ignored."""
    links = {
        "FOLDFLIGHT_SERVICE_HOST": "10.96.0.7",
        "FOLDFLIGHT_SERVICE_PORT": "8815",
        "FOLDFLIGHT_SERVICE_PORT_GRPC": "8815",
        "FOLDFLIGHT_PORT": "tcp://10.96.0.7:8815",
        "FOLDFLIGHT_PORT_8815_TCP": "tcp://10.96.0.7:8815",
        "FOLDFLIGHT_PORT_8815_TCP_ADDR": "10.96.0.7",
    }
    assert load_settings({}, links) == Settings()


def test_table_has_every_setting() -> None:
    """The table in the documents is made from the settings."""
    table = settings_table()
    assert table.count("\n") == len(SETTINGS) + 2
    assert "| `--message-bytes-max` | `FOLDFLIGHT_MESSAGE_BYTES_MAX` | `message_bytes_max` | 64MiB | bytes |" in table


def test_the_memory_limit_is_the_containers_share(tmp_path: Path) -> None:
    """Unless it is set or off, each process gets its part of 90 % of the container's memory."""
    assert memory_limit_of(Settings(), tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit_of(Settings(), tmp_path) == 0
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory_limit_of(Settings(workers=3), tmp_path) == 300_000
    assert memory_limit_of(load_settings({"memory_limit": "off"}, {}), tmp_path) == 0
    assert memory_limit_of(load_settings({"memory_limit": "2GiB"}, {}), tmp_path) == 2**31
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    bound = tmp_path / "memory/memory.limit_in_bytes"  # cgroup v1
    bound.write_text("9223372036854771712\n")
    assert memory_limit_of(Settings(), tmp_path) == 0
    bound.write_text("1000\n")
    assert memory_limit_of(Settings(), tmp_path) == 900


def test_the_room_of_a_container_counts_pages_that_the_kernel_can_free(tmp_path: Path) -> None:
    """The limit less the used memory, plus pages of files that were not used lately."""
    assert container_room(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert container_room(tmp_path) is None
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\nactive_file 30\ninactive_file 200\n")
    assert container_room(tmp_path) == 300
    for name in ("memory.max", "memory.current", "memory.stat"):
        (tmp_path / name).unlink()
    old = tmp_path / "memory"  # cgroup v1
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("1000\n")
    (old / "memory.usage_in_bytes").write_text("900\n")
    (old / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 50\n")
    assert container_room(tmp_path) == 150
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert container_room(tmp_path) is None


def test_memory_has_two_marks() -> None:
    """Above 80 % new work is refused, above the limit work is ended; without a limit neither happens."""
    used_bytes = [10]
    memory = Memory(100, lambda: used_bytes[0])
    marks = []
    for used_bytes[0] in (80, 81, 100, 101):
        marks.append((memory.is_tight, memory.is_used_up))
    assert marks == [(False, False), (True, False), (True, False), (True, True)]
    assert not Memory(0, lambda: 2**60).is_tight
    with pytest.raises(RejectedError, match="raise memory_limit or set it to off"):
        Memory(100 << 20, lambda: 90 << 20)
