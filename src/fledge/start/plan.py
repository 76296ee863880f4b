"""A plan for a text and a time: looks at the text, measures the machine, and chooses every setting with its reason."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge import devices
from fledge.accounting import Account
from fledge.config import (
    CorpusConfig,
    ModelConfig,
    RunConfig,
    TokenizerConfig,
    TokensConfig,
    nearest_setting,
    parse,
    parse_value,
    setting_paths,
)
from fledge.config.writing import Choice, config_of, with_given
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.files import readable_bytes
from fledge.reports.run import REPORTED_TOKENS, openings
from fledge.start import choose, law, vocabulary
from fledge.start.choose import Size
from fledge.start.forecast import expectation, forecast
from fledge.start.look import (
    Look,
    bytes_per_token,
    count_tokens,
    counted,
    held_out_remarks,
    look_at,
    name_of,
    require_enough,
)
from fledge.start.speed import Way, compiled_way, machine_name, measured_speed, quick_precision
from fledge.start.work import cost, teacher_folders

if TYPE_CHECKING:
    from fledge.tokenizer import Tokenizer

TRAINED = 0.93  # of the time for steps that is planned for; the rest is for a machine slower than when it was measured
EVALUATIONS, EVALUATED, PATIENCE = 16, 256, 5
KEPT = 8  # of the evaluations are kept as checkpoints, beside the best and the last two
KEPT_SHARE = 0.1  # of the free disk that these may take
CHECKPOINT_BYTES = 12  # for each parameter: itself and two moments
TEST = 0.05  # of the text, held out for the final figure
VALIDATION = 0.1
FORWARD = 0.4  # of a token's training time for one that is only evaluated
FEWEST_STEPS = 30

TEACHING_WHY = (
    "a larger model or more passes would not help, and there is time left: models of the same size are trained first, "
    "and this one learns their averaged prediction beside the text"
)

Say = Callable[[str, str], None]


class Plan(NamedTuple):
    config: RunConfig
    tokenizer: Tokenizer
    title: str
    choices: list[Choice]
    facts: dict[str, Any]
    "What later calls of the same command need to know, as `start.json` keeps it."


class Planner:
    """One plan in the making. `say` is told each thing as it is known: a word for it, and a sentence; `left` gives the
    seconds of the whole time that remain."""

    def __init__(
        self,
        texts: Sequence[str],
        seconds: float,
        time_text: str,
        folder: Path,
        given: dict[str, Any],
        say: Say,
        left: Callable[[], float],
    ) -> None:
        self.texts, self.seconds, self.time_text, self.folder = texts, seconds, time_text, folder
        self.given, self.say, self.left = given, say, left
        self.fast = devices.is_gpu(devices.fastest())
        self.choices: list[Choice] = []
        self.batch, self.speed = 0, 0.0
        self.start = choose.LADDER.index((8, 512) if self.fast else (4, 128))
        "The size that is measured first."
        self.look_seconds = min(1.5, max(0.2, seconds / 200))
        "That one measurement takes."
        self.way, self.flops = Way({}, 0.0), 0.0

    def plan(self) -> Plan:
        """Look, measure, decide."""
        settings = parse(CorpusConfig, {"source": self.texts, "test_fraction": TEST, **self.given_of("corpus")})
        corpus = Corpus.from_config(settings)
        look = look_at(corpus)
        require_enough(look, corpus.name, self.seconds)
        self.say("text", f"{readable_bytes(look.bytes)} in {counted(look)}, {look.characters} different characters")
        self.choices = [
            Choice({"corpus.source": self.texts}, f"the text: {counted(look)}, {readable_bytes(look.bytes)}"),
            Choice(
                {"corpus.test_fraction": TEST},
                "for the final figure: validation text chooses the best step, and nothing is chosen by this part",
            ),
        ]
        tokenizer = self.choose_tokenizer(corpus, look)
        per_token = bytes_per_token(corpus, tokenizer)
        unique = int((1 - VALIDATION - TEST) * look.bytes / per_token)
        self.say(
            "tokenizer",
            f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens of {per_token:.2f} bytes: {unique:,} to train on",
        )
        validation = count_tokens(corpus, tokenizer, "validation")
        if not validation.bytes and corpus.options.validation_fraction:
            raise FledgeError(
                f"{corpus.name}: nothing is left for the validation part, because copies of a document stay in one "
                "part. Remove the copies (fledge corpus clean), or add other text."
            )
        final = count_tokens(corpus, tokenizer, "test") if corpus.options.test_fraction else validation
        if corpus.options.test_fraction and not final.bytes:
            final = validation
            self.say(
                "held out",
                "nothing is left for the test part, because copies of a document stay in one part: the final figure is "
                "on the validation part, which chooses the best step, too",
            )
        for remark in held_out_remarks(corpus, validation.bytes, final.bytes):
            self.say("held out", remark)
        text = law.Text(unique, **validation.bits)
        held_out = (VALIDATION + TEST) * look.bytes / per_token
        context, size = self.choose_model(tokenizer.vocab_size, text, look.bytes / look.documents / per_token)
        context, size = self.as_given(context, size, tokenizer.vocab_size)
        self.choose_training(context, size, text, held_out, tokenizer.vocab_size)
        self.choices += [
            Choice({"sampling.temperature": 0.7}, "below 1, a small model keeps to what it knows"),
            *[
                Choice({"sampling.prompt": opening}, "the first words of a text that is held out")
                for opening in openings(corpus.documents("validation"), 1)
            ],
        ]
        self.choices = with_given(self.choices, self.given)
        config = config_of(name_of(self.texts[0]), self.choices)
        if config.training.start == "pairs" and not self.can_begin_with_pairs(config, tokenizer.vocab_size):
            self.choices = [choice for choice in self.choices if "training.start" not in choice.values]
            config = config_of(config.name, self.choices)
        title = f"Chosen by fledge start for {', '.join(self.texts)} and {self.time_text} on {machine_name()}."
        facts: dict[str, Any] = {"speed": self.speed, "counts": (reached := final.bits)}
        if reached:
            best = min(reached, key=lambda name: reached[name])
            self.say("counting", f"a {best} reaches {reached[best]:.2f} bits per byte, which the model should beat")
            facts["forecast"] = forecast(config, tokenizer.vocab_size, law.Text(unique, **reached))
            self.say("forecast", expectation(facts["forecast"]))
        return Plan(config, tokenizer, title, self.choices, facts)

    def choose_tokenizer(self, corpus: Corpus, look: Look) -> Tokenizer:
        """Of the usual size; or, on a CPU where there is time for it to matter, of the one that counting speaks for."""
        from fledge.tokenizer import train_tokenizer

        kind, size, why = choose.choose_vocabulary(look, self.fast)
        self.measure_machine(size or look.characters)
        seen = min(self.way.speed * self.left(), choose.MOST_PASSES * look.bytes / vocabulary.USUAL_BYTES)
        by_hand, found = self.given_of("tokenizer"), None
        if size is not None and not self.fast and not by_hand and vocabulary.worth_counting(look, seen):
            found = vocabulary.count_vocabularies(corpus, size)
        if found is not None:
            size, tokenizer, why = found
            self.say("vocabulary", why)
        else:
            chosen = {"kind": kind, "vocabulary_size": size, **by_hand}
            tokenizer = train_tokenizer(parse(TokenizerConfig, chosen), corpus, progress=True)
        values: dict[str, Any] = {"tokenizer.kind": kind}
        self.choices.append(Choice(values | ({} if size is None else {"tokenizer.vocabulary_size": size}), why))
        return tokenizer

    def measure_machine(self, vocabulary_size: int) -> None:
        """Precision and speed, with a model of a size that is often chosen."""
        first = choose.model_of(*choose.LADDER[self.start], self.fast)
        if self.fast:
            self.way = Way({}, measured_speed(first, vocabulary_size, 64, 32, self.look_seconds))
        else:
            self.way = quick_precision(first, vocabulary_size, 64, 32, self.look_seconds, self.given)
        self.flops = self.way.speed * Account(first, vocabulary_size, 64).flops_per_token

    def choose_model(self, vocabulary_size: int, text: law.Text, document_tokens: float) -> tuple[int, Size]:
        """Context and size, by measuring a few sizes."""
        fast, way, flops, seconds = self.fast, self.way, self.flops, self.look_seconds
        left = max(1.0, self.left() - 7 * seconds)
        context, why = choose.choose_context(flops * left, document_tokens)
        self.choices.append(Choice({"tokens.context_length": context}, why))

        def measure(model: ModelConfig) -> float:
            batch = choose.choose_batch(
                left * flops / Account(model, vocabulary_size, context).flops_per_token, context
            )
            return measured_speed(model, vocabulary_size, context, batch, seconds, way.settings)

        most = 3 if fast else 5
        size, sizes = choose.choose_size(0.85 * left, text, vocabulary_size, context, measure, self.start, most, fast)
        model = choose.model_of(size.layers, size.width, fast)
        crowding = choose.crowding(text, size.inside, fast)
        dropout, _ = choose.choose_dropout(size.use.tokens / text.tokens, crowding)
        model = model.model_copy(update={"dropout": dropout})  # compiled without it, it would be compiled anew
        self.batch, speed = choose.choose_fast_batch(
            choose.choose_batch(size.use.tokens, context),
            lambda batch: measured_speed(model, vocabulary_size, context, batch, seconds, way.settings),
        )
        way = way._replace(speed=speed)
        if not fast and "training.compile" not in self.given:
            way = compiled_way(way, model, vocabulary_size, context, self.batch, seconds, self.left())
        self.way, self.speed = way, way.speed
        shape = {f"model.{name}": getattr(model, name) for name in ("layers", "width", "heads", "tied", "qk_norm")}
        why = f"{size.parameters:,} parameters, which learn at {self.speed:,.0f} tokens/s here; {rivals(size, sizes)}"
        self.choices.append(Choice(shape, why))
        if way.settings:
            self.choices.append(Choice(way.settings, "measured here: the quickest way to take the same steps"))
        self.say("model", f"{size.layers} layers × {size.width}, {size.parameters:,} parameters, context {context}")
        return context, size

    def as_given(self, context: int, size: Size, vocabulary_size: int) -> tuple[int, Size]:
        """Context and size with what was set by hand; the speed follows from the FLOPs of a token."""
        chosen = choose.model_of(size.layers, size.width, self.fast)
        model = parse(ModelConfig, {**chosen.model_dump(), **self.given_of("model")})
        length = parse(TokensConfig, {"context_length": context, **self.given_of("tokens")}).context_length
        self.batch = int(self.given.get("training.batch_size", self.batch))
        if (model, length) == (chosen, context):
            return context, size
        before, now = Account(chosen, vocabulary_size, context), Account(model, vocabulary_size, length)
        self.speed *= before.flops_per_token / now.flops_per_token
        self.say("set", f"{now.parameters.total:,} parameters with what was set by hand, context {length}")
        total, inside = now.parameters.total, now.parameters.inside
        return length, size._replace(layers=model.layers, width=model.width, parameters=total, inside=inside)

    def choose_training(self, context: int, size: Size, text: law.Text, held_out: float, vocabulary_size: int) -> None:
        """Batch, steps, rate and what goes with them, so that training and report end in the time."""
        batch, unique = self.batch, text.tokens
        looks = EVALUATIONS * (EVALUATED * context * FORWARD / self.speed + 0.5)
        to_tokenize = (unique + held_out) / 1e7
        to_count = 0.0 if self.fast else self.counting_seconds(size, context, vocabulary_size)
        to_report = report_seconds(self.seconds, self.speed, held_out, unique)
        besides = to_report + looks + to_tokenize + to_count + self.way.again
        allowed = TRAINED * max(0.0, self.left() - besides) * self.speed
        use = choose.one_model(allowed, text, size.inside, self.fast)
        if self.may_teach():
            use = choose.with_teachers(use, allowed, text)
        steps = int(self.given.get("training.steps", use.tokens / (batch * context)))
        if steps < FEWEST_STEPS and "training.steps" not in self.given:
            least = FEWEST_STEPS * batch * context / (TRAINED * self.speed)
            enough = 1.5 * (self.seconds - self.left() + besides + least)
            raise FledgeError(
                f"--time {self.time_text} is too short: after looking and measuring, {steps} steps would be left for "
                f"training, and {FEWEST_STEPS} are the least. Give at least --time {10 * math.ceil(enough / 10)}s."
            )
        passes, crowding = steps * batch * context / unique, choose.crowding(text, size.inside, self.fast)
        dropout, dropout_why = choose.choose_dropout(passes, crowding)
        decay, decay_why = choose.choose_decay(passes, crowding)
        schedule, schedule_why = choose.choose_schedule(passes)
        length_why = (
            f"{steps * batch * context:,} tokens, {passes:.1f} passes over the text, are what the time allows; the "
            "batch is as small as runs fast here, for many steps teach more than few"
            if cost(use.tokens, use.teachers) >= allowed
            else f"{passes:.1f} passes over the text; by the law more would overfit, so training ends early"
        )
        end_why = (
            "a run of few passes is not ended early, for its loss may rise until the learning rate falls; the model is "
            "that of the lowest loss"
            if passes < choose.FEW_PASSES
            else f"training ends when {PATIENCE} evaluations in a row have found no lower loss, and the model is that "
            "of the lowest"
        )
        if not self.fast:
            self.choices.append(
                Choice(
                    {"training.start": "pairs", "optimizer.matrix_learning_rate": 0.03},
                    "time is short on a CPU: the model begins as a bigram model fitted to counts, and its matrices "
                    "learn at a higher rate than the default of 0.02",
                )
            )
            if passes >= choose.FEW_FOR_SMALL:
                tied = {} if self.given.get("model.tied") else {"optimizer.head_decay": choose.ROW_DECAY}
                self.choices.append(
                    Choice(
                        {"optimizer.embedding_decay": choose.ROW_DECAY} | tied,
                        "the rows of rare tokens are the first to be learned by heart: they decay faster",
                    )
                )
        teachers = teacher_folders(self.folder, use.teachers)
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
            *([Choice({"training.teachers": teachers}, TEACHING_WHY)] if teachers else []),
            Choice(
                {
                    **watching(steps),
                    "training.evaluate_windows": EVALUATED,
                    "training.keep_every": kept,
                    **({} if passes < choose.FEW_PASSES else {"training.patience": PATIENCE}),
                },
                f"often enough to watch it learn, seldom enough to cost little; {end_why}; {kept_why}",
            ),
        ]
        self.say(
            "training",
            f"{steps:,} steps of {batch} × {context} tokens, {passes:.1f} passes over the text, "
            f"{f'for each of {len(teachers)} teachers and their student, ' if teachers else ''}about "
            f"{cost(steps * batch * context, len(teachers)) / self.speed / 60:.1f} minutes",
        )
        if passes < 1:
            self.say(
                "time",
                f"too short for a whole pass: the model sees {passes:.0%} of the text. Give a longer --time to use all "
                "of it",
            )

    def choose_kept(self, every: int, parameters: int) -> tuple[int, str]:
        """How often a checkpoint is kept, to see the model learn afterwards; none where they would fill the disk."""
        place = next(parent for parent in [self.folder, *self.folder.absolute().parents] if parent.exists())
        if KEPT * CHECKPOINT_BYTES * parameters > KEPT_SHARE * shutil.disk_usage(place).free:
            return 0, "no checkpoint on the way is kept, since several of them would fill the disk"
        return every, f"{KEPT} checkpoints on the way are kept, to see how the model learned"

    def counting_seconds(self, size: Size, context: int, vocabulary_size: int) -> float:
        """Of the fit to counts, at half the FLOP/s that training reaches: its table is read as often as multiplied."""
        from fledge.training.pairs import ROUNDS

        model = choose.model_of(size.layers, size.width, self.fast)
        reached = self.speed * Account(model, vocabulary_size, context).flops_per_token
        return 2 * ROUNDS * 6 * vocabulary_size**2 * size.width / reached

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

    def may_teach(self) -> bool:
        """Whether several models may teach one: not where settings that they share or replace are set by hand."""
        by_hand = {"training.steps", "training.tokens", "training.teachers", "tokens.store"} & self.given.keys()
        return not by_hand and self.given.get("tokens.policy", "stream") == "stream"

    def given_of(self, group: str) -> dict[str, Any]:
        """What was set by hand in one group of settings."""
        return {key.partition(".")[2]: value for key, value in self.given.items() if key.startswith(f"{group}.")}


def watching(steps: int) -> dict[str, int]:
    """How often a run of so many steps is evaluated, saved, sampled and logged."""
    often = max(1, steps // EVALUATIONS)
    return {
        "training.evaluate_every": often,
        "training.save_every": often,
        "training.sample_every": max(1, steps // 4),
        "training.log_every": max(1, steps // 200),
    }


def report_seconds(seconds: float, speed: float, held_out: float, unique: float) -> float:
    """Of the evaluation, which sees each token in two windows, the counts it is held against, and the samples."""
    counted = min(unique, 100 * REPORTED_TOKENS)
    return 2 * FORWARD * min(held_out, REPORTED_TOKENS) / speed + 3e-6 * counted + min(5.0, 0.05 * seconds)


def given(overrides: Sequence[str]) -> dict[str, Any]:
    """What was set by hand, by dotted names.

    >>> given(["model.layers=6"])
    {'model.layers': 6}
    """
    values: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = (part.strip() for part in override.partition("="))
        if not equals or name.count(".") != 1:
            raise FledgeError(f"--set {override!r} is not of the form group.name=value, such as model.layers=6.")
        if name not in setting_paths():
            raise FledgeError(f"There is no setting {name}. {nearest_setting(name.split('.'), RunConfig)}")
        if name == "corpus.source":
            raise FledgeError("fledge start takes its texts as arguments. Leave corpus.source out.")
        if (value := parse_value(text, name)) is None:
            raise FledgeError(f"--set {override}: a recipe can't hold none. Give a value, or leave the setting out.")
        values[name] = value
    return values


def rivals(size: Size, sizes: Sequence[Size]) -> str:
    """Why not the next smaller or larger one."""
    place = list(sizes).index(size)
    others = [sizes[near] for near in (place - 1, place + 1) if 0 <= near < len(sizes)]
    worse = [f"{other.layers} × {other.width}" for other in others if other.use.bits > size.use.bits]
    said = [f"in this time the law expects less of {' and '.join(worse)}"] if worse else []
    if len(worse) < len(others):
        said.append("a larger one would have more than two parameters for each token it sees")
    return ", and ".join(said)
