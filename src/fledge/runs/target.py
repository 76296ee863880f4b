"""What an account is of: the settings of a recipe, a TOML file, a named shape, a bundle or a run, by its name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge.accounting import SHAPES, Account, account_run, usual_speed
from fledge.accounting.budget import TOKENS_PER_PARAMETER
from fledge.accounting.devices import best_precision, match
from fledge.accounting.ledger import DEFAULT_MFU
from fledge.accounting.tables import Assumptions
from fledge.config import RunConfig, load_recipe, override_config, parse, recipe_names
from fledge.config.reading import nearest_recipe
from fledge.errors import FledgeError, note
from fledge.runs.layout import METRICS
from fledge.runs.metrics import read_metrics

if TYPE_CHECKING:
    from fledge.bundle.manifest import Manifest


class Target(NamedTuple):
    """Settings with what an account needs besides: the size of the vocabulary."""

    name: str
    config: RunConfig
    vocabulary_size: int
    positions: int | None = None
    "Of a bundle, the context length that its model was built with: it may have been trained on shorter windows."
    manifest: Manifest | None = None

    def account(self, **options: Any) -> Account:
        """What it costs; `options` are those of `fledge.accounting.account_run`."""
        return account_run(self.config, self.vocabulary_size, self.positions, **options)

    def assume(
        self, account: Account, tokens: float | None = None, mfu: float | None = None, price: float | None = None
    ) -> Assumptions:
        """What its time is computed for, and where its share of the peak is from: given, measured in the run, assumed.

        A recipe that does not say how many tokens it trains on takes 20 per parameter.
        """
        config = self.config
        if tokens is None and config.training.steps is None and config.training.tokens is None:
            tokens = float(TOKENS_PER_PARAMETER * account.parameters.total)
        tokens = tokens or float(config.steps * config.training.batch_size * config.tokens.context_length)
        if mfu is not None:
            return Assumptions(tokens, mfu, "as given", price)
        share, why_not = self.measured_share(account)
        if share is not None:
            return Assumptions(tokens, share, f"as the run in {self.name} reached", price)
        if why_not:
            note(f"{why_not} {DEFAULT_MFU:.0%} of the peak is assumed; --mfu sets another share.")
        return Assumptions(tokens, DEFAULT_MFU, "assumed", price)

    def measured_share(self, account: Account) -> tuple[float | None, str]:
        """What the run in a folder reached of the device's peak, by the speed in its metrics.

        It holds for the device and the shape of that run alone; for others, None and the reason.
        """
        path, run, manifest = Path(self.name, METRICS), self.config, self.manifest
        if account.device is None or not path.is_file() or manifest is None:
            return None, ""
        before = parse(RunConfig, manifest.config, where=self.name)
        on_cpu = before.training.device == "cpu"
        name = "cpu" if on_cpu else str(manifest.machine.get("device", "unknown"))
        known, title = match(name), account.device.title
        if (known.name if known else name) != account.device.name:
            return None, f"The speed in {path} is of another device ({name}) and says nothing of {title}."
        precision = before.training.precision
        ways = {
            "model": before.model == run.model and manifest.model.vocabulary_size == account.vocabulary_size,
            "context length": before.tokens.context_length == account.context_length,
            "precision": (best_precision(account.device) if precision == "auto" else precision) == account.precision,
            "recomputation": before.training.recompute == account.recompute,
            "optimizer": before.optimizer.name == account.optimizer,
        }
        if changed := [way for way, same in ways.items() if not same]:
            return None, f"The speed in {path} is of another {' and '.join(changed)} and says nothing of this one."
        speed = usual_speed(read_metrics(path))
        if not speed:
            return None, f"There is no speed in {path} yet."
        whole = replace(account, step_batch=before.training.batch_size)
        share = whole.bound().product_seconds / (whole.windows * whole.context_length / speed)
        if not 0 < share <= 1:
            return None, f"The speed in {path} is more than one {title} can reach: of several, or busy now."
        return share, ""


def find_target(name: str, overrides: Iterable[str] = (), vocabulary: int | None = None) -> Target:
    """The settings of a recipe, a TOML file, a bundle, packed or not, a run, or a named shape, changed where asked."""
    if not name.strip():
        raise FledgeError(
            f"The name of the model is empty. Name a recipe ({', '.join(recipe_names())}), a TOML file, a "
            f"bundle, or a shape ({', '.join(SHAPES)})."
        )
    names, positions, manifest = [*recipe_names(), *SHAPES], None, None
    if name not in names and not (Path(name).exists() or "/" in name or name.endswith((".toml", ".json"))):
        raise FledgeError(f"There is no recipe or shape called {name!r}. {nearest_recipe(name, names)}")
    if name in SHAPES and name not in recipe_names():
        shape = SHAPES[name]
        config = RunConfig.model_validate(
            {
                "name": name,
                "model": shape.model,
                "tokenizer": {"vocabulary_size": shape.vocabulary_size},
                "tokens": {"context_length": shape.context_length},
                "training": {"batch_size": 1},
            }
        )
        config = override_config(config, overrides)
    elif (manifest := bundle_manifest(name)) is not None:
        config, positions = parse(RunConfig, manifest.config, where=name), manifest.model.context_length
        config = override_config(config, overrides)
    else:
        config = load_recipe(name, overrides)
    size = vocabulary or (config.tokenizer.vocabulary_size if manifest is None else manifest.model.vocabulary_size)
    if not size:
        raise FledgeError(f"{name} does not set tokenizer.vocabulary_size. Give one: --vocabulary 10000")
    return Target(name, config, size, positions, manifest)


def bundle_manifest(name: str) -> Manifest | None:
    """The manifest of a bundle or a run: a folder, its bundle.json, or one packed file; None for all other files.

    A recipe's name is the recipe's, as in `fledge train`, unless a bundle lies in a folder of that name.
    """
    path = Path(name)
    if not path.exists():  # most are names of recipes, and need none of what follows, which takes seconds to import
        return None
    from fledge.bundle.archive import is_archive
    from fledge.bundle.describe import open_manifest
    from fledge.bundle.manifest import MANIFEST
    from fledge.runs.checkpoints import find_bundle
    from fledge.runs.folder import require_checkpoint

    if name in recipe_names() and not (find_bundle(path) / MANIFEST).is_file():
        return None
    require_checkpoint(path)
    known = path.is_dir() or is_archive(path) or (path.is_file() and path.name == MANIFEST)
    return open_manifest(find_bundle(path))[1] if known else None
