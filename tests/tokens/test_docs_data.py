"""The commands of docs/data.md, typed as they stand there on a folder of text files, with fewer steps."""

from __future__ import annotations

from pathlib import Path

from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page_works_on_a_folder_of_texts(tmp_path):
    folder = tmp_path / "my-texts"
    folder.mkdir()
    for number in range(60):
        lines = [f"On day {day} of letter {number} the cat sat on the mat and wrote.\n" for day in range(20)]
        (folder / f"letter-{number:02}.txt").write_text("".join(lines))
    small = (
        "--set training.steps=3 --set training.batch_size=2 --set model.layers=1 --set model.width=32 "
        "--set training.evaluate_windows=4 --set sampling.max_tokens=4 --out runs/mine"
    )
    ran = run_page(PAGE, tmp_path, replace={"--out runs/mine": small}, timeout=200)
    assert [example.language for example in ran] == ["sh", "sh", "sh", "python"]
    assert (tmp_path / "mask.svg").exists()
