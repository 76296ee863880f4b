"""The one shared state: a tree of validated, frozen settings from which every part of a run is built.

Settings, their defaults and their documentation live here and nowhere else: the text under a field is its help on the
command line and its entry in the handbook. A recipe is a TOML file of these names.
"""

from fledge.config.reading import (
    allow_code,
    allowed_code,
    load_recipe,
    override_config,
    parse,
    parse_value,
    recipe_names,
    recipe_values,
    say_useless,
    setting_changes,
    unmet,
)
from fledge.config.refusals import ELSEWHERE, nearest_setting, setting_fields, settings_like
from fledge.config.settings import (
    CorpusConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    ScheduleConfig,
    Settings,
    StrategyConfig,
    TokenizerConfig,
    TokensConfig,
    TrainingConfig,
    documentation,
    setting_paths,
)

__all__ = [
    "ELSEWHERE",
    "CorpusConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "SamplingConfig",
    "ScheduleConfig",
    "Settings",
    "StrategyConfig",
    "TokenizerConfig",
    "TokensConfig",
    "TrainingConfig",
    "allow_code",
    "allowed_code",
    "documentation",
    "load_recipe",
    "nearest_setting",
    "override_config",
    "parse",
    "parse_value",
    "recipe_names",
    "recipe_values",
    "say_useless",
    "setting_changes",
    "setting_fields",
    "setting_paths",
    "settings_like",
    "unmet",
]
