"""What several models that teach one are worth: teachers of one shape, their student, and one model of the same time.

    python -m tools.teach teach.csv books=books.txt --bytes 120k --shape 2x64 --passes 16 --teachers 3 --seeds 0 1 2

A row for each seed: the teachers' mean, the student's figure, and that of models that had the whole time for themselves
(`--rivals`, as SHAPE@PASSES; a student's step costs a third more for each teacher). All are measured on the test part.
Rows that are in the file already are not trained again. docs/results/little-text.md says what came of it.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from fledge.accounting import Account
from fledge.config import RunConfig, override_config
from fledge.run import Run
from tools.grid import Text, number

COLUMNS = ("text", "bytes", "what", "layers", "width", "passes", "seed", "share", "bits_per_byte", "flops")


def trained(config: RunConfig, folder: Path) -> float:
    """Bits per byte on the test part, after training into a folder."""
    run = Run(config, folder, quiet=True)
    if stopped := run.train(quiet=True).stopped:
        raise SystemExit(f"Stopped ({stopped}). The same command goes on.")
    return run.evaluate(split="test", max_tokens=1_000_000).bits_per_byte or math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("text", metavar="NAME=TEXT")
    parser.add_argument("--bytes", default="120k")
    parser.add_argument("--shape", default="2x64")
    parser.add_argument("--passes", type=float, default=16)
    parser.add_argument("--teachers", type=int, default=3)
    parser.add_argument("--share", type=float, nargs="+", default=[0.5])
    parser.add_argument("--rivals", nargs="+", default=[], metavar="SHAPE@PASSES")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--set", nargs="+", default=[], metavar="A.B=C", dest="given")
    parser.add_argument("--work", type=Path, default=None, help="where texts and token stores are kept")
    options = parser.parse_args()
    name, _, source = options.text.partition("=")
    size, done = number(options.bytes), set()
    if options.table.is_file():
        with options.table.open(newline="") as file:
            done = {tuple(row[key] for key in COLUMNS[:8]) for row in csv.DictReader(file)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = Text(name, source, size, options.work or folder, torch.cuda.is_available(), options.given)

        def config_of(shape: str, passes: float, seed: int) -> RunConfig:
            layers, _, width = shape.partition("x")
            return text.cell((int(layers), int(width)), passes, options.context, seed, options.given)

        def keep(
            what: str, config: RunConfig, passes: float, seed: int, share: float, bits: float, times: float
        ) -> None:
            model = config.model
            account = Account(model, text.run.tokenizer.vocab_size, options.context)
            flops = times * account.flops_per_token * passes * text.unique
            row = (name, size, what, model.layers, model.width, passes, seed, share, round(bits, 4), f"{flops:.4g}")
            new = not options.table.is_file()
            with options.table.open("a", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([*([COLUMNS] if new else []), row])
            done.add(tuple(map(str, row[:8])))
            print(*row, flush=True)

        def is_done(what: str, config: RunConfig, passes: float, seed: int, share: float) -> bool:
            model = config.model
            return tuple(map(str, (name, size, what, model.layers, model.width, passes, seed, share))) in done

        count = options.teachers
        for seed in options.seeds:
            for rival in options.rivals:
                shape, _, passes = rival.partition("@")
                alone = config_of(shape, float(passes), seed)
                if not is_done("alone", alone, float(passes), seed, 0.0):
                    bits = trained(alone, folder / f"alone-{rival}-{seed}")
                    keep("alone", alone, float(passes), seed, 0.0, bits, 1)
            student = config_of(options.shape, options.passes, seed)
            left = [
                share
                for share in options.share
                if not is_done(f"taught by {count}", student, options.passes, seed, share)
            ]
            if not left:
                continue
            teachers, bits = [folder / f"teacher-{seed}-{number}" for number in range(count)], []
            for place, teacher in enumerate(teachers):
                bits.append(trained(config_of(options.shape, options.passes, 100 * (seed + 1) + place), teacher))
            keep(f"mean of {count} teachers", student, options.passes, seed, 0.0, statistics.fmean(bits), count)
            for share in left:
                lines = [f"training.teachers={[str(teacher) for teacher in teachers]}".replace("'", '"')]
                config = override_config(student, [*lines, f"training.teachers_share={share}"])
                found = trained(config, folder / f"student-{seed}-{share}")
                keep(f"taught by {count}", student, options.passes, seed, share, found, count + 1 + count / 3)


if __name__ == "__main__":
    sys.exit(main())
