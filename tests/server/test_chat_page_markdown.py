"""The page's Markdown, judged by markdown-it, which Textual brings."""

from __future__ import annotations

import json
import random
import re
import shutil
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from tests.server.test_chat_page import in_node

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
JUDGE = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
RENDER = """
const { nodesOf } = await import(`${folder}/markdown.js`);
console.log(JSON.stringify(given.map(nodesOf)));
"""
VOID = {"br", "hr", "input"}
TEXTS = [
    "# Title\n\nHello **world** and *you* and ***both*** and `code`.\nNext line  \nbroken\\\nagain",
    "1. one\n2. two\n   - a\n   - b\n\n     para\n3. three",
    "- a\n- b\n\n- c",
    "* a\n  * b\n    * c\n* d",
    "```python\nprint('<b>')\n\n```\nafter",
    "~~~\nx\n~~~",
    "```\nopen\nfence",
    "> quote\nlazy\n> - a\n> - b\n\nout",
    "| a | b |\n|---|:-:|\n| 1 | `x\\|y` |\n| 2 |\n\nafter",
    "a | b\n--|--\n1 | 2",
    "Setext\n===\n\nTwo\n---\n\n---\n***\n",
    "    indented\n\n    code\n\ntext",
    "<script>alert(1)</script> <b>x</b> &amp; &lt; &#65; &nope;",
    "a*b*c _a_b_ __x__ snake_case_name 2 * 3 * 4 **a*b**c*",
    "~~gone~~ ~one~",
    '**bold**text **"q"**s *(a)*',
    "1) x\n2) y\n\n- z\n+ w",
    "5. five\n6. six",
    "- a\n\n  ```js\n  x\n  ```\n- b",
    "text\n- list\n1. num\n2. not",
    "text\n2. not list",
    "``a`b`` ` `` ` x ` y",
    "# a #\n## b ##x\n#nope\n###### six\n####### seven",
    "\\*not\\* \\_x\\_ \\\\ \\a",
    "- [x](http://q.r)\n-\n- e",
    "* * *\n- - -\n_____",
    "**unclosed *and `more",
    "*a **b* c**",
    "a\n\n\n\nb",
    "> a\n\n> b",
    "> ```\n> x\n> ```\n> y",
    "- a\n b\n  c\nd",
    "1. a\n\n   b\n\n2. c\n\nd",
    "- a\n  > q\n  - n",
    "**a\nb**\nc",
    "x **y** z__w__",
    "***a** b*",
    "****a****",
    "*a*b*",
    "_a*b_c*",
    "http",
    "- x\n# h",
    "| a |\n|---|",
    "para | with\npipe",
    "para\n| a | b |\n| - | - |\n| 1 | 2 |",
    "- one\n\n\n- two",
    "  - a\n  - b",
    "1. **Bold**: text\n   more\n2. `c`\n\n   ```\n   z\n   ```\n   tail",
    "\tcode\n\n- a\n\n\tb",
    "`a  b`",
    "` a`",
    "a&copy;",
    "**中文**。",
    "“*x*”",
    "foo ***",
    "** a **",
    "__a_b__",
    "a _ b _",
    "\\`a`",
    "[a]",
    "[a] (b)",
    "[a](b c)",
    "[a\\]b](http://x.y)",
    "[a `]` b](http://x)",
    "x",
    "ok",
    "\n\n",
    "",
    "   ",
    "#",
    "- ",
    "1.",
    "> ",
    "```",
    "|",
    "||",
    "*",
    "**",
    "_",
    "~~",
    "`",
    "[",
    "!",
    "<",
    "&",
    '[a](http://x.y/z "t") <http://a.b> [c *d*](https://e.f/(g))',
]
PIECES = [
    "a", "b ", "*", "**", "_", "`", "``", " ", "\n", "\n\n", "- ", "1. ", "> ", "# ", "| ", "|---|\n", "[x](http://y)",
    "[", "]", "(", ")", "  ", "    ", "```\n", "~~", "\\", "<", ">", "&lt;", "word", ".",
]  # fmt: skip


