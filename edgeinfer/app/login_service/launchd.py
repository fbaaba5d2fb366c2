"""The service as an agent of launchd (macOS).

In: a definition. Out: `~/Library/LaunchAgents/edgeinfer.serve.plist` and `launchctl` commands. Its output goes into our
own log. Source: launchd.plist(5), launchctl(1).
"""

from __future__ import annotations

import os
import plistlib
import re
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.login_service.definition import (
    NAME,
    ServiceDefinition,
    ServiceFailed,
    ServiceFile,
    ServiceState,
    SystemCommand,
)

LABEL = f"{NAME}.serve"


@dataclass(frozen=True, slots=True)
class LaunchAgent:
    """The launchd of a user, by the home folder and the user's number."""

    home: Path
    user_id: int
    name: str = "launchd"
    is_bare: bool = False
    needs: str = "it needs a login of this user at the screen"

    def path(self) -> Path:
        return self.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def file(self, definition: ServiceDefinition) -> ServiceFile:
        record = {
            "Label": LABEL,
            "ProgramArguments": list(definition.command),
            "WorkingDirectory": str(definition.folder),
            "EnvironmentVariables": dict(definition.environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 30,
            "StandardOutPath": str(definition.log),
            "StandardErrorPath": str(definition.log),
            "ProcessType": "Interactive",  # anything else may be kept on the slow cores
        }
        try:
            return ServiceFile(self.path(), plistlib.dumps(record, sort_keys=False).decode("utf-8"))
        except (ValueError, UnicodeError) as reason:
            raise ServiceFailed(f"the options or a path have text that launchd's files cannot hold: {reason}") from None

    def starting(self) -> tuple[SystemCommand, ...]:
        return (*self.ending(), SystemCommand(("launchctl", "bootstrap", self._domain, str(self.path()))))

    def ending(self) -> tuple[SystemCommand, ...]:
        return (SystemCommand(("launchctl", "bootout", f"{self._domain}/{LABEL}"), may_fail=True),)

    def after_removal(self) -> tuple[SystemCommand, ...]:
        return ()

    def asking(self) -> SystemCommand:
        return SystemCommand(("launchctl", "print", f"{self._domain}/{LABEL}"), may_fail=True)

    def state(self, output: str) -> ServiceState:
        state = re.search(r"^\s*state = (.+)$", output, re.MULTILINE)
        pid = re.search(r"^\s*pid = (\d+)$", output, re.MULTILINE)
        word = state[1].strip() if state else "not loaded"
        return ServiceState(word == "running", word, int(pid[1]) if pid else None)

    def log_words(self, log: Path) -> str:
        return str(log)

    def hint(self) -> str | None:
        return None

    @property
    def _domain(self) -> str:
        return f"gui/{self.user_id}"


def here() -> LaunchAgent:
    """The launchd of this user."""
    return LaunchAgent(Path.home(), os.getuid() if hasattr(os, "getuid") else 0)
