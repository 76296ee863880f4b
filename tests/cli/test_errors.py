"""The command line answers a person's mistake with one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer

from fledge import __version__, cli, errors
from fledge.config import setting_paths
from fledge.errors import FledgeError
from tests.small import SMALL

from .conftest import Fledge


def run(monkeypatch, capsys, *arguments: str, raising: BaseException | None = None) -> tuple[int, str, str]:
    """Run the command line in this process, with a verb `doctor` that raises where asked."""
    if raising is not None:

        def doctor() -> None:
            raise raising

        monkeypatch.setattr("fledge.cli.doctor.doctor", doctor)
    monkeypatch.setattr("sys.argv", ["fledge", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    output = capsys.readouterr()
    return int(exit_.value.code or 0), output.out, output.err


def test_version(monkeypatch, capsys) -> None:
    assert run(monkeypatch, capsys, "--version")[:2] == (0, f"fledge {__version__}\n")


def test_help_at_80_columns_cuts_no_name_and_no_word(monkeypatch, capsys) -> None:
    """Of every command: options and their choices are whole, and so is what is said of them."""
    monkeypatch.setenv("COLUMNS", "80")

    def look(path: tuple[str, ...], command: Any) -> None:
        out = run(monkeypatch, capsys, *path, "--help")[1]
        for param in command.params:
            for name in (*param.opts, *param.secondary_opts):
                assert not name.startswith("--") or re.search(rf"{name}(?![\w-])", out), (path, name)
            kind = getattr(param, "type_descriptor", None)
            choices = get_args(kind.annotation) if kind and get_origin(kind.annotation) is Literal else ()
            for choice in choices:
                assert re.search(rf"[<| ]{choice}[>|]", out), (path, choice)
            for word in (getattr(param, "help", None) or "").split():
                assert word in out or "/" in word, (path, word)
        for name, inner in getattr(command, "commands", {}).items():
            look((*path, name), inner)

    look((), typer.main.get_command(cli.build()))


def test_every_setting_is_an_option_wherever_set_is(monkeypatch, capsys) -> None:
    """And help lists them by group: all, or those that the command reads."""
    monkeypatch.setenv("COLUMNS", "80")
    found = {}

    def look(path: tuple[str, ...], command: Any) -> None:
        if any("--set" in param.opts for param in command.params):
            out = run(monkeypatch, capsys, *path, "--help")[1]
            found[path] = {name for name in setting_paths() if re.search(rf"(^|\s){name.rpartition('.')[2]}\s", out)}
            given = command.make_context(
                "x", ["--model.layers", "6", "--set", "a.b=1", "--model.width=8"], resilient_parsing=True
            )
            values = next(given.params[param.name] for param in command.params if "--set" in param.opts)
            assert values == ["model.layers=6", "a.b=1", "model.width=8"], path
        for name, inner in getattr(command, "commands", {}).items():
            look((*path, name), inner)

    look((), typer.main.get_command(cli.build()))
    grouped = {name for name in setting_paths() if "." in name}
    assert grouped <= found["train",]
    assert {"start", "sweep", "demo", "diagram", "account", "bench"} <= {path[0] for path in found}
    assert "model.layers" in found["diagram",]
    assert "optimizer.learning_rate" not in found["diagram",]
    assert "needs a value" in run(monkeypatch, capsys, "train", "akjv-demo", "--model.layers")[2]
    assert "Did you mean model.layers?" in run(monkeypatch, capsys, "train", "akjv-demo", "--model.laers", "6")[2]


@pytest.mark.parametrize(
    "verb",
    [("generate",), ("evaluate",), ("bundle", "show"), ("train", "--resume"), ("train", "--from"), ("serve",)],
    ids=" ".join,
)
def test_a_missing_run_is_answered_with_the_nearest(monkeypatch, capsys, tmp_path, verb) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/diary/checkpoints/step-00000006", "runs/letters", "models/novel"):
        Path(name).mkdir(parents=True)
    missing = {
        "diary": "runs/diary",
        "runs/dairy": "runs/diary",
        "run/leters": "runs/letters",
        "models/novle": "models/novel",
    }
    for given, meant in missing.items():
        code, _, err = run(monkeypatch, capsys, *verb, given)
        assert code == 2
        assert f"Did you mean {meant}?" in err
    assert "Did you mean" not in run(monkeypatch, capsys, *verb, "elsewhere/xyzzy")[2]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("compare runs/dairy akjv", "runs/diary"),
        ("compare models/nvel.toml akjv", "models/novel.toml"),
        ("kaggle runs/diary/recip.toml", "runs/diary/recipe.toml"),
        ("kaggle rnus/diary/recipe.toml", "runs/diary/recipe.toml"),
        ("account runs/dairy", "runs/diary"),
        ("account compare runs/dairy", "runs/diary"),
        ("diagram runs/dairy", "runs/diary"),
        ("train novel.tom", "novel.toml"),
        ("account novel", "novel.toml"),
        ("compare novl.toml akjv", "novel.toml"),
        ("bundle import models/gpt made", "models/gpt2"),
        ("tokens show runs/diary/tokns", "runs/diary/tokens"),
        ("tokens check runs/dairy/tokens", "runs/diary/tokens"),
        ("tokenizer inspect runs/diary/tokenzer", "runs/diary/tokenizer"),
        ("start dairy.txt", "diary.txt"),
        ("corpus show dairy.txt", "diary.txt"),
    ],
)
def test_a_missing_path_is_answered_with_the_nearest(monkeypatch, capsys, tmp_path, line, meant) -> None:
    """Whatever kind of path, and where a folder on the way is mistyped; a name of the same ending comes first."""
    monkeypatch.chdir(tmp_path)
    files = (
        "runs/diary/recipe.toml",
        "models/novel.toml",
        "models/novel.json",
        "models/gpt2/x",
        "diary.txt",
        "novel.toml",
    )
    for name in files:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")
    for name in ("tokens", "tokenizer"):
        Path("runs/diary", name).mkdir()
    code, _, err = run(monkeypatch, capsys, *line.split())
    assert code == 2
    assert err.count("\n") == 1
    assert f"Did you mean {meant}?" in err
    path = next((word for word in line.split() if "." in word or "/" in word), line.split()[1])
    other = run(monkeypatch, capsys, *line.replace(path, "xyzzy/qwert.toml").split())[2]
    assert other.startswith("fledge: ")
    assert "Did you mean" not in other


def test_a_file_that_only_the_system_misses_is_answered_so_too(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.bin").touch()
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "trian.bin")
    assert cli.os_sentence(missing) == "there is no file or folder trian.bin. Did you mean train.bin?"
    missing.filename = "xyzzy.bin"
    assert cli.os_sentence(missing).endswith("xyzzy.bin. Check the path.")


def test_every_verb_has_help_that_says_what_it_does(monkeypatch, capsys) -> None:
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    for command in cli.build().registered_commands:
        assert (command.callback.__doc__ or "").strip(), command.name
    for verb in ("demo", "tokenizer", "tokenize", "train", "generate", "evaluate", "doctor"):
        assert verb in out


def test_a_mistake_is_one_sentence(monkeypatch, capsys) -> None:
    code, _, err = run(monkeypatch, capsys, "doctor", raising=FledgeError("Something is wrong. Do this."))
    assert (code, err) == (2, "fledge: Something is wrong. Do this.\n")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.ENOENT, "no file or folder"),
        (errno.EACCES, "not permitted"),
        (errno.EEXIST, "exists already"),
    ],
)
def test_the_system_s_refusals_are_sentences(monkeypatch, capsys, number: int, words: str) -> None:
    code, _, err = run(monkeypatch, capsys, "doctor", raising=OSError(number, "x", "some/file"))
    assert code == 2
    assert words in err
    assert "some/file" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_wherever_it_stands_and_exits_as_without_it(monkeypatch, capsys) -> None:
    for arguments in (["--debug", "doctor"], ["doctor", "--debug"]):
        code, _, err = run(monkeypatch, capsys, *arguments, raising=FledgeError("Wrong."))
        assert code == 2
        assert "Traceback" in err
        assert err.endswith("fledge: Wrong.\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trian", "fledge has no command trian. Did you mean fledge train? See fledge --help."),
        (
            "bundle shwo",
            "fledge bundle has no command shwo. Did you mean fledge bundle show? See fledge bundle --help.",
        ),
        ("xyzzy", "fledge has no command xyzzy. See fledge --help."),
        ("train x --quite", "fledge train has no option --quite. Did you mean --quiet? See fledge train --help."),
        ("train x --layers 6", "no option --layers. It is a setting: --set model.layers=VALUE."),
        ("train x --seed 1", "It is a setting: --set training.seed=VALUE."),
        ("generate x -z", "fledge generate has no option -z. See fledge generate --help."),
        ("train x --resume", "--resume needs a value: the folder of a run to resume."),
        ("generate", "fledge generate needs BUNDLE: a bundle, a run, or a packed bundle."),
        ("tokenize x -o y", "fledge tokenize needs --tokenizer: a tokenizer's folder or file"),
        ("corpus show x --validation-fraction 0.9", "--validation-fraction 0.9 is not allowed: "),
        ("corpus show x --samples abc", "--samples abc is not allowed: "),
        ("corpus show x --format cvs", "'cvs' is not one of 'auto', 'text'"),
        ("doctor now", "fledge doctor does not understand 'now'"),
    ],
)
def test_a_mistyped_command_is_one_sentence(monkeypatch, capsys, arguments: str, sentence: str) -> None:
    code, out, err = run(monkeypatch, capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("fledge: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_group_without_a_command_shows_its_help(monkeypatch, capsys) -> None:
    for arguments in ([], ["bundle"]):
        code, out, err = run(monkeypatch, capsys, *arguments)
        assert code == 2
        assert "Usage: fledge" in out
        assert err == ""


def outputs(command, path: str = "fledge"):
    """Every command that names an output, with the spellings that it takes."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from outputs(inner, f"{path} {name}")
    yield from ((path, param.opts) for param in command.params if "--out" in param.opts)


