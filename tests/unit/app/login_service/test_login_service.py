"""`edgeinfer service` with a `systemctl` that notes its calls, and with systemd itself where a session starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from edgeinfer.app.cli import main
from edgeinfer.app.login_service.installing import Service
from edgeinfer.app.login_service.windows_task import ScheduledTask

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is of Linux")

FAKE = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in {refused}) echo "no way" >&2; exit 1;; esac
case "$2" in show) printf 'ActiveState=active\\nSubState=running\\nMainPID={pid}\\n';; esac
"""


@pytest.fixture
def user(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home folder."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def calls(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `systemctl` was called with."""
    fake_systemctl(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "calls"


def fake_systemctl(tmp_path: Path, refused: str = "nothing") -> None:
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(FAKE.format(calls=tmp_path / "calls", refused=refused, pid=os.getpid()))
    program.chmod(0o755)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `edgeinfer service`."""
    with pytest.raises(SystemExit) as left:
        main(["service", *arguments])
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


def files_of(*folders: Path) -> set[str]:
    return {str(path) for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_from_installing_to_removing(
    calls: Path, user: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_TEMP", "0.5")
    monkeypatch.chdir(user.parent)
    (user.parent / "a b.gguf").touch()
    code, out, err = run(capsys, "install", "--", "--port", "9000", "-m", "a b.gguf")
    assert (code, out) == (0, "")
    unit, key = user / ".config/systemd/user/edgeinfer.service", home / "service/api-key"
    assert str(unit) in err
    assert str(key) in err
    assert files_of(user, home) == {str(unit), str(key)}
    assert (key.stat().st_mode & 0o777, unit.stat().st_mode & 0o777) == (0o600, 0o600)
    assert key.parent.stat().st_mode & 0o777 == 0o700
    text = unit.read_text()
    assert f'"serve" "--port" "9000" "-m" "a b.gguf" "--token-file" "{key}"' in text
    assert f'Environment="EDGEINFER_HOME={home}"' in text
    assert 'Environment="EDGEINFER_TEMP=0.5"' in text
    assert key.read_text() not in text + err
    secret = key.read_text()
    assert len(secret) >= 32

    state = json.loads(run(capsys, "status", "--json")[1])
    assert (state["installed"], state["running"], state["pid"]) == (True, True, os.getpid())
    assert state["log"] == "journalctl --user -u edgeinfer"

    assert run(capsys, "install")[0] == 0
    assert key.read_text() == secret, "clients would have to learn another key"
    assert '"--port"' not in unit.read_text()

    assert run(capsys, "uninstall")[0] == 0
    assert files_of(user, home) == set()
    assert not key.parent.exists()
    done = [line for line in calls.read_text().splitlines() if " show " not in line]
    starting = ["daemon-reload", "enable edgeinfer.service", "restart edgeinfer.service"]
    ending = ["disable --now edgeinfer.service", "daemon-reload", "reset-failed edgeinfer.service"]
    assert done == [f"--user {each}" for each in (*starting, *starting, *ending)]
    assert run(capsys, "uninstall") == (0, "", "no service is installed\n")
    assert json.loads(run(capsys, "status", "--json")[1])["installed"] is False


def test_a_dry_run_prints_and_changes_nothing(
    calls: Path, user: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "install", "--dry-run", "--", "--port", "9000")
    assert code == 0
    assert "[Service]" in out
    assert "systemctl --user enable edgeinfer.service" in out
    assert files_of(user, home) == set()
    assert not calls.exists()


def test_the_key_of_the_environment(
    calls: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_API_KEY", "mine alone")
    assert run(capsys, "install")[0] == 0
    assert (home / "service/api-key").read_text() == "mine alone"


def test_without_a_key(calls: Path, user: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "install", "--", "--no-key")[0] == 0
    assert not (home / "service/api-key").exists()
    assert "--token-file" not in (user / ".config/systemd/user/edgeinfer.service").read_text()


@pytest.mark.parametrize("refused", ["*daemon-reload*", "*enable*", "*restart*"])
def test_what_fails_is_undone(
    calls: Path, user: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: str
) -> None:
    fake_systemctl(tmp_path, refused)
    code, _, err = run(capsys, "install")
    assert code == 1
    assert "no way" in err
    assert files_of(user, home) == set()


def test_what_fails_leaves_the_service_before(
    calls: Path, user: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "install", "--", "--port", "9000")[0] == 0
    before = (user / ".config/systemd/user/edgeinfer.service").read_text(), (home / "service/api-key").read_text()
    fake_systemctl(tmp_path, "*restart*")
    assert run(capsys, "install", "--", "--port", "9001")[0] == 1
    after = (user / ".config/systemd/user/edgeinfer.service").read_text(), (home / "service/api-key").read_text()
    assert after == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prot", "1"], "did you mean --port?"),
        (["--port", "x"], "--port needs a whole number"),
        (["--temp", "hot"], "--temp needs a number"),
        (["--ready-json"], "a service has no --ready-json"),
        (["--token-env", "X"], "a service has no --token-env"),
        (["--parent-pid", "1"], "a service has no --parent-pid"),
    ],
)
def test_options_that_serve_refuses(
    calls: Path, user: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    code, _, err = run(capsys, "install", "--", *options)
    assert code == 2
    assert message in err
    assert not calls.exists()


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_model_that_is_not_there_is_refused(
    calls: Path,
    user: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by_environment: bool,
) -> None:
    """It would end at every login; one that can be pulled is pulled when the service starts."""
    if by_environment:
        monkeypatch.setenv("EDGEINFER_MODEL", "gone.gguf")
    code, _, err = run(capsys, "install", *(() if by_environment else ("--", "-m", "gone.gguf")))
    assert code == 1
    assert "gone.gguf" in err
    assert files_of(user, home) == set()
    assert not calls.exists()
    assert run(capsys, "install", "--dry-run", "--", "-m", "qwen3:4b")[0] == 0


def test_a_task_logs_by_itself(home: Path, tmp_path: Path) -> None:
    """The Windows task's command, run here: its output is in the log, its variables are set."""
    (tmp_path / "x y").mkdir()
    service = Service(ScheduledTask(tmp_path, "me"), tmp_path / "x y")
    words = service.file(["--port", "not a number"], with_key=False).text
    assert "serve.log" in words
    command = [sys.executable, "-P", "-m", "edgeinfer.app.login_service.logged", str(service.log_path)]
    for _ in range(2):
        ended = subprocess.run(
            [*command, "EDGEINFER_TEMP=hot=er", "--", "run", "hello"], capture_output=True, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")
    log = service.log_path.read_text()
    assert log.count("EDGEINFER_TEMP needs a number from 0 to 2, not 'hot=er'") == 2


SYSTEMD = "/lib/systemd/systemd"
IN_A_SESSION = """
mount -t tmpfs none /run || exit 77
mkdir -p /run/systemd/system /run/user/0 && chmod 700 /run/user/0 || exit 77
export XDG_RUNTIME_DIR=/run/user/0
{systemd} --user --log-target=null & manager=$!
for i in $(seq 100); do systemctl --user is-system-running >/dev/null 2>&1 && break; sleep 0.2; done
systemctl --user is-system-running >/dev/null 2>&1 || {{ kill $manager; exit 77; }}
"$@"; code=$?
kill $manager; exit $code
"""


@pytest.mark.skipif(
    not os.path.exists(SYSTEMD) or shutil.which("unshare") is None or os.getuid() != 0,
    reason="a session of systemd in a namespace of its own needs root and systemd",
)
def test_with_systemd_itself(user: Path, home: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Installed, started, asked with the key and without, started again after a crash and at a login, removed."""
    folder = tmp_path / "my 100% $HOME folder"
    folder.mkdir()
    model = folder / "a $model %h.gguf"
    shutil.copy(tiny_model, model)
    session = ["unshare", "-m", "bash", "-c", IN_A_SESSION.format(systemd=SYSTEMD), "session"]
    script = [sys.executable, __file__, str(folder), model.name, str(home)]
    ended = subprocess.run([*session, *script], capture_output=True, text=True, check=False)
    if ended.returncode == 77:
        pytest.skip("no session of systemd starts here")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["401", "200", "again", "wanted", "removed"]
    assert files_of(home / "service", user / ".config") == set()


def _use_the_service(folder: str, model: str, home: str) -> None:
    """What the test does inside the session."""
    import signal
    import time

    def service(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "edgeinfer", "service", *words]
        return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout

    def answering(before: int | None) -> dict[str, object]:
        while True:
            state: dict[str, object] = json.loads(service("status", "--json"))
            assert state["state"] != "failed", state
            if state["address"] is not None and state["pid"] != before:
                return state
            time.sleep(0.5)

    def ask(address: object, key: str | None) -> int:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{address}/models", headers=headers)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    service("install", "--", "--port", "0", "-m", model)
    state = answering(None)
    print(ask(state["address"], None))
    print(ask(state["address"], (Path(home) / "service/api-key").read_text()))
    pid = state["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    again = answering(pid)["pid"]
    assert isinstance(again, int)
    print("again")
    for words in (["stop", "edgeinfer.service", "default.target"], ["start", "default.target"]):  # as a login does
        subprocess.run(["systemctl", "--user", *words], check=True)
    answering(again)
    print("wanted")
    service("uninstall")
    assert json.loads(service("status", "--json"))["installed"] is False
    print("removed")


if __name__ == "__main__":
    _use_the_service(*sys.argv[1:])
