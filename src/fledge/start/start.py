"""From a person's own text to their own model: look at the text and the machine, choose, train in the time, report.

The run's folder is like any other, with `recipe.toml` (what was chosen, a sentence for each) and `start.json` besides.
Stopped and called again, the choices stand and training goes on.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge import devices
from fledge.config import (
    CorpusConfig,
    ModelConfig,
    RunConfig,
    TokenizerConfig,
    TokensConfig,
    load_recipe,
    nearest_setting,
    override_config,
    parse,
    parse_value,
    setting_paths,
)
from fledge.config.writing import Choice, config_of, recipe_text, with_given, write_recipe
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.files import PARTIAL, read_json, readable_bytes, write_json
from fledge.reports.run import REPORTED_TOKENS, openings
from fledge.runs.folder import is_run
from fledge.runs.layout import CONFIG, START, TOKENIZER
from fledge.start import choose
from fledge.start.choose import Look, Size

if TYPE_CHECKING:
    from fledge.corpus.corpus import Split
    from fledge.reports.run import RunReport
    from fledge.run import Run
    from fledge.tokenizer import Tokenizer
    from fledge.training import TrainingResult

RECIPE = "recipe.toml"
LEAST_BYTES = 20_000
LOOKED_AT, SAMPLE = 64 << 20, 4 << 20
"Bytes that are looked at, and that are encoded to see how long a token is."
TOKENIZED_PER_SECOND = 20e6  # bytes; slow enough to be true of any machine
TRAINED = 0.93  # of the time for steps that is planned for; the rest is for a machine slower than when it was measured
EVALUATIONS, EVALUATED, PATIENCE = 16, 256, 5
KEPT = 8  # of the evaluations are kept as checkpoints, beside the best and the last two
KEPT_SHARE = 0.1  # of the free disk that these may take
CHECKPOINT_BYTES = 12  # for each parameter: itself and two moments
TEST = 0.05  # of the text, held out for the final figure
FORWARD = 0.4  # of a token's training time for one that is only evaluated
FEWEST_STEPS = 30
COMPILED_FROM = 150.0  # seconds left: compiling takes 10 to 30 of them, and gains a third to a half of the others

Say = Callable[[str, str], None]


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
        self.fast = devices.is_gpu(devices.fastest())
        self.batch, self.speed = 0, 0.0

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
                    f"{self.folder} was begun with other settings. Leave --set out to go on with it, or name another "
                    "folder with --out."
                )
            self.choices, self.speed = [Choice(*choice) for choice in kept["choices"]], kept["speed"]
            run = Run(load_recipe(str(self.folder / RECIPE)), self.folder)
            if kept["time"] != self.time_text:
                return self.extended(run, str(kept["time"]))
            self.say("recipe", f"{self.folder / RECIPE}, chosen before: going on with it")
            return run
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise FledgeError(f"{self.folder} exists already. Name another folder with --out, or remove that one.")
        config, tokenizer, title = self.choose()
        run = Run(config, self.folder, quiet=False)
        run.claim()
        write_json(self.folder / START, asked)
        tokenizer.save(self.folder / "tokenizer")
        write_recipe(self.folder / RECIPE, recipe_text(config.name, title, self.choices))
        write_json(self.folder / START, asked | {"speed": self.speed, "choices": self.choices})
        self.say("recipe", f"{self.folder / RECIPE}: every choice with its reason")
        return run

    def extended(self, run: Run, former: str) -> Run:
        """The run that was planned for another time, with its text, tokenizer, model and what it has learned: a longer
        time adds steps, a shorter one takes none away."""
        from fledge.run import Run
        from fledge.training import parse_duration

        self.write_tokens(run)
        more = self.seconds - parse_duration(former)
        config, plan = run.config, {key: value for choice in self.choices for key, value in choice.values.items()}
        former_plan = read_json(self.folder / START)
        planned = int(plan.get("training.steps", config.steps))  # of this file, for a kill may come before the next
        size = config.training.batch_size * config.tokens.context_length
        sensible = choose.MOST_PASSES * len(run.tokens.split("train").tokens) // size
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
        kept = {"texts": self.texts, "time": self.time_text, "speed": self.speed, "choices": self.choices}
        write_json(self.folder / START, former_plan | kept)
        return run

    def choose(self) -> tuple[RunConfig, Tokenizer, str]:
        """Look, measure, decide."""
        from fledge.tokenizer import train_tokenizer

        settings = parse(CorpusConfig, {"source": self.texts, "test_fraction": TEST, **self.given_of("corpus")})
        corpus = Corpus.from_config(settings)
        self.corpus = corpus
        look = self.look(corpus)
        kind, vocabulary, why = choose.choose_vocabulary(look, self.fast)
        chosen = {"kind": kind, "vocabulary_size": vocabulary, **self.given_of("tokenizer")}
        values: dict[str, Any] = {"kind": kind} if vocabulary is None else {"kind": kind, "vocabulary_size": vocabulary}
        self.choices = [
            Choice({"corpus.source": self.texts}, f"the text: {counted(look)}, {readable_bytes(look.bytes)}"),
            Choice(
                {"corpus.test_fraction": TEST},
                "for the final figure: validation text chooses the best step, and nothing is chosen by this part",
            ),
            Choice({f"tokenizer.{key}": value for key, value in values.items()}, why),
        ]
        tokenizer = train_tokenizer(parse(TokenizerConfig, chosen), corpus, progress=True)
        per_token = bytes_per_token(corpus, tokenizer)
        unique = int((0.9 - TEST) * look.bytes / per_token)
        self.say(
            "tokenizer",
            f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens of {per_token:.2f} bytes: {unique:,} to train on",
        )
        context, size = self.choose_model(tokenizer.vocab_size, unique, look.bytes / look.documents / per_token)
        context, size = self.as_given(context, size, tokenizer.vocab_size)
        self.choose_training(context, size, unique, (0.1 + TEST) * look.bytes / per_token, tokenizer.vocab_size)
        self.choices = with_given(self.choices, self.given)
        config = config_of(name_of(self.texts[0]), self.choices)
        if config.training.start == "pairs" and not self.can_begin_with_pairs(config, tokenizer.vocab_size):
            self.choices = [choice for choice in self.choices if "training.start" not in choice.values]
            config = config_of(config.name, self.choices)
        machine = machine_name()
        title = f"Chosen by fledge start for {', '.join(self.texts)} and {self.time_text} on {machine}."
        return config, tokenizer, title

    def can_begin_with_pairs(self, config: RunConfig, vocabulary_size: int) -> bool:
        """Whether the model, as set by hand, can; a wish for it that can't be met is refused."""
        from fledge.training.pairs import require_pairs

        try:
            require_pairs(config, vocabulary_size)
        except FledgeError:
            if "training.start" in self.given:
                raise
            return False
        return True

    def given_of(self, group: str) -> dict[str, Any]:
        """What was set by hand in one group of settings."""
        return {key.partition(".")[2]: value for key, value in self.given.items() if key.startswith(f"{group}.")}

    def as_given(self, context: int, size: Size, vocabulary_size: int) -> tuple[int, Size]:
        """Context and size with what was set by hand; the speed follows from the FLOPs of a token."""
        from fledge.accounting import Account

        chosen = choose.model_of(size.layers, size.width, self.fast)
        model = parse(ModelConfig, {**chosen.model_dump(), **self.given_of("model")})
        length = parse(TokensConfig, {"context_length": context, **self.given_of("tokens")}).context_length
        self.batch = int(self.given.get("training.batch_size", self.batch))
        if (model, length) == (chosen, context):
            return context, size
        before, now = Account(chosen, vocabulary_size, context), Account(model, vocabulary_size, length)
        self.speed *= before.flops_per_token / now.flops_per_token
        self.say("set", f"{now.parameters.total:,} parameters with what was set by hand, context {length}")
        return length, size._replace(layers=model.layers, width=model.width, parameters=now.parameters.total)

    def look(self, corpus: Corpus) -> Look:
        look = look_at(corpus)
        if look.bytes < LEAST_BYTES:
            raise FledgeError(
                f"{corpus.name} holds {look.bytes:,} bytes of text: too little to learn a language from. Give at least "
                f"{LEAST_BYTES:,}, better a hundred times as much."
            )
        if (needed := 2 * look.bytes / TOKENIZED_PER_SECOND) > self.seconds / 3:
            raise FledgeError(
                f"{corpus.name} holds {readable_bytes(look.bytes)}: to read and tokenize it may take {needed:,.0f} of "
                f"the {self.seconds:,.0f} seconds. Give a longer --time, or fewer texts."
            )
        self.say("text", f"{readable_bytes(look.bytes)} in {counted(look)}, {look.characters} different characters")
        return look

    def choose_model(self, vocabulary_size: int, unique: int, document_tokens: float) -> tuple[int, Size]:
        """Context and size, by measuring a few sizes."""
        from fledge.accounting import Account

        fast = self.fast
        start = choose.LADDER.index((8, 512) if fast else (4, 128))
        seconds = min(1.5, max(0.2, self.seconds / 200))
        first = choose.model_of(*choose.LADDER[start], fast)
        left = max(1.0, self.left() - 9 * seconds)
        speed = measured_speed(first, vocabulary_size, 64, 32, seconds)
        flops = speed * Account(first, vocabulary_size, 64).flops_per_token
        context, why = choose.choose_context(flops * left, document_tokens)
        self.choices.append(Choice({"tokens.context_length": context}, why))

        def measure(model: Any) -> float:
            batch = choose.choose_batch(
                left * flops / Account(model, vocabulary_size, context).flops_per_token, context
            )
            return measured_speed(model, vocabulary_size, context, batch, seconds)

        most = 3 if fast else 5
        size, sizes = choose.choose_size(0.85 * left, unique, vocabulary_size, context, measure, start, most, fast)
        model = choose.model_of(size.layers, size.width, fast)
        self.batch, self.speed = choose.choose_fast_batch(
            choose.choose_batch(size.tokens, context),
            lambda batch: measured_speed(model, vocabulary_size, context, batch, seconds),
        )
        way = {} if fast else self.choose_way(model, vocabulary_size, context, seconds)
        shape = {f"model.{name}": getattr(model, name) for name in ("layers", "width", "heads", "tied", "qk_norm")}
        why = f"{size.parameters:,} parameters, which learn at {self.speed:,.0f} tokens/s here; {rivals(size, sizes)}"
        self.choices.append(Choice(shape, why))
        if way:
            self.choices.append(Choice(way, "measured here: the quickest way to take the same steps"))
        self.say("model", f"{size.layers} layers × {size.width}, {size.parameters:,} parameters, context {context}")
        return context, size

    def choose_way(
        self, model: ModelConfig, vocabulary_size: int, context: int, seconds: float
    ) -> dict[str, str | float]:
        """Precision and compilation on a CPU: what is quickest here, its own cost included. Nothing set by hand is
        tried."""
        import torch

        from fledge.training.optimizers import quick_type

        def speed(way: dict[str, str | float]) -> float:
            lines = [f"{name}={value}" for name, value in way.items()]
            return measured_speed(model, vocabulary_size, context, self.batch, seconds, lines)

        chosen: dict[str, str | float] = {}
        narrow: dict[str, str | float] = {"training.precision": "bf16"}
        has_unit = quick_type(torch.device("cpu")) is torch.bfloat16
        if has_unit and "training.precision" not in self.given and (found := speed(narrow)) > self.speed:
            self.speed, chosen = found, narrow
        if self.left() < COMPILED_FROM or "training.compile" in self.given:
            return chosen
        compiled, began = chosen | {"training.compile": "on"}, time.monotonic()
        try:
            found = speed(compiled)
        except RuntimeError:  # no compiler on this machine, or one that torch can't use
            return chosen
        again = (time.monotonic() - began) / 2  # training compiles once more, with part of the work kept
        if found * (self.left() - again) > self.speed * self.left():
            self.speed, chosen = found, compiled
        return chosen

    def choose_training(self, context: int, size: Size, unique: int, held_out: float, vocabulary_size: int) -> None:
        """Batch, steps, rate and what goes with them, so that training and report end in the time."""
        batch = self.batch
        looks = EVALUATIONS * (EVALUATED * context * FORWARD / self.speed + 0.5)
        to_tokenize = (unique + held_out) / 1e7
        to_count = 0.0 if self.fast else self.counting_seconds(size, context, vocabulary_size)
        spare = max(0.0, self.left() - self.report_seconds(held_out, unique) - looks - to_tokenize - to_count)
        allowed, sensible = TRAINED * spare * self.speed, choose.MOST_PASSES * unique
        steps = int(self.given.get("training.steps", min(allowed, sensible) / (batch * context)))
        if steps < FEWEST_STEPS:
            raise FledgeError(
                f"--time {self.time_text} is too short: after looking and measuring, {steps} steps would be left for "
                f"training, and {FEWEST_STEPS} are the least. Give a longer --time."
            )
        passes = steps * batch * context / unique
        dropout, dropout_why = choose.choose_dropout(passes)
        decay, decay_why = choose.choose_decay(passes)
        schedule, schedule_why = choose.choose_schedule(passes)
        length_why = (
            f"{steps * batch * context:,} tokens, {passes:.1f} passes over the text, are what the time allows; the "
            "batch is as small as runs fast here, for many steps teach more than few"
            if allowed <= sensible
            else f"{passes:.1f} passes over the text; more passes would overfit, so training ends early"
        )
        if not self.fast:
            self.choices.append(
                Choice(
                    {"training.start": "pairs", "optimizer.matrix_learning_rate": 0.03},
                    "time is short on a CPU: the model begins as a bigram model fitted to counts, and its matrices "
                    "learn at a higher rate than the default of 0.02",
                )
            )
        often = watching(steps)["training.evaluate_every"]
        kept, kept_why = self.choose_kept(EVALUATIONS // KEPT * often, size.parameters)
        self.choices += [
            Choice({"model.dropout": dropout}, dropout_why),
            Choice(
                {"optimizer.name": "muon", "optimizer.learning_rate": choose.choose_rate(size.width)},
                "Muon learns more from a step than AdamW; the rate is that of the packaged recipes, which falls with "
                "the root of the width",
            ),
            Choice({"optimizer.weight_decay": decay}, decay_why),
            Choice(
                {**schedule, "schedule.warmup_steps": min(100, steps // 10), "schedule.final_fraction": 0.0},
                f"a tenth of the steps, at most a hundred, to warm up; {schedule_why}",
            ),
            Choice({"training.steps": steps, "training.batch_size": batch}, length_why),
            Choice(
                {
                    **watching(steps),
                    "training.evaluate_windows": EVALUATED,
                    "training.keep_every": kept,
                    "training.patience": PATIENCE,
                },
                "often enough to watch it learn, seldom enough to cost little; training ends when "
                f"{PATIENCE} evaluations in a row have found no lower loss, and the model is that of the lowest; "
                f"{kept_why}",
            ),
            Choice({"sampling.temperature": 0.7}, "below 1, a small model keeps to what it knows"),
            *[
                Choice({"sampling.prompt": opening}, "the first words of a text that is held out")
                for opening in openings(self.corpus.documents("validation"), 1)
            ],
        ]
        self.say(
            "training",
            f"{steps:,} steps of {batch} × {context} tokens, {passes:.1f} passes over the text, "
            f"about {steps * batch * context / self.speed / 60:.1f} minutes",
        )

    def choose_kept(self, every: int, parameters: int) -> tuple[int, str]:
        """How often a checkpoint is kept, to see the model learn afterwards; none where they would fill the disk."""
        place = next(parent for parent in [self.folder, *self.folder.absolute().parents] if parent.exists())
        if KEPT * CHECKPOINT_BYTES * parameters > KEPT_SHARE * shutil.disk_usage(place).free:
            return 0, "no checkpoint on the way is kept, since several of them would fill the disk"
        return every, f"{KEPT} checkpoints on the way are kept, to see how the model learned"

    def keep_plan(self, run: Run) -> None:
        """Add to what was chosen what counting reaches, which the model has to beat."""
        found = self.counts(run)
        write_json(self.folder / START, read_json(self.folder / START) | {"counts": found})
        if found:
            best = min(found, key=lambda name: found[name])
            self.say("counting", f"a {best} reaches {found[best]:.2f} bits per byte, which the model should beat")

    def counts(self, run: Run) -> dict[str, float]:
        """Bits per byte that counting pairs and triples of tokens would reach on held-out text, from a part of it."""
        from fledge.evaluation.ngram import baselines

        def beginning(split: Split, most: int) -> bytes:
            text = bytearray()
            for document in run.corpus.documents(split):
                text += document[: most - len(text)]
                if len(text) >= most:
                    break
            return bytes(text)

        held_out = beginning("validation", SAMPLE // 8)
        train, ids = (
            run.tokenizer.encode_array(text, special="text") for text in (beginning("train", SAMPLE), held_out)
        )
        if min(len(train), len(ids)) < 3:
            return {}
        found = baselines(train, ids, run.tokenizer.vocab_size)
        bits = found.tokens / (len(held_out) * math.log(2))
        return {name: round(getattr(found, name) * bits, 3) for name in ("bigram", "trigram")}

    def train(self, run: Run) -> TrainingResult:
        """To the planned end, within the time; a run begun before goes on, and takes what its steps take."""
        from fledge.bundle import load_bundle
        from fledge.reports.finished import result_of
        from fledge.runs import find_bundle
        from fledge.runs.checkpoints import checkpoints
        from fledge.training import load_checkpoint

        if checkpoints(self.folder):
            checkpoint = load_checkpoint(self.folder)
            values = checkpoint.training.values if checkpoint.training is not None else {}
            if values.get("step") == run.config.steps:
                run.bundle = load_bundle(find_bundle(self.folder))
                return result_of(run)
            return run.train(resume=checkpoint, leave=True)
        self.write_tokens(run)
        train, held_out = (len(run.tokens.split(name).tokens) for name in ("train", run.tokens.final))
        kept_free = self.report_seconds(held_out, train)
        return run.train(time_limit=max(1.0, self.left() - kept_free), leave=True)

    def write_tokens(self, run: Run) -> None:
        """The run's token store, which belongs to a start: nobody is told how to make one beforehand."""
        from fledge.tokens import write_store

        if not (self.folder / "tokens" / "store.json").is_file():
            write_store(run.corpus, run.tokenizer, self.folder / "tokens", progress=not run.quiet)

    def report(self, run: Run, result: TrainingResult) -> RunReport:
        from fledge.reports.run import report_run

        prompts = ("", *openings(run.corpus.documents("validation")))
        report = report_run(run, result, prompts, choices=self.choices, most_tokens=REPORTED_TOKENS)
        self.keep_result(run, report)
        return report

    def keep_result(self, run: Run, report: RunReport) -> None:
        """Add the final figures to what was chosen."""
        found = report.evaluation
        if found.bits_per_byte is None:
            return
        bits = found.bits_per_byte / found.loss
        result = {
            "bits_per_byte": round(found.bits_per_byte, 4),
            "part": run.tokens.final,
            "baselines": {name: round(bits * loss, 4) for name, loss in report.baselines.items()},
        }
        write_json(self.folder / START, read_json(self.folder / START) | {"result": result})

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def counting_seconds(self, size: Size, context: int, vocabulary_size: int) -> float:
        """Of the fit to counts, at half the FLOP/s that training reaches: its table is read as often as multiplied."""
        from fledge.accounting import Account
        from fledge.training.pairs import ROUNDS

        model = choose.model_of(size.layers, size.width, self.fast)
        reached = self.speed * Account(model, vocabulary_size, context).flops_per_token
        return 2 * ROUNDS * 6 * vocabulary_size**2 * size.width / reached

    def report_seconds(self, held_out: float, unique: float) -> float:
        """Of the evaluation, which sees each token in two windows, the counts it is held against, and the samples."""
        counted = min(unique, 100 * REPORTED_TOKENS)
        return (
            2 * FORWARD * min(held_out, REPORTED_TOKENS) / self.speed + 3e-6 * counted + min(5.0, 0.05 * self.seconds)
        )


def rivals(size: Size, sizes: Sequence[Size]) -> str:
    """Why not the next smaller or larger one."""
    place = list(sizes).index(size)
    others = [sizes[near] for near in (place - 1, place + 1) if 0 <= near < len(sizes)]
    worse = [f"{other.layers} × {other.width}" for other in others if other.loss > size.loss]
    said = (
        [f"with what each would see, the scaling law gives it a lower loss than {' and '.join(worse)}"] if worse else []
    )
    if len(worse) < len(others):
        said.append("a larger one would have more than two parameters for each token it sees")
    return ", and ".join(said)


def look_at(corpus: Corpus) -> Look:
    """Size, documents and characters; of a large text the beginning, and the rest reckoned from it."""
    documents = size = 0
    characters: set[str] = set()
    share = 1.0
    for batch in corpus.without_groups().batches():
        text = batch.text.joined()
        if not size:
            characters = set(bytes(text.buffer[: 1 << 20]).decode("utf-8", "replace"))
        documents += len(text)
        size += text.size
        if size >= LOOKED_AT and corpus.size:
            share = batch.consumed / corpus.size
            break
    documents = corpus.few_documents if corpus.contiguous else round(documents / share)
    return Look(documents, round(size / share), len(characters))


def watching(steps: int) -> dict[str, int]:
    """How often a run of so many steps is evaluated, saved, sampled and logged."""
    often = max(1, steps // EVALUATIONS)
    return {
        "training.evaluate_every": often,
        "training.save_every": often,
        "training.sample_every": max(1, steps // 4),
        "training.log_every": max(1, steps // 200),
    }


def counted(look: Look) -> str:
    """
    >>> counted(Look(1, 5000, 60)), counted(Look(1200, 5000, 60))
    ('1 document', '1,200 documents')
    """
    return f"{look.documents:,} document{'s' * (look.documents != 1)}"


def given(overrides: Sequence[str]) -> dict[str, Any]:
    """What was set by hand, by dotted names.

    >>> given(["model.layers=6"])
    {'model.layers': 6}
    """
    values: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or name.count(".") != 1:
            raise FledgeError(f"--set {override!r} is not of the form group.name=value, such as model.layers=6.")
        if name.strip() not in setting_paths():
            raise FledgeError(f"There is no setting {name.strip()}. {nearest_setting(name.strip().split('.'))}")
        if name.strip() == "corpus.source":
            raise FledgeError("fledge start takes its texts as arguments. Leave corpus.source out.")
        if (value := parse_value(text.strip())) is None:
            raise FledgeError(f"--set {override}: a recipe can't hold none. Give a value, or leave the setting out.")
        values[name.strip()] = value
    return values


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


def bytes_per_token(corpus: Corpus, tokenizer: Tokenizer) -> float:
    from fledge.tokenizer.compare import limited

    size = tokens = 0
    for block in limited(corpus, SAMPLE):
        ids, _ = tokenizer.encode_spans(block.buffer, block.offsets, corpus.special)
        size += len(block.buffer)
        tokens += len(ids) + len(block.offsets) - 1  # each document is followed by its end
    return size / max(1, tokens)


def measured_speed(
    model: Any, vocabulary_size: int, context: int, batch: int, seconds: float, overrides: Sequence[str] = ()
) -> float:
    """Tokens per second of real steps on random tokens."""
    from fledge.config import OptimizerConfig, TokensConfig
    from fledge.training.bench import measure

    config = RunConfig(
        tokenizer=TokenizerConfig(vocabulary_size=vocabulary_size),
        tokens=TokensConfig(context_length=context),
        model=model,
        optimizer=OptimizerConfig(name="muon"),
    )
    config = override_config(config, overrides)
    while (found := measure(config, batch, "auto", seconds).tokens_per_second) is None and batch > 1:
        batch //= 2  # training would take it in such parts
    return found or 1.0


def machine_name() -> str:
    import torch

    if devices.is_gpu(place := devices.fastest()):
        return devices.title(place)
    threads = torch.get_num_threads()
    return f"a CPU with {threads} thread{'s' * (threads > 1)}"


def name_of(text: str) -> str:
    """A run's name from a path.

    >>> name_of("books/My Diary.txt"), name_of("akjv")
    ('my-diary', 'akjv')
    """
    stem = Path(text.rstrip("/")).name.split(".")[0].lower()
    return re.sub(r"[^a-z0-9_-]+", "-", stem).strip("-") or "text"