def test_an_output_is_named_the_same_everywhere() -> None:
    import typer

    found = dict(outputs(typer.main.get_command(cli.build())))
    for path in ("demo", "train", "tokenize", "tokenizer train", "bundle pack", "bundle export", "bundle import"):
        assert f"fledge {path}" in found
    assert [path for path, spellings in found.items() if "-o" not in spellings] == []


def test_who_reads_no_further_is_no_error() -> None:
    """`fledge … | head`: the program ends as quietly as any other whose reader is gone."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fledge", "corpus", "fetch", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_broken_pipe_elsewhere_is_a_sentence(monkeypatch, capfd) -> None:
    code, _, err = run(monkeypatch, capfd, "doctor", raising=BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert code == 2
    assert "Broken pipe" in err


def test_the_way_to_an_extra_is_that_of_the_installation(monkeypatch, tmp_path) -> None:
    from fledge import extras

    monkeypatch.setattr(extras, "source_folder", lambda: None)
    assert extras.install_command("web") == "pip install 'fledge-lm[web]'"
    monkeypatch.setattr(extras, "source_folder", lambda: tmp_path)
    assert extras.install_command("web") == f"pip install '{tmp_path}[web]'"
    (tmp_path / "constraints.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert extras.install_command("web") == "pip install -c constraints.txt '.[web]'"  # as the README has it


def test_every_name_that_pip_is_given_is_that_of_the_package() -> None:
    """`fledge` on PyPI is another project: nothing of ours may tell a person to install it."""
    from fledge.extras import DISTRIBUTION, own_distribution

    root = Path(__file__).parents[2]
    assert f'name = "{DISTRIBUTION}"' in (root / "pyproject.toml").read_text()
    found = own_distribution()
    assert found is not None
    assert any("fledge" in str(file) for file in found.files or [])
    texts = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("src/**/*.py"), root / "pyproject.toml"]
    wrong = [
        path
        for path in texts
        if re.search(r"""pip install[^\n]*['" ]fledge\b(?!-lm|_lm)|\bfledge\[""", path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "setting",
    ["model.width=8000000000", "training.batch_size=9999999999", "tokens.context_length=9999999999"],
)
def test_what_no_memory_holds_is_a_sentence(fledge: Fledge, tmp_path: Path, setting: str) -> None:
    (tmp_path / "text.txt").write_text("A line of text to learn from, and then another one.\n" * 400)
    found = fledge(
        "train",
        "akjv-demo",
        "--set",
        f"corpus.source={tmp_path}/text.txt",
        "--out",
        tmp_path / "run",
        *(part for small in SMALL for part in ("--set", small)),
        "--set",
        setting,
    )
    assert found.code == 2
    assert "too large for this machine" in found.err or "not one window" in found.err


