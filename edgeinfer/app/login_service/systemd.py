"""The service as a unit of the user's systemd (Linux).

In: a definition. Out: `~/.config/systemd/user/edgeinfer.service` and `systemctl --user` commands. The journal keeps the
log. Sources: systemd.service(5), systemd.exec(5), systemd.syntax(7).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.login_service.definition import (
    DESCRIPTION,
    NAME,
    ServiceDefinition,
    ServiceFailed,
    ServiceFile,
    ServiceState,
    SystemCommand,
)

UNIT = f"{NAME}.service"
CONTROL = ("systemctl", "--user")
SECONDS_TO_END = 20
"""Running answers have three seconds to finish; the rest is for closing models."""


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """The user's systemd. `config_home`: the folder of the user's settings, normally ~/.config."""

    config_home: Path
    name: str = "systemd"
    is_bare: bool = False
    needs: str = "it needs a login of this user, which su and sudo are not"

    def path(self) -> Path:
        return self.config_home / "systemd" / "user" / UNIT

    def file(self, definition: ServiceDefinition) -> ServiceFile:
        program, *arguments = definition.command
        # a variable is not looked for in the program's own name, so that a $ there is itself
        words = [quoted(program), *(quoted(each).replace("$", "$$") for each in arguments)]
        variables = [f"Environment={quoted(f'{name}={value}')}" for name, value in definition.environment.items()]
        lines = [
            "[Unit]",
            f"Description={DESCRIPTION}",
            "StartLimitIntervalSec=300",  # a server whose model is gone is not started for ever
            "StartLimitBurst=5",
            "",
            "[Service]",
            "Type=exec",
            f"WorkingDirectory={_plain(str(definition.folder))}",
            *variables,
            f"ExecStart={' '.join(words)}",
            "Restart=on-failure",
            "RestartSec=5",
            f"TimeoutStopSec={SECONDS_TO_END}",
            "",
            "[Install]",
            "WantedBy=default.target",
        ]
        return ServiceFile(self.path(), "\n".join(lines) + "\n")

    def starting(self) -> tuple[SystemCommand, ...]:
        return (
            SystemCommand((*CONTROL, "daemon-reload")),
            SystemCommand((*CONTROL, "enable", UNIT)),
            SystemCommand((*CONTROL, "restart", UNIT)),  # starts it too; one that runs gets its new options
        )

    def ending(self) -> tuple[SystemCommand, ...]:
        return (SystemCommand((*CONTROL, "disable", "--now", UNIT)),)

    def after_removal(self) -> tuple[SystemCommand, ...]:
        return (
            SystemCommand((*CONTROL, "daemon-reload")),
            SystemCommand((*CONTROL, "reset-failed", UNIT), may_fail=True),
        )

    def asking(self) -> SystemCommand:
        return SystemCommand((*CONTROL, "show", "--property=ActiveState,SubState,MainPID", UNIT), may_fail=True)

    def state(self, output: str) -> ServiceState:
        values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        active, pid = values.get("ActiveState", "unknown"), values.get("MainPID", "")
        word = active if active != "activating" else f"{active} ({values.get('SubState', '')})"
        return ServiceState(active == "active", word, int(pid) if pid.isdecimal() and pid != "0" else None)

    def log_words(self, log: Path) -> str:
        return f"journalctl --user -u {NAME}"

    def hint(self) -> str | None:
        return "it ends when you log out; to keep it running without a login: loginctl enable-linger"


def quoted(text: str) -> str:
    """A word of a unit file. Raises ServiceFailed for characters that such files cannot hold."""
    return '"' + _plain(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _plain(text: str) -> str:
    """Text that stands for itself: the percent sign begins a specifier."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ServiceFailed(f"{text!r} is not UTF-8, which systemd's files need; rename it") from None
    if any(ord(each) < 32 or ord(each) == 127 for each in text):
        raise ServiceFailed(f"{text!r} has control characters, which a service's file cannot hold; rename it")
    return text.replace("%", "%%")


def here() -> SystemdUnit:
    """The systemd of this user."""
    return SystemdUnit(Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"))
