"""The page at "/": what is served, to whom, and that its files hold together. test_chat_page_in_chromium.py uses it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import edgeinfer.app.server
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.message_contents import one_text
from edgeinfer.app.server.routes.page import FILES, PAGE_PATHS
from edgeinfer.app.sessions.conversation import with_attachments
from edgeinfer.app.sessions.exporting import json_text
from edgeinfer.app.sessions.importing import chat_of_json
from edgeinfer.app.sessions.records import Attachment, KeptMessage, KeptSession, MessageTree
from tests.server.conftest import Running, served

FOLDER = Path(edgeinfer.app.server.__file__).parent / "page"
SCRIPTS = sorted(FOLDER.glob("*.js"))
VOID = {"meta", "link", "input", "br", "hr", "img"}
AS_HTML = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:|DOMParser"
)
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")


class Page(HTMLParser):
    """The elements of a page; every one must be closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.named: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert "style" not in found, f"<{tag}> has a style, which the policy forbids"
        assert not any(name.startswith("on") for name in found), f"<{tag}> has a listener"
        self.links += [found[name] or "" for name in ("src", "href", "action") if name in found]
        self.named += [
            found[name] or "" for name in ("aria-controls", "aria-labelledby", "aria-describedby") if name in found
        ]
        if "id" in found:
            self.ids.append(found["id"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert not data.strip() or self.open[-1] not in ("script", "style"), (
            "the policy forbids scripts within the page"
        )


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    """A server with a key."""
    with served(tiny_model, ServerOptions(port=0, key="secret")) as running:
        yield running


def test_the_page_needs_no_key_and_its_data_does(guarded: Running) -> None:
    http = guarded.http()
    del http.headers["Authorization"]
    for path in PAGE_PATHS:
        found = http.get(path)
        assert found.status_code == 200
        assert b"secret" not in found.content
        head = http.head(path)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(found.content)))
    for path in (
        "/v1/models",
        "/page/",
        "/page/index.html",
        "/page/nothing.js",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
    ):
        assert http.get(path).status_code == 401, path
    assert guarded.http().get("/page/nothing.js").status_code == 404
    assert http.post("/").status_code == 405


def test_strangers_names_and_pages_get_no_page(guarded: Running) -> None:
    for refused in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        for path in ("/", "/page/main.js"):
            assert guarded.http().get(path, headers=refused).status_code == 403


def test_its_policy_allows_its_own_files_alone(guarded: Running) -> None:
    for path in PAGE_PATHS:
        headers = guarded.http().get(path).headers
        policy = {rule.split()[0]: rule.split()[1:] for rule in headers["content-security-policy"].split(";")}
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == ["'none'"]
        assert policy.pop("img-src") == ["'self'", "data:"]  # those that the page has in itself
        assert {tuple(sources) for name, sources in policy.items() if name.endswith("-src")} == {
            ("'none'",),
            ("'self'",),
        }
        assert policy["require-trusted-types-for"] == ["'script'"]
        assert headers["x-content-type-options"] == "nosniff"
    kinds = {path: guarded.http().get(path).headers["content-type"].split(";")[0] for path in PAGE_PATHS}
    assert kinds["/"] == "text/html"
    assert {kind for path, kind in kinds.items() if path.endswith(".js")} == {"text/javascript"}
    assert (kinds["/page/page.css"], kinds["/page/icon.svg"]) == ("text/css", "image/svg+xml")