def test_a_name_that_is_no_text_is_printed_as_it_was_given(tmp_path: Path) -> None:
    """Under a locale whose output is strict, in a process of its own."""
    name = os.fsencode(tmp_path) + b"/\xff.txt"
    done = subprocess.run(
        [sys.executable, "-m", "fledge", "corpus", "show", name],
        env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
    )
    assert done.returncode == 2
    assert name in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_spelled_out(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-m", "fledge", "--help"], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"fledge demo" in done.stdout


def test_closed_streams_are_no_error() -> None:
    for closed in ("<&-", ">&-", "2>&-"):
        done = subprocess.run(["sh", "-c", f"'{sys.executable}' -m fledge --version {closed}"], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_command_to_type_next_takes_no_name_for_an_option() -> None:
    assert errors.command("generate", Path("-x")) == "fledge generate ./-x"


def test_threads_do_not_wait_awake_for_long_unless_a_person_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, kept in (({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)):
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.setenv(name, "")  # so that it is put back as it was
            monkeypatch.delenv(name)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        cli.prepare_threads()
        assert os.environ.get("GOMP_SPINCOUNT") == kept


def test_the_value_that_is_refused_is_the_one_that_is_quoted(monkeypatch, capsys, tmp_path: Path) -> None:
    code, _, err = run(monkeypatch, capsys, "generate", str(tmp_path), "--seed", "3", "--seed", "abc")
    assert code == 2
    assert "abc" in err
    assert "3" not in err
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # for root, everything is readable
    (tmp_path / "hidden").touch()
    code, _, err = run(monkeypatch, capsys, "bundle", "check", str(tmp_path / "hidden"))
    assert code == 2
    assert err.startswith("fledge: BUNDLE is not allowed: ")
    assert str(tmp_path / "hidden") in err


def test_a_disk_that_fails_is_named_with_its_file() -> None:
    assert cli.os_sentence(OSError(errno.EIO, "Input/output error", "a.txt")).startswith("a.txt could not be read")
    assert cli.os_sentence(OSError(errno.EIO, "Input/output error")).startswith("a file could not be read or written:")


@pytest.mark.parametrize("change", ["model.layers={}", "{}=1", "model.{}=1", "model.architecture={}", "{}"])
def test_a_long_value_is_not_echoed_whole(fledge: Fledge, change: str) -> None:
    wrong = fledge("account", "show", "akjv-demo", "--set", change.format("x" * 5000))
    assert wrong.code == 2
    assert len(wrong.err) < 2000
    assert len(fledge("account", "show", "y" * 5000).err) < 2000


@pytest.mark.parametrize(
    "line",
    [
        "LONG",
        "train --LONG",
        "train akjv-demo LONG",
        "train akjv-demo --time-limit LONG",
        "evaluate . --split LONG",
        "corpus fetch LONG",
        "account akjv-demo --device LONG",
    ],
)
def test_nothing_long_on_a_command_line_is_echoed_whole(fledge: Fledge, line: str) -> None:
    wrong = fledge(*line.replace("LONG", "x" * 5000).split())
    assert wrong.code == 2
    assert "x" * 30 in wrong.err
    assert len(wrong.err) < 1000
