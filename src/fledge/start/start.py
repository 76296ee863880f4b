"""From a person's own text to their own model: plan, train in the time, report.

The run's folder is like any other, with `recipe.toml` (what was chosen, a sentence for each) and `start.json` besides.
Stopped and called again, the choices stand and training goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import load_recipe
from fledge.config.writing import Choice, recipe_text, write_recipe
from fledge.errors import FledgeError
from fledge.files import PARTIAL, read_json, write_json
from fledge.reports.quality import forecast_verdict
from fledge.reports.run import REPORTED_TOKENS, openings
from fledge.runs.checkpoints import checkpoints
from fledge.runs.folder import is_run
from fledge.runs.layout import CONFIG, START, TOKENIZER
from fledge.start import choose, law, work
from fledge.start.forecast import expectation, forecast
from fledge.start.look import name_of
from fledge.start.plan import EVALUATIONS, KEPT, TRAINED, Planner, Say, given, report_seconds, watching

if TYPE_CHECKING:
    from fledge.reports.run import RunReport
    from fledge.run import Run
    from fledge.training import TrainingResult

RECIPE = "recipe.toml"


class Start:
    """One start under way. `say` is told each thing as it is known: a word for it, and a sentence."""

    def __init__(
        self,
        texts: Sequence[str],
        seconds: float,
        time_text: str,
        folder: Path | None,
        say: Say,
        overrides: Sequence[str] = (),
    ) -> None:

        self.began = time.monotonic()
        if "-" in texts:
            raise FledgeError("fledge start reads its text several times, and standard input only once. Name a file.")
        self.texts = [str(Path(text).absolute()) if Path(text).exists() else text for text in texts]
        self.seconds, self.time_text, self.say = seconds, time_text, say
        self.folder = folder or Path("runs") / name_of(texts[0])
        self.given = given(overrides)
        self.choices: list[Choice] = []
        self.speed = 0.0

    def run(self) -> Run:
        """The run as it was begun here before, or a new one whose recipe is chosen now."""
        from fledge.run import Run

        if begun(self.folder, self.texts):
            shutil.rmtree(self.folder)  # a kill came between the choice and its last file
        asked = {"texts": self.texts, "time": self.time_text, "set": self.given}
        kept = read_json(self.folder / START) if (self.folder / START).is_file() else {}
        if isinstance(kept, dict) and {"choices", "texts", "time", "speed"} <= kept.keys():
            if kept["texts"] != self.texts:
                raise FledgeError(
                    f"{self.folder} was started with other texts ({', '.join(kept['texts'])}). Name another folder "
                    "with --out."
                )
            if self.given and self.given != kept.get("set"):
                raise FledgeError(
                    f"{self.folder} was started with other settings. Leave --set out to resume it, or name "
                    "another folder with --out."
                )
            self.choices, self.speed = [Choice(*choice) for choice in kept["choices"]], kept["speed"]
            run = Run(load_recipe(str(self.folder / RECIPE)), self.folder)
            if kept["time"] != self.time_text:
                return self.extended(run, str(kept["time"]))
            self.say("recipe", f"{self.folder / RECIPE}, chosen before: going on with it")
            return run
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise FledgeError(f"{self.folder} exists already. Name another folder with --out, or remove that one.")
        plan = Planner(self.texts, self.seconds, self.time_text, self.folder, self.given, self.say, self.left).plan()
        self.choices, self.speed = plan.choices, plan.facts["speed"]
        run = Run(plan.config, self.folder, quiet=False)
        run.claim()
        write_json(self.folder / START, asked)
        plan.tokenizer.save(self.folder / TOKENIZER)
        write_recipe(self.folder / RECIPE, recipe_text(plan.config.name, plan.title, self.choices))
        write_json(self.folder / START, asked | plan.facts | {"choices": self.choices})
        self.say("recipe", f"{self.folder / RECIPE}: every choice with its reason")
        return run

    def extended(self, run: Run, former: str) -> Run:
        """The run that was planned for another time, with its text, tokenizer, model and what it has learned: a longer
        time adds steps, a shorter one takes none away."""
        from fledge.run import Run
        from fledge.tokens import TokenStore
        from fledge.training import parse_duration

        self.write_tokens(run)
        more = self.seconds - parse_duration(former)
        config, plan = run.config, {key: value for choice in self.choices for key, value in choice.values.items()}
        former_plan = read_json(self.folder / START)
        planned = int(plan.get("training.steps", config.steps))  # of this file, for a kill may come before the next
        size = config.training.batch_size * config.tokens.context_length
        # Not the run's own: it would refuse a folder whose settings a kill left shorter than those of the recipe.
        unique = len(TokenStore.open(self.folder / "tokens").split("train").tokens)
        sensible = choose.MOST_PASSES * unique // size
        steps = planned + int(max(0.0, min(TRAINED * more * self.speed / size, sensible - planned)))
        said = f"{self.folder / RECIPE}, chosen before for {former}: going on with its tokenizer and model"
        if steps == planned:
            why = "more passes over the text would overfit" if more > 0 else "no step is taken away"
            self.say("recipe", f"{said}. It stays at {planned:,} steps, for {why}")
            if more <= 0:
                return run
        else:
            self.say("recipe", f"{said}, to {steps:,} steps instead of {planned:,}")
        by_hand = former_plan.get("set") or {}
        rhythm = {key: value for key, value in watching(steps).items() if key in plan and key not in by_hand}
        if plan.get("training.keep_every") and "training.keep_every" not in by_hand:  # 0 where they would fill the disk
            rhythm["training.keep_every"] = EVALUATIONS // KEPT * watching(steps)["training.evaluate_every"]
        new: dict[str, Any] = {"training.steps": steps, **rhythm}
        patience = steps > planned and "training.patience" in plan and "training.patience" not in by_hand
        for place, choice in enumerate(self.choices):
            values, why = {key: new.get(key, value) for key, value in choice.values.items()}, choice.why
            if "training.steps" in values:
                why += f"; planned for {former}, and lengthened for {self.time_text}"
            if patience and "training.patience" in values:
                del values["training.patience"]
                why = (
                    "as often in the longer run; it is not ended early, for the learning rate is raised again, and the "
                    "held-out loss rises with it before it falls below what it was; the model is that of the lowest"
                )
            self.choices[place] = Choice(values, why)
        overrides = [f"{key}={value}" for key, value in new.items()] + ["training.patience=none"] * patience
        run = Run(load_recipe(str(self.folder / RECIPE), overrides), self.folder)
        title = f"Chosen by fledge start for {', '.join(self.texts)} and {former}, lengthened to {self.time_text}."
        write_recipe(self.folder / RECIPE, recipe_text(config.name, title, self.choices))
        kept: dict[str, Any] = {
            "texts": self.texts,
            "time": self.time_text,
            "speed": self.speed,
            "choices": self.choices,
        }
        if former_plan.get("counts"):
            text = law.Text(unique, **former_plan["counts"])
            kept["forecast"] = forecast(run.config, run.tokenizer.vocab_size, text)
            self.say("forecast", expectation(kept["forecast"]))
        write_json(self.folder / START, former_plan | kept)
        return run

    def train(self, run: Run) -> TrainingResult:
        """To the planned end, within the time; a run begun before goes on, and takes what its steps take."""
        if not checkpoints(self.folder):
            self.write_tokens(run)

        def left() -> float:
            train, held_out = (len(run.tokens.split(name).tokens) for name in ("train", run.tokens.final))
            return self.left() - report_seconds(self.seconds, self.speed, held_out, train)

        return work.train(run, left, self.say)

    def write_tokens(self, run: Run) -> None:
        """The run's token store, which belongs to a start: nobody is told how to make one beforehand."""
        from fledge.tokens import write_store

        if not (self.folder / "tokens" / "store.json").is_file():
            write_store(run.corpus, run.tokenizer, self.folder / "tokens", progress=not run.quiet)

    def report(self, run: Run, result: TrainingResult) -> RunReport:
        from fledge.reports.run import report_run

        prompts = ("", *openings(run.corpus.documents("validation")))
        plan = read_json(self.folder / START)
        report = report_run(
            run, result, prompts, choices=self.choices, forecast=plan.get("forecast"), most_tokens=REPORTED_TOKENS
        )
        self.keep_result(run, report, plan)
        return report

    def keep_result(self, run: Run, report: RunReport, plan: dict[str, Any]) -> None:
        """Add the final figures to what was chosen."""
        found = report.evaluation
        if found.bits_per_byte is None:
            return
        bits = found.bits_per_byte / found.loss
        result: dict[str, Any] = {
            "bits_per_byte": round(found.bits_per_byte, 4),
            "part": run.tokens.final,
            "baselines": {name: round(bits * loss, 4) for name, loss in report.baselines.items()},
        }
        if said := forecast_verdict(plan.get("forecast"), found.bits_per_byte):
            result["off"] = round(found.bits_per_byte / plan["forecast"]["bits_per_byte"] - 1, 4)
            self.say("forecast", said)
        write_json(self.folder / START, plan | {"result": result})

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)


def begun(folder: Path, texts: Sequence[str]) -> bool:
    """Whether a folder holds no more than the first files of a start with these texts, which says at its end what it
    chose."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir() if not path.name.endswith(PARTIAL)}
    if START not in names:
        return names == {CONFIG} and is_run(folder) and read_json(folder / CONFIG)["corpus"]["source"] == list(texts)
    kept = read_json(folder / START)
    ours = isinstance(kept, dict) and kept.get("texts") == list(texts) and "choices" not in kept
    return ours and names <= {CONFIG, START, TOKENIZER, RECIPE}
