"""The command line answers a person's mistake with one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import errno

import pytest

from fledge import __version__, cli
from fledge.errors import FledgeError


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
    [(errno.ENOSPC, "disk is full"), (errno.ENOENT, "no file or folder"), (errno.EACCES, "not permitted")],
)
def test_the_system_s_refusals_are_sentences(monkeypatch, capsys, number: int, words: str) -> None:
    code, _, err = run(monkeypatch, capsys, "doctor", raising=OSError(number, "x", "some/file"))
    assert code == 2
    assert words in err
    assert "some/file" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch) -> None:
    def doctor() -> None:
        raise FledgeError("Wrong.")

    monkeypatch.setattr("fledge.cli.doctor.doctor", doctor)
    for arguments in (["--debug", "doctor"], ["doctor", "--debug"]):
        monkeypatch.setattr("sys.argv", ["fledge", *arguments])
        with pytest.raises(FledgeError, match="Wrong"):
            cli.main()
