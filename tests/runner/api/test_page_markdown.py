"""The page's Markdown, in a real Chromium: what is shown, and what hostile text can't do."""

import itertools
import json
from collections.abc import Iterator

import pytest

from engine.machine.root import SOURCE_ROOT
from tests.runner.api.browser import Browser, Page
from tests.runner.api.page_steps import needs_chromium

pytestmark = [pytest.mark.servers, needs_chromium]
SCRIPT = SOURCE_ROOT / "runner" / "api" / "page" / "markdown.js"
PIECES = """
    const shown = (pieces, isDrawn = () => true) => {
        const root = document.createElement("div"), markdown = new Markdown(root);
        let tail = "";
        for (const piece of pieces) {
            markdown.push(piece);
            if (isDrawn()) { markdown.draw(false); tail = root.innerHTML; }
        }
        while (markdown.draw(true));
        return { html: root.innerHTML, text: root.textContent, root, tail };
    };
    const noise = new RegExp('<div class="bar">.*?</div>| tabindex="0"|<span class="chunk">|</?span>'
        + '| target="_blank" rel="noopener noreferrer" title="[^"]*"', "g");
    const short = html => html.replaceAll(noise, "");
"""
MEGABYTE = 1 << 20
TABLE = (
    '<div class="table"><table><thead><tr><th>a</th><th class="center">b</th></tr></thead>'
    '<tbody><tr><td>1 | 2</td><td class="center"></td></tr></tbody></table></div>'
)


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.open("data:text/html,<!doctype html>")  # Temml refuses quirks mode.
    for library in sorted(SCRIPT.parent.glob("vendor/*.js")):
        page.run(library.read_text() + ";0")
    page.run(SCRIPT.read_text().replace('"use strict";', "") + PIECES)
    yield page
    page.close()


def html(page: Page, *pieces: str) -> str:
    return str(page.run(f"short(shown({json.dumps(pieces)}).html)"))


DRAWN = [
    (
        "a *b* **c** ***d*** ~~e~~",
        "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <s>e</s></p>",
    ),
    ("_a_ b_c_d 2 * 3 * 4 **", "<p><em>a</em> b_c_d 2 * 3 * 4 **</p>"),
    ("**a *b** c", "<p><strong>a *b</strong> c</p>"),
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("# A\n### B\n####### C", "<h3>A</h3><h5>B</h5><p>####### C</p>"),
    ("`a*b*` ``c`d`` `` ` `` `e", "<p><code>a*b*</code> <code>c`d</code> <code>`</code> `e</p>"),
    (r"\*a\* \d", r"<p>*a* \d</p>"),
    (
        "- a\n- b\n  - c\n    d\n\n- e",
        "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c\nd</p></li></ul></li><li><p>e</p></li></ul>",
    ),
    (
        "3. a\n   - b\n4. c",
        '<ol start="3"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>',
    ),
    ("- [x] a\n- [ ] b", "<ul><li><p>☑ a</p></li><li><p>☐ b</p></li></ul>"),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    (
        "```text\nif a:\n\tb\n```\nc",
        '<div class="code"><pre><code>if a:\n\tb\n</code></pre></div><p>c</p>',
    ),
    (
        "- a\n  ~~~\n  b\n    c\n  ~~~",
        '<ul><li><p>a</p><div class="code"><pre><code>b\n  c</code></pre></div></li></ul>',
    ),
    (
        "|a|b|\n|-|:-:|\n|1 \\| 2|",
        TABLE,
    ),
    ("[a *b*](https://c.d/e_(f))", '<p><a href="https://c.d/e_(f)">a <em>b</em></a></p>'),
    ("See https://a.b/c_d_e.", '<p>See <a href="https://a.b/c_d_e">https://a.b/c_d_e</a>.</p>'),
    ("![a](https://b.c/d.png)", '<p><a href="https://b.c/d.png">a</a></p>'),
    ("a<br>b", "<p>a<br>b</p>"),
]


