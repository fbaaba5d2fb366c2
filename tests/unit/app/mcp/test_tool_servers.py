"""Tables of MCP servers in the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.config_file import write_setting
from edgeinfer.app.mcp.servers import ToolServer, chat_servers, chosen, read_servers
from edgeinfer.errors import BadSetting
from edgeinfer.settings import load_settings

TABLES = """
temp = 0.5
[mcp.servers.files]
command = "npx"
args = ["-y", "a server"]
env = { KEY = "secret" }
cwd = "/tmp"
trusted = ["read", "list"]
timeout = 5
[mcp.servers.web]
url = "https://example.org/mcp"
headers = { Authorization = "Bearer secret" }
trusted = true
"""


@pytest.fixture
def file(home: Path) -> Path:
    home.mkdir()
    return home / "config.toml"


def test_servers_are_read_beside_settings(file: Path) -> None:
    assert read_servers() == ()
    file.write_text(TABLES)
    files, web = read_servers()
    assert files == ToolServer(
        "files",
        ("npx", "-y", "a server"),
        {"KEY": "secret"},
        "/tmp",
        trusted=frozenset({"read", "list"}),
        call_limit_s=5,
    )
    assert (web.url, dict(web.headers)) == ("https://example.org/mcp", {"Authorization": "Bearer secret"})
    assert (files.trusts("read"), files.trusts("write"), web.trusts("anything")) == (True, False, True)
    assert load_settings().generation.temp == 0.5


def test_chats_use_the_servers_that_the_file_names_unless_others_are_given(file: Path) -> None:
    def names(*given: str) -> list[str]:
        return [server.name for server in chat_servers(given)]

    assert names() == []
    file.write_text(TABLES)
    assert (names(), names("web"), names("all")) == ([], ["web"], ["files", "web"])
    file.write_text(f'[mcp]\nchat = "files"\n{TABLES.replace("temp = 0.5", "")}')
    assert (names(), names("web"), names("none")) == (["files"], ["web"], [])
    file.write_text(f'[mcp]\nchat = ["web", "files"]\n{TABLES.replace("temp = 0.5", "")}')
    assert names() == ["files", "web"]
    file.write_text(f'[mcp]\nchat = ["wbe"]\n{TABLES.replace("temp = 0.5", "")}')
    with pytest.raises(BadSetting, match="no MCP server is called 'wbe'"):
        names()
    file.write_text("[mcp]\nchat = 1\n")
    with pytest.raises(BadSetting, match=r"\[mcp\] chat needs a list of texts"):
        names()


def test_setting_a_setting_keeps_the_servers(file: Path) -> None:
    file.write_text(TABLES)
    before = read_servers()
    write_setting("top_k", "7")
    assert read_servers() == before
    assert load_settings().generation.top_k == 7


def test_a_folders_file_starts_nothing(file: Path, tmp_path: Path) -> None:
    (tmp_path / "edgeinfer.toml").write_text('[mcp.servers.x]\ncommand = "rm"\n')
    assert read_servers() == ()
    with pytest.raises(BadSetting, match="a folder's file must not"):
        load_settings()


def test_servers_are_chosen_by_name(file: Path) -> None:
    with pytest.raises(BadSetting, match="there is no MCP server"):
        chosen(read_servers(), ["files"])
    file.write_text(TABLES)
    servers = read_servers()
    assert [each.name for each in chosen(servers, ["web"])] == ["web"]
    assert [each.name for each in chosen(servers, ["all"])] == ["files", "web"]
    with pytest.raises(BadSetting, match="no MCP server is called 'wbe'; there are: files, web"):
        chosen(servers, ["wbe"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mcp.servers.x]\n", "either a command or a url"),
        ('[mcp.servers.x]\ncommand = "a"\nurl = "http://b"\n', "either a command or a url"),
        ('[mcp.servers.x]\ncomand = "a"\n', "did you mean command?"),
        ('[mcp.servers.x]\ncommand = ["a", "b"]\n', "command needs a text"),
        ('[mcp.servers.x]\ncommand = "a"\nargs = "b"\n', "args needs a list of texts"),
        ('[mcp.servers.x]\ncommand = "a"\nenv = { A = 1 }\n', "env needs a table of texts"),
        ('[mcp.servers.x]\nurl = "ftp://b"\n', "url needs a URL of http or https"),
        ('[mcp.servers.x]\nurl = "http://b"\nargs = ["c"]\n', "args goes with a command"),
        ('[mcp.servers.x]\ncommand = "a"\nheaders = { A = "b" }\n', "headers goes with a url"),
        ('[mcp.servers.x]\ncommand = "a"\ntrusted = "yes"\n', "trusted needs true, false or a list"),
        ('[mcp.servers.x]\ncommand = "a"\ntimeout = 0\n', "timeout needs seconds"),
        ('[mcp.servers.all]\ncommand = "a"\n', "and is not all"),
        ('[mcp.servers."a b"]\ncommand = "a"\n', "letters, digits"),
        ("[mcp.servers]\nx = 1\n", "must be a table"),
        ("[mcp]\nx = 1\n", "and nothing else"),
        ("mcp = 1\n", "and nothing else"),
    ],
)
def test_what_is_wrong_with_a_table(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(BadSetting, match="mcp") as refused:
        read_servers()
    assert message in str(refused.value)
