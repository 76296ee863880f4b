"""`fledge demo`: the whole walk, from the text of the Bible to a model that writes verses, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fledge.cli.settings import Set
from fledge.errors import FledgeError, command

if TYPE_CHECKING:
    from fledge.run import Run


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder.")] = Path("runs/akjv-demo"),
    set_: Set = None,
) -> None:
    """Text → tokenizer → tokens → model → training → bundle → verses → report, on this machine, in a few minutes.

    After Ctrl-C or a crash, the same command resumes.
    """
    from fledge.run import Run

    console = Console(highlight=False, soft_wrap=True)
    default = Path("runs/akjv-demo")
    changes = [f"--set={change}" for change in set_ or []] + ([] if out == default else ["--out", str(out)])
    again = command("demo", *changes)
    try:
        walk(console, Run("akjv-demo", out, overrides=set_ or []), out, again)
    except KeyboardInterrupt:
        console.print(f"\nStopped. What is done is kept; to go on: {again}", markup=False)
        raise typer.Exit(130) from None


def walk(console: Console, run: Run, out: Path, again: str) -> None:
    """Every step of the way, each said when it is done; `again` is the command that goes on."""
    from fledge.reports.run import report_run
    from fledge.tokens import write_store

    run.claim()
    say = _Steps(console)
    documents = list(run.corpus.documents())
    name = "verses" if run.config.corpus.source == ("akjv",) else "documents"
    say("text", f"{len(documents):,} {name}, {sum(map(len, documents)) / 1e6:.1f} MB")
    tokenizer, fitted = run.tokenizer, run.config.tokenizer
    part = "trained on the training part alone" if fitted.fit_on == "train" else "trained on all of the text"
    say("tokenizer", f"{fitted.kind}, {tokenizer.vocab_size:,} tokens, {fitted.path or part}")
    write_store(run.corpus, tokenizer, out / "tokens")
    train, validation = (run.tokens.split(name) for name in ("train", "validation"))
    if not len(validation.tokens):
        raise FledgeError(
            "The demo measures on text that is held out, and none is: set corpus.validation_fraction above 0."
        )
    run.windows("validation")  # too little of it is refused before training, not after
    ratio = train.source_bytes / len(train.tokens)
    say("tokens", f"{len(train.tokens):,} to train on, {len(validation.tokens):,} held out, {ratio:.2f} bytes each")
    model = run.config.model
    say(
        "model",
        f"{model.architecture}, {model.layers} layers × {model.width}, {run.model.parameters_count():,} parameters",
    )
    say(
        "training",
        f"{run.config.steps:,} steps of {run.config.training.batch_size} × {run.config.tokens.context_length} tokens",
    )
    run.begun()
    result = run.train(leave=True)
    if result.stopped:
        console.print(
            f"\nStopped at step {result.step:,} of {result.steps:,}. The model so far is whole: "
            f"{command('generate', out)}\nTo go on where it stopped: {again}",
            markup=False,
        )
        raise typer.Exit(130)
    report = report_run(run, result)
    say("bundle", f"{result.best}: weights, tokenizer and settings, checked and self-contained")
    loss, bigram, trigram = report.evaluation.loss, report.baselines["bigram"], report.baselines["trigram"]
    say(
        "result",
        f"{loss:.3f} nats per held-out token; a bigram model needs {bigram:.3f}, a trigram model {trigram:.3f}",
    )
    say("report", str(report.path))
    console.print()
    for prompt, text in report.samples:
        console.print(f"[bold]{escape(prompt)}[/bold]{escape(text)}\n")
    console.print("Worth trying next:")
    for words in (
        ("generate", out, "--prompt", "And God said", "--temperature", 0.6),
        ("evaluate", out, "--tokens", out / "tokens"),
        ("train", "akjv"),
    ):
        console.print(f"  {command(*words)}", markup=False)


class _Steps:
    """Numbers the steps as they are done."""

    def __init__(self, console: Console) -> None:
        self.console, self.count = console, 0

    def __call__(self, name: str, fact: str) -> None:
        self.count += 1
        self.console.print(f"[bold]{self.count} {name:<10}[/bold] {escape(fact)}")
