"""Turn YAML and overrides into typed configs, or report every problem in them at once."""

from ppprof.choices import VIEWS
from ppprof.config.load import Config, Loaded, load_config, load_profiler
from ppprof.config.profiler import (
    ProfilerConfig,
    SlowStep,
    SummaryToggles,
    TriggerConfig,
    WindowSchedule,
)
from ppprof.config.training import (
    DataConfig,
    DistributedConfig,
    EngineConfig,
    GlobalConfig,
    ModelConfig,
    OptimizerConfig,
)

__all__ = [
    "VIEWS",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "EngineConfig",
    "GlobalConfig",
    "Loaded",
    "ModelConfig",
    "OptimizerConfig",
    "ProfilerConfig",
    "SlowStep",
    "SummaryToggles",
    "TriggerConfig",
    "WindowSchedule",
    "load_config",
    "load_profiler",
]
