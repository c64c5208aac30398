"""The settings of a server: one table for flags, environment variables, the settings file and the documentation.

The fields of `Settings` are the table. A setting `drain_s` is the flag `--drain-s`, the variable `FOLDFLIGHT_DRAIN_S`
and the key `drain_s` of the TOML file. A flag takes precedence over a variable, a variable over the file, and the file
over the default. This module does not read the environment: the caller passes it in.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.fold.pickles import STATE_KEY_BYTES_MIN
from foldflight.shipping.bundles import BUNDLE_KEY_BYTES_MIN
from foldflight.tracing import check_endpoint

PREFIX = "FOLDFLIGHT_"
_CLIENT_PREFIX = "FOLDFLIGHT_CLIENT_"  # options of the commands that call servers
CONFIG_FLAG = "--config"
CONFIG_VARIABLE = "FOLDFLIGHT_CONFIG"
_CGROUP = Path("/sys/fs/cgroup")
# Least length of tokens and keys.
SECRET_BYTES_MIN = max(STATE_KEY_BYTES_MIN, BUNDLE_KEY_BYTES_MIN)

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
# Kubernetes sets variables for each Service in every pod. The variables of a Service named "foldflight" are ignored.
_SERVICE_LINK = re.compile(r"FOLDFLIGHT_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004  (the caller adds the source)
    return value


def _optional_text(value: object) -> str | None:
    return _text(value) or None


def _collector(value: object) -> str | None:
    text = _optional_text(value)
    return None if text is None else check_endpoint(text)


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
    """The settings of a server. Every field has a default, one parser, and its unit in its name or its text."""

    modules: tuple[str, ...] = _setting((), _names, "Modules with functions to serve (the arguments of `serve`).")
    java: tuple[str, ...] = _setting(
        (),
        _names,
        "Java classes to serve as aggregate functions, separated by commas: com.acme.WeightedAvg, of the jar of "
        "java_classpath, or functions.jar::com.acme.WeightedAvg.",
    )
    java_classpath: str | None = _setting(
        None, _optional_text, "The jar with the Java classes that are named without one."
    )
    host: str = _setting("127.0.0.1", _text, "Address on which all ports listen. Use 0.0.0.0 in a container.")
    port: int = _setting(8815, _port, "Port of Arrow Flight. 0: any free port.")
    health_port: int | None = _setting(8816, _port_or_off, "Port of grpc.health.v1. 0: any free port; off: disabled.")
    http_port: int | None = _setting(
        8817,
        _port_or_off,
        "Port of the status page, /metrics, /healthz and /readyz. 0: any free port; off: disabled.",
    )
    workers: int = _setting(
        1, _integer(1, 256), "Number of worker processes that fold. Above 1, a parent relays connections to them."
    )
    ready_file: str | None = _setting(
        None, _optional_text, "File for one JSON line with the actual ports, written when the server is ready."
    )
    server_id: str | None = _setting(
        None, _optional_text, "Name of this server in Opened and logs. Default: host and pid."
    )
    tokens: tuple[str, ...] = _setting(
        (),
        _secrets,
        "Bearer tokens, separated by commas. Each Flight call must have one. Empty: no authentication.",
        secret=True,
    )
    tokens_file: str | None = _setting(
        None,
        _optional_text,
        "File with one bearer token per line, followed by the functions that it permits (none listed: all). It is read "
        "again when it changes.",
    )
    tls_cert_file: str | None = _setting(None, _optional_text, "Certificate of this server, PEM. Empty: no TLS.")
    tls_key_file: str | None = _setting(None, _optional_text, "Private key of the certificate, PEM.")
    tls_client_ca_file: str | None = _setting(
        None, _optional_text, "CA bundle that signs client certificates, PEM. It enables mutual TLS."
    )
    state_keys: tuple[str, ...] = _setting(
        (),
        _secrets,
        "Keys that sign pickled states, separated by commas. The first one signs, all verify. All servers of a fleet "
        "need the same keys.",
        secret=True,
    )
    bundle_keys: tuple[str, ...] = _setting(
        (),
        _secrets,
        "Keys that authorise shipped functions, separated by commas. Empty: shipping is disabled.",
        secret=True,
    )
    bundle_keys_file: str | None = _setting(
        None, _optional_text, "File with one bundle key per line. It is read again when it changes."
    )
    record: str | None = _setting(
        None,
        _optional_text,
        "Folder in which exchanges are recorded when a function raises, to replay them. They have rows and states in "
        "plain form, and are signed with the first bundle key, if there is one. Empty: nothing is recorded.",
    )
    record_bytes_max: int = _setting(
        2**30,
        _bytes,
        "Size of the folder `record`. Open exchanges may take half of it in each process; of the finished recordings "
        "the oldest are removed.",
        unit="bytes",
    )
    record_mask: str = _setting(
        "off", _choice("off", "text"), "What is masked in recordings: text (texts and bytes) or off."
    )
    peers: tuple[str, ...] = _setting(
        (),
        _names,
        "DNS names of the servers of the fleet (host, or host:port of their HTTP port), which the status shows.",
    )
    compiled_folder: str | None = _setting(
        "user",
        _folder_or_off,
        "Folder that caches compiled functions for later processes. user: the cache folder of the user "
        "(NUMBA_CACHE_DIR, XDG_CACHE_HOME or ~/.cache); off: no cache.",
    )
    log_format: str = _setting("json", _choice("json", "console"), "Format of the log on stderr: json or console.")
    log_level: str = _setting(
        "info",
        _choice("debug", "info", "warning", "error"),
        "Lowest level that is logged: debug, info, warning or error.",
    )
    otlp_endpoint: str | None = _setting(
        None,
        _collector,
        "URL of a collector that takes OTLP over HTTP, such as http://collector:4318. Exchanges of engines that send "
        "traces have spans there. Needs the extra otel.",
    )
    exchanges_max: int = _setting(64, _integer(1), "Open exchanges per process. Further ones are refused: OVERLOADED.")
    message_bytes_max: int = _setting(64 * 2**20, _bytes, "Size of one frame in either direction.", unit="bytes")
    slots_max: int = _setting(
        4_194_304, _integer(1, 2**31 - 1), "Groups of one exchange, multiplied by its calls.", unit="slots"
    )
    state_bytes_max: int = _setting(16 * 2**20, _bytes, "Size of the state of one call for one group.", unit="bytes")
    exchange_state_bytes_max: int = _setting(2 * 2**30, _bytes, "Size of all states of one exchange.", unit="bytes")
    bundle_bytes_max: int = _setting(
        4 * 2**20, _bytes, "Size of all bundles of shipped functions of one exchange.", unit="bytes"
    )
    memory_limit: int | None = _setting(
        None,
        _bytes_or_off,
        "Memory of each process. From 80 % of it on, new exchanges are refused; above it, the largest exchange is "
        "ended. off: no limit. Default: 90 % of the container's memory, divided by the workers.",
        unit="bytes",
    )
    fold_s_max: float = _setting(
        50.0,
        _seconds,
        "Time that functions may take for one frame before they are interrupted. 0: no limit.",
        unit="seconds",
    )
    idle_s_max: float = _setting(
        600.0, _seconds, "Time that an exchange waits for its engine before it is ended.", unit="seconds"
    )
    age_s_max: float = _setting(
        3600.0, _seconds, "Age at which the engine is asked to reopen an exchange elsewhere.", unit="seconds"
    )
    drain_s: float = _setting(
        30.0, _seconds, "Time after SIGTERM in which open exchanges may move to other servers.", unit="seconds"
    )


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the table of settings."""

    name: str
    default: Any
    unit: str
    doc: str
    secret: bool
    parse: Callable[[object], Any]

    @property
    def flag(self) -> str:
        """Return the flag on the command line, such as `--drain-s`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return the environment variable, such as `FOLDFLIGHT_DRAIN_S`."""
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """Return the default as text."""
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
        flags: Setting name to value from the command line (text or a tuple of texts). None and () mean "not given".
            `config` is the path of the TOML file.
        environment: Variables of the process. Those that do not start with `FOLDFLIGHT_` are ignored.

    Returns:
        Settings: Every setting, parsed and checked.

    Raises:
        RejectedError: SETTINGS with the flag, the variable, or the file and key of the bad value.
    """
    values: dict[str, Any] = {}
    config = flags.get("config") or environment.get(CONFIG_VARIABLE)
    if config:
        values.update(_from_file(Path(str(config))))
    values.update(_from_environment(environment))
    for name, value in flags.items():
        if name != "config" and value is not None and value != ():
            values[name] = _parse(_check_name(name, f"flag --{name}"), value, f"flag {SETTINGS[name].flag}")
    return Settings(**values)


def compiled_folder_of(text: str | None) -> Path | Literal["user"] | None:
    """Return the folder that the setting `compiled_folder` names; `user`: in the user's cache folder, None: off."""
    return None if text is None else "user" if text == "user" else Path(text)


