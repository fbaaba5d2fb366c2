"""The service as a task of the Windows task scheduler, which begins at the user's login.

In: a definition. Out: the task's XML in our own folder and `schtasks` commands. The scheduler neither keeps output nor
sets variables: `logged` does both. Source: Microsoft's Task Scheduler schema, version 1.2.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from edgeinfer.app.login_service.definition import (
    DESCRIPTION,
    NAME,
    ServiceDefinition,
    ServiceFailed,
    ServiceFile,
    ServiceState,
    SystemCommand,
)

SPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
ASKING = f"(Get-ScheduledTask -TaskName '{NAME}' -ErrorAction SilentlyContinue).State"
SETTINGS = {
    "MultipleInstancesPolicy": "IgnoreNew",
    "DisallowStartIfOnBatteries": "false",
    "StopIfGoingOnBatteries": "false",
    "StartWhenAvailable": "true",
    "ExecutionTimeLimit": "PT0S",  # no limit
    "Priority": "5",  # a task's usual 7 is below normal
}


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """The task scheduler of a user. `folder`: ours, for the task's file."""

    folder: Path
    user: str
    name: str = "the task scheduler"
    is_bare: bool = True
    needs: str = "it needs a user who may add tasks"

    def path(self) -> Path:
        return self.folder / "task.xml"

    def file(self, definition: ServiceDefinition) -> ServiceFile:
        task = ElementTree.Element("Task", {"version": "1.2", "xmlns": SPACE})
        _add(_add(task, "RegistrationInfo"), "Description", DESCRIPTION)
        trigger = _add(_add(task, "Triggers"), "LogonTrigger")
        _add(trigger, "Enabled", "true")
        _add(trigger, "UserId", self.user)
        principal = _add(_add(task, "Principals"), "Principal")
        principal.set("id", "Author")
        _add(principal, "UserId", self.user)
        _add(principal, "LogonType", "InteractiveToken")
        _add(principal, "RunLevel", "LeastPrivilege")
        settings = _add(task, "Settings")
        for name, value in SETTINGS.items():
            _add(settings, name, value)
        again = _add(settings, "RestartOnFailure")
        _add(again, "Interval", "PT1M")
        _add(again, "Count", "3")
        actions = _add(task, "Actions")
        actions.set("Context", "Author")
        action = _add(actions, "Exec")
        program, *arguments = definition.command
        _add(action, "Command", program)
        _add(action, "Arguments", subprocess.list2cmdline(arguments))
        _add(action, "WorkingDirectory", str(definition.folder))
        ElementTree.indent(task)
        text = ElementTree.tostring(task, encoding="unicode")
        return ServiceFile(self.path(), f'<?xml version="1.0" encoding="UTF-16"?>\n{text}\n', "utf-16")

    def starting(self) -> tuple[SystemCommand, ...]:
        return (
            SystemCommand(("schtasks", "/Create", "/TN", NAME, "/XML", str(self.path()), "/F")),
            SystemCommand(("schtasks", "/End", "/TN", NAME), may_fail=True),  # an earlier one, with its old options
            SystemCommand(("schtasks", "/Run", "/TN", NAME)),
        )

    def ending(self) -> tuple[SystemCommand, ...]:
        return (
            SystemCommand(("schtasks", "/End", "/TN", NAME), may_fail=True),
            SystemCommand(("schtasks", "/Delete", "/TN", NAME, "/F")),
        )

    def after_removal(self) -> tuple[SystemCommand, ...]:
        return ()

    def asking(self) -> SystemCommand:
        # the words of schtasks are in the user's language, those of PowerShell's enumeration are not
        return SystemCommand(("powershell", "-NoProfile", "-NonInteractive", "-Command", ASKING), may_fail=True)

    def state(self, output: str) -> ServiceState:
        word = output.strip() or "not registered"
        return ServiceState(word == "Running", word)

    def log_words(self, log: Path) -> str:
        return str(log)

    def hint(self) -> str | None:
        return None


def _add(parent: ElementTree.Element, name: str, text: str = "") -> ElementTree.Element:
    """A new element. Raises ServiceFailed for characters that XML cannot hold."""
    if any(ord(each) < 32 or 0xD800 <= ord(each) < 0xE000 for each in text):
        raise ServiceFailed(f"{text!r} has characters that a task's file cannot hold; rename it")
    child = ElementTree.SubElement(parent, name)
    if text:
        child.text = text
    return child


def here(folder: Path) -> ScheduledTask:
    """The task scheduler of this user."""
    domain, user = os.environ.get("USERDOMAIN"), os.environ.get("USERNAME", "")
    return ScheduledTask(folder, f"{domain}\\{user}" if domain else user)