class Events(HTMLParser):
    """A page as a list of tags and texts, white space made one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[object] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = {name: value for name, value in attrs if name not in ("title", "style")}
        side = re.search(r"text-align:(\w+)", dict(attrs).get("style") or "")
        self.found.append((tag, kept if side is None else kept | {"class": f"to-{side[1]}"}))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self.found.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        text = re.sub(r"\s+", " ", data)
        if self.found and isinstance(self.found[-1], list):
            self.found[-1][0] += text
        else:
            self.found.append([text])


def tidy(found: list[object]) -> list[object]:
    """Without texts of white space, and the space at the ends of others."""
    kept = [[each[0].strip()] if isinstance(each, list) else each for each in found]
    return [each for each in kept if each != [""]]


def judged(text: str) -> list[object]:
    return tidy(Events(JUDGE.render(text)).found)


def walked(nodes: list[object], into: list[object]) -> list[object]:
    """The page's nodes in the form of Events."""
    for node in nodes:
        if isinstance(node, str):
            text = re.sub(r"\s+", " ", node)
            if into and isinstance(into[-1], list):
                into[-1][0] += text
            else:
                into.append([text])
            continue
        assert isinstance(node, dict)
        into.append((node["tag"], node["attributes"]))
        walked(node["children"], into)
        if node["tag"] not in VOID:
            into.append(f"</{node['tag']}>")
    return into


def rendered(texts: list[str]) -> list[list[object]]:
    found = in_node(RENDER, texts)
    assert isinstance(found, list)
    return [tidy(walked(nodes, [])) for nodes in found]


def test_it_reads_what_models_write() -> None:
    for text, found in zip(TEXTS, rendered(TEXTS), strict=True):
        assert found == judged(text), text


def test_texts_at_random_are_read_as_the_judge_reads_them() -> None:
    draw = random.Random(7)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 14))) for _ in range(1000)]
    same = [found == judged(text) for text, found in zip(texts, rendered(texts), strict=True)]
    assert sum(same) >= 985  # the rest: corners of CommonMark that no model writes, such as lazy lines after a fence


def test_what_a_text_calls_html_stays_text_and_links_lead_to_the_web_alone() -> None:
    texts = [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "![a](http://x.y/z.png)",
        "[a](data:text/html,x)", "[a]( JAVASCRIPT:alert(1))", "<javascript:alert(1)>", "[a](\tjavascript:x)",
        "[a](/v1/models)",
    ]  # fmt: skip
    tags, links = set(), set()
    for found in rendered(texts):
        for each in found:
            if isinstance(each, tuple):
                tags.add(each[0])
                links |= {value for name, value in each[1].items() if name in ("href", "src")}
    assert tags == {"p", "a", "span"}
    assert links == {"http://x.y/z.png"}  # a picture is a link: showing an answer fetches nothing


def test_addresses_lists_of_tasks_and_breaks() -> None:
    found = in_node(RENDER, ["see https://a.b/c_d(e)_f. (https://x.y/z)", "- [x] done\n- [ ] not", "a<br>b"])
    assert isinstance(found, list)
    text = json.dumps(found)
    assert re.findall(r'"href": "([^"]+)"', text) == ["https://a.b/c_d(e)_f", "https://x.y/z"]
    assert text.count('"class": "task"') == 2
    assert text.count('"checked"') == 1
    assert [node["tag"] for node in found[2][0]["children"] if isinstance(node, dict)] == ["br"]


@pytest.mark.parametrize("unit", ["> ", "- ", "*", "**a ", "[", "`a``", "_a", "|a|b|\n|-|-|\n", "1. ", "<", "[a]("])
def test_long_and_deep_texts_end(unit: str) -> None:
    assert in_node(
        RENDER.replace("given.map(nodesOf)", "given.map((text) => nodesOf(text).length > 0)"), [unit * 4000]
    ) == [True]