def port_in_use_error(name: str, host: str, port: int, reason: str | None = None) -> RejectedError:
    """Return the error for a port that cannot be bound. `name` is the setting of the port."""
    setting = SETTINGS[name]
    return RejectedError(
        "SETTINGS",
        f"cannot listen on {host} port {port}: {(reason or 'address already in use').lower()}; choose another port "
        f"with {setting.flag} or {setting.variable} (0: any free port)",
    )


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
        values[key] = _parse(_check_name(key, source), value, source)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.startswith(_CLIENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.fullmatch(variable):
            continue
        if variable == "FOLDFLIGHT_PORT" and value.startswith(("tcp://", "udp://")):
            continue  # also a variable of a Kubernetes Service
        name = variable.removeprefix(PREFIX).lower()
        values[name] = _parse(_check_name(name, f"variable {variable}"), value, f"variable {variable}")
    return values


def _check_name(name: str, source: str) -> Setting:
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
        value_text = "" if setting.secret else f", got {value!r}"
        raise RejectedError(
            "SETTINGS", f"bad value of setting {setting.name} ({source}): {error}{value_text}"
        ) from None


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Return the number of CPUs that this process may use, by its CPU affinity and the quota of its container."""
    bound = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def use_cpus(count: int) -> None:
    """Set the number of threads of Arrow. Its default is one for each CPU of the machine, regardless of quotas."""
    pa.set_cpu_count(count)


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota of the container, in CPUs; None without a quota."""
    try:  # cgroup v2
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:  # cgroup v1
        quota_us = int((cgroup / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((cgroup / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if quota_us <= 0 else quota_us / period_us
