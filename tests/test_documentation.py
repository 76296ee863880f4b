"""The runner of documentation itself: it must fail where a page is wrong, or it proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import anchors, broken_links, commands, examples, run_page

PAGE = """# Page

```console
$ printf 'one\\ntwo\\n'
one
$ echo a \\
>     b
a b
```

<!-- not run: needs a network -->
```sh
exit 1
```

- in a list:

  ```sh
  echo text > file.txt
  ```

```python
content = open("file.txt").read()
```

```python
>>> content
'text...'
```

```toml
ignored = true
```
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_blocks_are_found_with_their_lines() -> None:
    found = examples(PAGE)
    assert [(example.language, example.line) for example in found] == [
        ("console", 4),
        ("sh", 13),
        ("sh", 19),
        ("python", 23),
        ("python", 27),
    ]
    assert [example.not_run for example in found] == [None, "needs a network", None, None, None]


def test_commands_and_their_output_are_told_apart() -> None:
    assert commands("$ a\nb\n$ c \\\n> d\n") == [("a", ["b"]), ("c \\\nd", [])]


def test_a_true_page_passes(tmp_path: Path) -> None:
    ran = run_page(write(tmp_path, PAGE), tmp_path)
    assert len(ran) == 4
    assert (tmp_path / "file.txt").read_text() == "text\n"


@pytest.mark.parametrize(
    "block",
    [
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ printf 'one\\ntwo\\n'\ntwo\none\n```\n",
        "```console\n$ false\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```sh\nfalse | true\n```\n",
        "```python\nassert 1 == 2\n```\n",
        "```python\n>>> 1\n2\n```\n",
        "```console\noutput without a command\n```\n",
    ],
)
def test_a_false_page_fails(block: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_page(write(tmp_path, block), tmp_path)


def test_dots_stand_for_anything_and_replacements_are_made(tmp_path: Path) -> None:
    page = write(tmp_path, "```console\n$ echo trained 5000 steps in 3.2 s\ntrained 3 steps in … s\n```\n")
    run_page(page, tmp_path, replace={"5000": "3"})


def test_a_traceback_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = write(tmp_path, "# Title\n\n```python\nx = 1\nraise KeyError(x)\n```\n")
    with pytest.raises(KeyError) as failure:
        run_page(page, tmp_path)
    assert failure.traceback[-1].lineno + 1 == 5


def test_anchors_are_those_of_github() -> None:
    assert anchors("# A *model* of `Run`, and why?\n```sh\n# no heading\n```\n## Ça – 2\n") == {
        "a-model-of-run-and-why",
        "ça--2",
    }


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# There is\n")
    good = "# Top\n[a](other.md) [b](other.md#there-is) [c](#top) [d](https://example.org/x) ![e](other.md)\n"
    assert broken_links(write(tmp_path, good + "```md\n[not a link](none.md)\n```\n")) == []
    bad = '[a](none.md) [b](other.md#there) [c](#bottom) ![d](no.svg) <img src="no.png">\n'
    assert broken_links(write(tmp_path, good + bad)) == ["none.md", "other.md#there", "#bottom", "no.svg", "no.png"]
