"""The handbook as a site: complete, offline, searchable from the file system. `make docs` installs what this needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.browser import browsing
from tools.site import handbook

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    surroundings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    return site


def test_every_page_is_there(site: Path) -> None:
    for row in handbook((ROOT / "README.md").read_text()).values():
        for page in row:
            for path in page.values():
                assert (site / path).with_suffix(".html").exists()


def test_pages_load_nothing_from_elsewhere_and_all_that_they_load_exists(site: Path) -> None:
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # a server alone shows that one, below any address
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|source|iframe)[^>]*? src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*? rel="(?:stylesheet|icon|preload|preconnect)"[^>]*? href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*? href="([^"]+)"[^>]*? rel="(?:stylesheet|icon|preload|preconnect)"', text)
        assert loaded
        assert [path for path in loaded if not (page.parent / path.split("#")[0].split("?")[0]).exists()] == []


def test_no_comment_of_the_examples_is_left(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if "<!-- not run" in page.read_text()] == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import fledge

    text = (site / "reference.html").read_text()
    for name in (
        *(f"fledge.{name}" for name in fledge._HOMES),
        "fledge.model.layers.RMSNorm",
        "fledge.loss.cross_entropy",
    ):
        assert f'id="{name}"' in text


def test_search_works_without_a_server(site: Path) -> None:
    with browsing() as page:
        page.goto((site / "index.html").as_uri())
        page.locator("[data-md-component=search-query]").fill("perplexity")
        page.locator(".md-search-result__link").first.wait_for()
        links = page.locator(".md-search-result__link").all()
        assert any("evaluation.html" in (link.get_attribute("href") or "") for link in links)
        assert [problem for problem in page.problems if not problem.startswith("left: file:")] == []


def test_a_broken_page_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    with (tmp_path / "docs" / "data.md").open("a") as page:
        page.write("\n[one](none.md) [two](models.md#nowhere)\n")
    (tmp_path / "docs" / "forgotten.md").write_text("# In no table\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for sign in ("none.md", "#nowhere", "forgotten.md"):
        assert sign in done.stderr