def test_it_is_drawn(page: Page) -> None:
    for markdown, expected in DRAWN:
        assert html(page, markdown) == expected


ACTIVE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html,<b>)",
    "[a](vbscript:a)",
    "[a](/b)",
    "![a](javascript:alert(1))",
    "<javascript:alert(1)>",
    "&lt;b&gt; &amp;",
]


def test_what_could_run_or_load_is_text(page: Page) -> None:
    for text, form in itertools.product(ACTIVE, ("%s", "- %s", "> # %s", "|%s|\n|-|")):
        markdown = form.replace("%s", text)
        page.run(f"window.last = shown([{json.dumps(markdown)}]).root, 0")
        assert text in str(page.run("last.textContent"))
        assert page.run("last.querySelectorAll('a, img, script, svg, iframe, [onerror]').length") == 0


def test_a_link_opens_elsewhere_and_tells_where(page: Page) -> None:
    page.run("window.last = shown(['[bank](https://evil.example/)']).root.querySelector('a'), 0")
    assert page.run("[last.target, last.rel, last.title]") == [
        "_blank", "noopener noreferrer", "https://evil.example/",
    ]  # fmt: skip


def test_emphasis_and_code_are_shown_before_their_end_has_come(page: Page) -> None:
    for begin, expected in (
        ("a **b c", "<p>a <strong>b c</strong></p>"),
        ("a `b", "<p>a <code>b</code></p>"),
        ("- a\n- *b", "<ul><li><p>a</p></li><li><p><em>b</em></p></li></ul>"),
        ("```\nab", '<div class="code"><pre><code>ab</code></pre></div>'),
        ("```\nab\n``", '<div class="code"><pre><code>ab\n</code></pre></div>'),
    ):
        assert page.run(f"short(shown([...{json.dumps(begin)}]).tail)") == expected


def test_pieces_of_any_size_draw_the_same(page: Page) -> None:
    """Seeded random documents of all constructs, and texts longer than a slice."""
    found = page.run(
        """(() => {
        let seed = 7;
        const random = most => (seed = (seed * 48271) % 2147483647) % most;
        const parts = ["a", "b ", " ", "\\n", "\\n", "\\n\\n", "*", "**", "_", "`", "```", "\\n```\\n",
            "\\n- ", "\\n  - ", "\\n1. ", "\\n> ", "\\n# ", "|", "\\n|a|b|\\n|-|-|\\n", "---", "[a](https://b.c)",
            "https://d.e ", "\\\\", "<br>", "\\t", "~~",
            "word ".repeat(5000), "\\n- item".repeat(3000), "x".repeat(40000)];
        for (let round = 0; round < 400; round++) {
            const common = round % 20 ? 26 : parts.length;
            const text = Array.from({ length: 1 + random(40) }, () => parts[random(common)]).join("");
            const pieces = [];
            for (let at = 0; at < text.length;) {
                const size = 1 + random(text.length > 2000 ? 9000 : 6);
                pieces.push(text.slice(at, at += size));
            }
            const whole = shown([text], () => false).html, pieced = shown(pieces, () => random(3)).html;
            if (whole !== pieced) return { text, whole, pieced };
        }
        return null;
        })()"""
    )
    assert found is None, found


