"""The server's settings: one table behind the flags, the environment, the file and the docs.

The fields of `Settings` are the table. A setting `drain_s` is the flag `--drain-s`, the variable `FOLDFLIGHT_DRAIN_S`
and the key `drain_s` of the TOML file. A flag wins over a variable, a variable over the file, the file over the
default. Nothing here reads the environment: the caller passes it in.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foldflight.errors import RejectedError
from foldflight.fold.signing import STATE_KEY_BYTES_MIN
from foldflight.shipping.bundles import BUNDLE_KEY_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "CONFIG_FLAG",
    "CONFIG_VARIABLE",
    "SECRET_BYTES_MIN",
    "SETTINGS",
    "Setting",
    "Settings",
    "load_settings",
    "port_taken",
    "settings_table",
]

PREFIX = "FOLDFLIGHT_"
_CLIENT_PREFIX = "FOLDFLIGHT_CLIENT_"  # options of commands that call servers
CONFIG_FLAG = "--config"
CONFIG_VARIABLE = "FOLDFLIGHT_CONFIG"
# Of tokens, too.
SECRET_BYTES_MIN = max(STATE_KEY_BYTES_MIN, BUNDLE_KEY_BYTES_MIN)

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
# Kubernetes gives every pod variables for each Service; one named "foldflight" must not stop the server from starting.
_SERVICE_LINK = re.compile(r"FOLDFLIGHT_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004  (the caller knows the source)
    return value


def _optional_text(value: object) -> str | None:
    return _text(value) or None


def _names(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError("expected names, separated by commas or as a list")
    return tuple(item.strip() for item in items if item.strip())


def _secrets(value: object) -> tuple[str, ...]:
    keys = _names(value)
    if any(len(key.encode()) < SECRET_BYTES_MIN for key in keys):
        raise ValueError(f"each key needs at least {SECRET_BYTES_MIN} bytes")
    return keys


def _integer(lowest: int, highest: int | None = None) -> Callable[[object], int]:
    bound = f"a whole number of at least {lowest}" if highest is None else f"a whole number from {lowest} to {highest}"

    def parse(value: object) -> int:
        try:
            number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or number < lowest or (highest is not None and number > highest):
            raise ValueError(f"expected {bound}")
        return number

    return parse


def _port(value: object) -> int:
    return _integer(0, 65535)(value)


def _port_or_off(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "off"):
        return None
    try:
        return _port(value)
    except ValueError:
        raise ValueError("expected a whole number from 0 to 65535, or off") from None


def _folder_or_off(value: object) -> str | None:
    text = _optional_text(value) if value is not None else None
    return None if text is None or text.strip().lower() == "off" else text


def _seconds(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError("expected a number of seconds, 0 or more")
    return number


def _bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZES or int(match[1]) == 0:
        raise ValueError("expected a size such as 67108864, 64MiB or 2GiB")
    return int(match[1]) * _SIZES[match[2].lower()]


def _bytes_or_off(value: object) -> int:
    return 0 if isinstance(value, str) and value.strip().lower() == "off" else _bytes(value)


def _choice(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return str(value)

    return parse


def _setting(default: Any, parse: Callable[[object], Any], doc: str, *, unit: str = "", secret: bool = False) -> Any:
    return dataclasses.field(
        default=default, repr=not secret, metadata={"parse": parse, "doc": doc, "unit": unit, "secret": secret}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server is told to do; every field has a default, a unit in its name or its doc, and one parser."""

    modules: tuple[str, ...] = _setting((), _names, "Modules with functions to serve (the arguments of `serve`).")
    host: str = _setting("127.0.0.1", _text, "Address to bind all ports to; 0.0.0.0 in a container.")
    port: int = _setting(8815, _port, "Port of Arrow Flight; 0 takes a free one.")
    health_port: int | None = _setting(8816, _port_or_off, "Port of grpc.health.v1; 0 takes a free one; off: none.")
    http_port: int | None = _setting(
        8817, _port_or_off, "Port of the status page, /metrics, /healthz and /readyz; 0 or off as above."
    )
    workers: int = _setting(1, _integer(1, 256), "Processes that fold; above 1, a parent relays connections to them.")
    ready_file: str | None = _setting(
        None, _optional_text, "File to write one JSON line with the actual ports to, once the server accepts."
    )
    server_id: str | None = _setting(
        None, _optional_text, "Name of this server in Opened and logs; default host and pid."
    )
    tokens: tuple[str, ...] = _setting(
        (),
        _secrets,
        "Bearer tokens, separated by commas: each Flight call must carry one; none: all may call.",
        secret=True,
    )
    tokens_file: str | None = _setting(
        None,
        _optional_text,
        "File with a bearer token on each line, then the functions it opens (none: all); read again when it changes.",
    )
    tls_cert_file: str | None = _setting(None, _optional_text, "Certificate of this server, PEM; none: no TLS.")
    tls_key_file: str | None = _setting(None, _optional_text, "Key of that certificate, PEM.")
    tls_client_ca_file: str | None = _setting(
        None, _optional_text, "Certificates, PEM, of who signs clients' certificates; clients must have one then."
    )
    state_keys: tuple[str, ...] = _setting(
        (),
        _secrets,
        "Keys that sign pickled states, separated by commas: the first signs, all verify. The same for a whole fleet.",
        secret=True,
    )
    bundle_keys: tuple[str, ...] = _setting(
        (),
        _secrets,
        "Keys, separated by commas: functions that an engine ships, signed with one of them, are run; none: none are.",
        secret=True,
    )
    bundle_keys_file: str | None = _setting(
        None, _optional_text, "File with a bundle key on each line; read again when it changes."
    )
    peers: tuple[str, ...] = _setting(
        (),
        _names,
        "Names that resolve to the servers of the fleet (host, or host:port of their HTTP pages); status shows them.",
    )
    compiled_folder: str | None = _setting(
        "user",
        _folder_or_off,
        "Folder that keeps compiled functions for the next process; user: the user's cache folder (NUMBA_CACHE_DIR, "
        "XDG_CACHE_HOME or ~/.cache); off: none.",
    )
    log_format: str = _setting("json", _choice("json", "console"), "Format of the log on stderr: json or console.")
    log_level: str = _setting(
        "info",
        _choice("debug", "info", "warning", "error"),
        "Lowest level that is logged: debug, info, warning, error.",
    )
    exchanges_max: int = _setting(64, _integer(1), "Open exchanges per process; one more is OVERLOADED.")
    message_bytes_max: int = _setting(64 * 2**20, _bytes, "Size of one frame, either way.", unit="bytes")
    slots_max: int = _setting(
        4_194_304, _integer(1, 2**31 - 1), "Groups of one exchange, times its calls.", unit="slots"
    )
    state_bytes_max: int = _setting(16 * 2**20, _bytes, "Size of one call's state of one group.", unit="bytes")
    exchange_state_bytes_max: int = _setting(2 * 2**30, _bytes, "Size of all states of one exchange.", unit="bytes")
    bundle_bytes_max: int = _setting(
        4 * 2**20, _bytes, "Size of all bundles of functions that one exchange brings.", unit="bytes"
    )
    memory_limit: int | None = _setting(
        None,
        _bytes_or_off,
        "Memory of each process: from 80 % on it takes no new exchange, above it the largest one is ended; off: no "
        "bound; default 90 % of the container's, divided by the workers.",
        unit="bytes",
    )
    fold_s_max: float = _setting(
        50.0, _seconds, "Time that functions may take for one frame, then they are interrupted; 0: any.", unit="seconds"
    )
    idle_s_max: float = _setting(600.0, _seconds, "Time without a frame after which an exchange ends.", unit="seconds")
    age_s_max: float = _setting(
        3600.0, _seconds, "Age at which an exchange is told to reopen elsewhere.", unit="seconds"
    )
    drain_s: float = _setting(30.0, _seconds, "Time that open exchanges get to leave after SIGTERM.", unit="seconds")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the table, as flags, environment, file and docs need it."""

    name: str
    default: Any
    unit: str
    doc: str
    secret: bool
    parse: Callable[[object], Any]

    @property
    def flag(self) -> str:
        """Return the command line's spelling, such as `--drain-s`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return the environment's spelling, such as `FOLDFLIGHT_DRAIN_S`."""
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """Return the default as one would write it."""
        if self.default is None:
            return "none"
        if self.name.endswith("_bytes_max"):
            return f"{self.default // 2**20}MiB"
        if isinstance(self.default, tuple):
            return ",".join(self.default) or "none"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


SETTINGS: Mapping[str, Setting] = {
    field.name: Setting(field.name, field.default, **field.metadata) for field in dataclasses.fields(Settings)
}


def load_settings(flags: Mapping[str, object], environment: Mapping[str, str]) -> Settings:
    """Combine flags, environment and file into settings.

    Args:
        flags: Setting name to value, as given on the command line (text or a tuple of texts); None and () mean "not
            given". `config` names the TOML file.
        environment: Variables of the process; those that do not start with `FOLDFLIGHT_` are ignored.

    Returns:
        Settings: Every setting, parsed and checked.

    Raises:
        RejectedError: SETTINGS, naming the flag, variable or file and key of the bad value.
    """
    values: dict[str, Any] = {}
    config = flags.get("config") or environment.get(CONFIG_VARIABLE)
    if config:
        values.update(_from_file(Path(str(config))))
    values.update(_from_environment(environment))
    for name, value in flags.items():
        if name != "config" and value is not None and value != ():
            values[name] = _parse(_known(name, f"flag --{name}"), value, f"flag {_flag(name)}")
    return Settings(**values)


def port_taken(name: str, host: str, port: int, reason: str | None = None) -> RejectedError:
    """Return the error for a port that cannot be bound; `name` is the setting it came from."""
    setting = SETTINGS[name]
    return RejectedError(
        "SETTINGS",
        f"cannot listen on {host} port {port}: {(reason or 'address already in use').lower()}; choose another with "
        f"{setting.flag} or {setting.variable} (0 takes a free one)",
    )


def settings_table() -> str:
    """Return the settings as a Markdown table, for the docs."""
    lines = ["| flag | variable | file key | default | unit | meaning |", "|---|---|---|---|---|---|"]
    lines.extend(
        f"| `{row.flag}` | `{row.variable}` | `{row.name}` | {row.default_text} | {row.unit or '-'} | {row.doc} |"
        for row in SETTINGS.values()
    )
    return "\n".join(lines) + "\n"


def _flag(name: str) -> str:
    return SETTINGS[name].flag


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RejectedError("SETTINGS", f"the settings file {path} is not TOML: {error}") from None
    values: dict[str, Any] = {}
    for key, value in content.items():
        source = f"key {key!r} of {path}"
        values[key] = _parse(_known(key, source), value, source)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.startswith(_CLIENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.fullmatch(variable):
            continue
        if variable == "FOLDFLIGHT_PORT" and value.startswith(("tcp://", "udp://")):
            continue  # a Service link too
        name = variable.removeprefix(PREFIX).lower()
        values[name] = _parse(_known(name, f"variable {variable}"), value, f"variable {variable}")
    return values


def _known(name: str, source: str) -> Setting:
    if name in SETTINGS:
        return SETTINGS[name]
    close = difflib.get_close_matches(name, SETTINGS, n=1)
    if source.startswith("variable"):
        hint = f"; did you mean {SETTINGS[close[0]].variable}?" if close else ""
    else:
        hint = f"; did you mean {close[0]}?" if close else f"; the settings are {', '.join(SETTINGS)}"
    raise RejectedError("SETTINGS", f"unknown setting: {source}{hint}")


def _parse(setting: Setting, value: object, source: str) -> Any:
    try:
        return setting.parse(value)
    except ValueError as error:
        shown = "" if setting.secret else f", got {value!r}"
        raise RejectedError("SETTINGS", f"bad value of setting {setting.name} ({source}): {error}{shown}") from None