def test_the_page_is_whole() -> None:
    page = Page((FOLDER / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert set(page.named) <= set(page.ids)
    for link in page.links:
        assert link.removeprefix("#") in page.ids if link.startswith("#") else f"/{link}" in PAGE_PATHS
    used = [
        name
        for script in SCRIPTS
        for pair in re.findall(r'\$\("([\w-]+)"\)|\bon\("([\w-]+)",', script.read_text(encoding="utf-8"))
        for name in pair
        if name
    ]
    assert len(used) > 50
    assert set(used) <= set(page.ids)


def test_all_its_files_are_served_and_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*FILES, "index.html"}
    for script in SCRIPTS:
        for imported in re.findall(r'from "([^"]+)"', script.read_text(encoding="utf-8")):
            assert imported.removeprefix("./") in FILES


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_it_names_no_other_place_and_reads_no_text_as_html(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    addresses = re.findall(
        r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*|@import|url\(", re.sub(r"^\s*//.*", "", text, flags=re.M)
    )
    assert [address for address in addresses if address != "http://www.w3.org/2000/svg"] == []
    assert AS_HTML.findall(text) == []
    assert text.count("\n") <= 400


@needs_node
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_its_scripts_parse(script: Path) -> None:
    subprocess.run(["node", "--check", "--input-type=module"], input=script.read_bytes(), check=True)


def in_node(code: str, given: object) -> object:
    """What a module of JavaScript prints as JSON; it can import the page's modules, and `given` is what it is given."""
    head = f"const folder = {json.dumps(FOLDER.as_uri())}; const given = {json.dumps(given)};\n"
    found = subprocess.run(
        ["node", "--input-type=module"],
        input=head + code,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


CHAT = """
const chats = await import(`${folder}/chats.js`);
const chat = chats.newChat("Be brief.", {});
const question = chats.add(chat, null, "user", "Weather?");
const calling = chats.add(chat, 1, "assistant", "", {
  model: "m", thoughts: "I call.",
  tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": "Oslo"}' } }],
});
chats.add(chat, 2, "user", "4 degrees", { tool_call_id: "call_1", name: "weather" });
chats.add(chat, 3, "assistant", "Cold. ```", { state: "cut" });
chats.add(chat, 3, "assistant", "Four degrees.", {
  figures: chats.figuresOf({ cache_n: 4, prompt_n: 6, prompt_ms: 500, prompt_per_second: 12, predicted_n: 3,
                             predicted_ms: 100, predicted_per_second: 30 }, "stop"),
});
"""


@needs_node
def test_the_app_reads_what_the_page_exports() -> None:
    text = in_node(CHAT + "console.log(JSON.stringify(chats.toJson(chat)));", None)
    assert isinstance(text, str)
    session, messages = chat_of_json(text)
    assert (session.title, session.system, session.leaf) == ("Weather?", "Be brief.", 5)
    assert [(each.number, each.parent, each.role, each.state) for each in messages] == [
        (1, None, "user", "whole"),
        (4, 1, "assistant", "cut"),
        (5, 1, "assistant", "whole"),
    ]
    (call,) = messages[2].rounds[0].calls  # calls and results are the answer's there
    assert (call.name, call.arguments, call.result) == ("weather", '{"city": "Oslo"}', "4 degrees")
    figures = messages[2].figures
    assert figures is not None
    assert (figures.n_prompt, figures.n_cached, figures.n_generated, figures.ttft_s) == (10, 4, 3, 0.5)
    assert [each.text for each in MessageTree(messages).path(5)][-1] == "Four degrees."


@needs_node
def test_the_page_reads_what_it_or_the_app_exports() -> None:
    session = KeptSession(1, "Hens", "Be kind.", "m", 3, 5.0, 6.0)
    messages = [
        KeptMessage(1, 1, None, "user", "Hi", "whole", 5.0, attachments=(Attachment("a.txt", "Hen"),)),
        KeptMessage(2, 1, 1, "assistant", "Hello", "stopped", 6.0),
        KeptMessage(3, 1, 1, "assistant", "Hey", "whole", 7.0),
    ]
    code = (
        CHAT
        + """
const again = chats.fromJson(chats.toJson(chat)), theirs = chats.fromJson(given);
const wrong = { edgeinfer_chat: 1, messages: [{ number: 1, parent: 7 }] };
const odd = { edgeinfer_chat: 1, messages: [{ number: 1, role: "user", text: "", attachments: [{ name: "a" }] }] };
const refused = [JSON.stringify(odd), "{", "[]", '{"edgeinfer_chat": 2, "messages": []}', JSON.stringify(wrong)]
  .map((text) => { try { return chats.fromJson(text); } catch (reason) { return reason.message; } });
console.log(JSON.stringify([again.messages.map(({ attachments, ...rest }) => rest), chat.messages, theirs, refused]));
"""
    )
    again, before, theirs, refused = in_node(code, json_text(session, messages))  # type: ignore[misc]
    assert again == before
    assert (theirs["title"], theirs["system"], theirs["leaf"]) == ("Hens", "Be kind.", 3)
    assert [message["text"] for message in theirs["messages"]] == ["Hi", "Hello", "Hey"]
    assert theirs["messages"][0]["attachments"] == [{"name": "a.txt", "text": "Hen"}]
    assert refused[0] == "an attachment of message 1 has no name or no text"
    assert [type(reason) for reason in refused] == [str] * 5


@needs_node
@pytest.mark.parametrize("text", ["", "What?", "`` ``` \n"])
@pytest.mark.parametrize(
    "files", [[], ["x"], ["x\n", "", "\n\n"], ["```\na\n````", "~~~ `b`", "```````python\né 🐔\r\n"]]
)
def test_attachments_are_written_as_the_app_writes_them(text: str, files: list[str]) -> None:
    code = """
const { contentOf } = await import(`${folder}/attachments.js`);
console.log(JSON.stringify(contentOf(given)));
"""
    given = [Attachment(f"{number}.txt", each) for number, each in enumerate(files)]
    parts = in_node(code, {"text": text, "attachments": [{"name": one.name, "text": one.text} for one in given]})
    sent = parts if isinstance(parts, str) else one_text(part["text"] for part in parts)  # type: ignore[attr-defined]
    assert sent == with_attachments(text, given)


@needs_node
def test_branches_and_what_is_asked() -> None:
    code = (
        CHAT
        + """
const shown = () => chats.branch(chat).map((message) => message.number);
const seen = [shown(), chats.requestMessages(chat)];
chats.turn(chat, chats.messageOf(chat, 5), -1); seen.push(shown());
chats.add(chat, null, "user", "Other?"); seen.push(shown());
chats.turn(chat, chats.messageOf(chat, 6), -1); seen.push(shown());
chats.remove(chat, chats.messageOf(chat, 5)); seen.push(shown());
chats.remove(chat, chats.messageOf(chat, 1)); seen.push(shown(), chat.messages.length);
chat.settings = { ...chat.settings, temperature: 0, thinking: "off", tools: '{"name": "f"}' };
seen.push(chats.requestBody(chat, chat.leaf), chats.toMarkdown(chat));
console.log(JSON.stringify(seen));
"""
    )
    first, asked, second, other, back, kept, rest, n_left, body, markdown = in_node(code, None)  # type: ignore[misc]
    assert (first, second, other, back, kept, rest, n_left) == (
        [1, 2, 3, 5], [1, 2, 3, 4], [6], [1, 2, 3, 5], [1, 2, 3, 4], [6], 1,
    )  # fmt: skip
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "tool", "assistant"]
    assert asked[2]["reasoning_content"] == "I call."
    assert asked[3] == {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "4 degrees"}
    assert (body["temperature"], body["enable_thinking"], body["stream"]) == (0, False, True)
    assert body["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert not {"top_p", "max_tokens", "model"} & body.keys()
    assert markdown == "# Weather?\n\n## System\n\nBe brief.\n\n## User\n\nOther?\n"


@needs_node
def test_events_are_read_however_they_are_cut() -> None:
    text = 'data: {"a": "é"}\n\n: ping\n\ndata: x\ndata: y\n\ndata: [DONE]\n\n'
    code = """
const { events } = await import(`${folder}/server.js`);
const bytes = new TextEncoder().encode(given), seen = [];
for (const size of [1, 2, 3, 7, 1000]) {
  const pieces = [];
  for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.slice(at, at + size));
  const found = [];
  for await (const data of events(ReadableStream.from(pieces))) found.push(data);
  seen.push(found);
}
console.log(JSON.stringify(seen));
"""
    assert in_node(code, text) == [['{"a": "é"}', "x\ny", "[DONE]"]] * 5