HOSTILE = {
    "stars": "*" * MEGABYTE,
    "opened stars": "*a " * (MEGABYTE // 3),
    "opened pairs": "**a _b ~~c " * (MEGABYTE // 11),
    "backticks": "".join("`" * (index % 200 + 1) + "a" for index in range(10_000)),
    "brackets": "[" * MEGABYTE,
    "opened links": "[a](b" * (MEGABYTE // 5),
    "nested links": "[a](()" * (MEGABYTE // 6),
    "quoted links": '[a](b "c ' * (MEGABYTE // 9),
    "addresses": "https://a" * (MEGABYTE // 9),
    "hashes": "# " + "# " * (MEGABYTE // 2),
    "spaces": "a" + " " * MEGABYTE + "b",
    "newlines": "\n" * MEGABYTE,
    "rule": "- " * (MEGABYTE // 2) + "x",
    "fence": "```" + "a" * MEGABYTE + "`",
    "open fence": "```\n" + "line\n" * (MEGABYTE // 5),
    "open fence of one line": "```\n" + "a" * MEGABYTE,
    "fences": "```\n" * (MEGABYTE // 16),
    "nested list": "".join(" " * (2 * index) + "- a\n" for index in range(1000)),
    "list 10,000 deep": "- " * 10_000 + "a",
    "quote 10,000 deep": ">" * 10_000 + "a",
    "items": "- a\n" * (MEGABYTE // 16),
    "table": "|a|\n|-|\n" + "|b|\n" * (MEGABYTE // 16),
    "columns": "|a" * (MEGABYTE // 16) + "\n" + "|-" * (MEGABYTE // 16),
    "pipes": "|" * MEGABYTE,
    "backslashes": "\\" * MEGABYTE,
    "surrogates": "👋" * (MEGABYTE // 4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_drawn_in_slices_of_bounded_work(page: Page, name: str) -> None:
    """The limit is far above what a slice takes, and far below what quadratic work on a megabyte takes."""
    longest_ms, depth, characters = page.run(
        f"""(() => {{
        const root = document.createElement("div"), markdown = new Markdown(root);
        document.body.append(root);
        const text = {json.dumps(HOSTILE[name])};
        let longest = 0, depth = 0;
        for (let at = 0, isMore = true; isMore; at += 50_000) {{
            markdown.push(text.slice(at, at + 50_000));
            const start = performance.now();
            isMore = markdown.draw(at >= text.length) || at < text.length;
            longest = Math.max(longest, performance.now() - start);
        }}
        for (let node = root; node; node = node.lastElementChild) depth++;
        const characters = root.textContent.length;
        root.remove();
        return [longest, depth, characters];
        }})()"""
    )
    assert longest_ms < 5000
    assert depth < 40
    assert characters <= len(HOSTILE[name].encode("utf-16-le")) / 2 + 10_000


def test_code_is_coloured_and_stays_as_it_was(page: Page) -> None:
    code = "def f(x):\n    return '<b>' + x  # why\n"
    shown = html(page, "```python\ndef f(", "x):\n    return '<b>'", " + x  # why\n```\n")
    assert '<span class="hljs-keyword">def ' in shown
    assert "<span class=\"hljs-string\">'&lt;b&gt;'" in shown
    fenced = json.dumps(f"```python\n{code}```")
    assert page.run(f"shown([{fenced}]).root.querySelector('code').textContent") == code
    assert "hljs" not in html(page, "```nolanguage\ndef f\n```")
    assert 0 < html(page, "```python\n" + "def f\n" * 4000 + "```").count("hljs-keyword") < 3000, "its begin"


FORMULAS = [
    (r"a \(x^2\) b", [False]),
    ("$x_1$, $y$ and $a = b$", [False, False, False]),
    ("$$\nx = \\frac{1}{2}\n- y\n$$", [True]),
    (r"\[ a", []),
    ("a\n\n\\[\n\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}\n\\]\n\nb", [True]),
    ("from $5 to $10, or $6, not 7$", []),
    ("$HOME and $PATH, $A/$B", []),
    ("`$x^2$`", []),
    (r"$\nosuch{x$", []),
    (r"$\def\a{\a\a}\a$", []),
]


def test_formulas_are_shown_and_prices_are_none(page: Page) -> None:
    is_displayed = "each => each.getAttribute('display') === 'block'"
    found = f"[[...root.querySelectorAll('math')].map({is_displayed}), root.textContent]"
    for markdown, displayed in FORMULAS:
        formulas, text = page.run(f"(root => {found})(shown([{json.dumps(markdown)}]).root)")
        assert formulas == displayed
        if not displayed:
            assert text == markdown.replace("`", "").removeprefix("\\")
