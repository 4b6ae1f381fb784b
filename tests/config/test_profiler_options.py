"""The ``profiler_options`` string of PaddleClas, PaddleDetection and PaddleOCR."""

from __future__ import annotations

import pytest

from ppprof.config import ProfilerConfig
from ppprof.config.profiler_options import read_options
from ppprof.errors import ConfigError

ASKED = {"enable": True, "scheduler": [10, 20], "stop_training": True}
"""What the options ask for that say nothing."""


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        # As their documentation has them.
        ("profile_path=model.profile", {"profiler_log": "model.profile"}),
        (
            "batch_range=[50, 60]; profile_path=model.profile",
            {"scheduler": [50, 60], "profiler_log": "model.profile"},
        ),
        (
            "batch_range=[50, 60]; tracer_option=OpDetail; profile_path=model.profile",
            {"scheduler": [50, 60], "op_detail": True, "profiler_log": "model.profile"},
        ),
        (
            "batch_range=[10,20];state=GPU;sorted_key=max;tracer_option=Default;"
            "profile_path=/tmp/profile;exit_on_finished=False;timer_only=True",
            {
                "targets": ["cpu", "gpu"],
                "sorted_by": "gpu_max",
                "op_detail": False,
                "profiler_log": "/tmp/profile",
                "stop_training": False,
                "timer_only": True,
            },
        ),
        ("sorted_key=ave; state=cpu", {"sorted_by": "cpu_avg", "targets": ["cpu"]}),
        ("sorted_key=min", {"sorted_by": "cpu_min"}),
        ("sorted_key=total; state=GPU", {"sorted_by": "auto", "targets": ["cpu", "gpu"]}),
        ("sorted_key=calls; state=All", {"sorted_by": "auto", "targets": "auto"}),
        ("tracer_option=AllOpDetail", {"op_detail": True}),
        ("batch_range = 5, 7 ;", {"scheduler": [5, 7]}),
        ("profile_path=a b=c; exit_on_finished=yes", {"profiler_log": "a b=c"}),
        ("", {}),
        ({"state": None, "timer_only": True}, {"timer_only": True}),
        ({"batch_range": [3, 4], "timer_only": False}, {"scheduler": [3, 4], "timer_only": False}),
    ],
)
def test_what_options_mean(options, meant):
    assert read_options(options) == ({**ASKED, **meant}, [])


def test_all_errors_are_reported_at_once():
    text = (
        "batch_range=[60, 50]; state=TPU; sorted_key=median; tracer_option=All; "
        "exit_on_finished=maybe; timer_only=; profil_path=x; schedule=[1, 2]; state=CPU; y"
    )
    assert read_options(text)[1] == [
        "'timer_only=': expected NAME=VALUE",
        "state: given twice, 'TPU' and 'CPU'",
        "'y': expected NAME=VALUE",
        "batch_range: '[60, 50]': expected [START, STOP], to record batches START to STOP-1",
        "state: 'TPU': expected CPU, GPU or All",
        "sorted_key: 'median': expected calls, total, max, min or ave",
        "tracer_option: 'All': expected Default, OpDetail or AllOpDetail",
        "exit_on_finished: 'maybe': expected True or False",
        'profil_path: unknown option; did you mean "profile_path"?',
        "schedule: unknown option; expected one of batch_range, state, sorted_key, tracer_option, "
        "profile_path, exit_on_finished, timer_only",
    ]
    assert read_options(7)[1] == ["7: expected text such as batch_range=[50, 60]; profile_path=log"]


def test_in_a_block_it_turns_the_profiler_on_and_keys_beside_it_count_more(load):
    config = load(
        """\
        Profiler:
          profiler_options: "batch_range=[50, 60]; profile_path=log; exit_on_finished=False"
          profiler_log: other
          detailed: True
        """
    )
    profiler = config.Profiler
    assert (profiler.enable, profiler.scheduler, profiler.profiler_log) == (True, (50, 60), "other")
    assert (profiler.stop_training, profiler.detailed) == (False, True)
    assert config.warnings == ()
    assert ProfilerConfig.from_mapping(profiler.to_mapping()) == profiler


def test_a_mapping_is_read_back_as_it_was_written():
    options = {"batch_range": [3, 4], "profile_path": "a b=c", "timer_only": False, "state": None}
    profiler = ProfilerConfig.from_mapping({"profiler_options": options})
    assert profiler.profiler_options == "batch_range=[3, 4]; profile_path=a b=c; timer_only=False"
    assert ProfilerConfig.from_mapping(profiler.to_mapping()) == profiler


def test_an_empty_value_of_a_mapping_is_an_error():
    with pytest.raises(ConfigError, match="batch_range: '': expected"):
        ProfilerConfig.from_mapping({"profiler_options": {"batch_range": ""}})


def test_a_block_that_is_off_stays_off_and_says_so(load):
    config = load("Profiler: {enable: False, profiler_options: timer_only=True}")
    assert not config.Profiler.enable
    assert config.warnings == (
        "cfg.yaml:1: Profiler.profiler_options: has no effect, because enable is False",
    )


def test_timer_only_keeps_the_batches_after_which_to_exit(load):
    config = load("Profiler: {profiler_options: timer_only=True}")
    assert config.warnings == ()
    assert (config.Profiler.scheduler, config.Profiler.stop_training) == ((10, 20), True)


def test_problems_name_the_line_of_the_text(load):
    with pytest.raises(ConfigError) as raised:
        load('Profiler:\n  profiler_options: "state=TPU; batch_range=1"\n')
    assert str(raised.value) == (
        "cfg.yaml:2: Profiler.profiler_options: state: 'TPU': expected CPU, GPU or All\n"
        "cfg.yaml:2: Profiler.profiler_options: batch_range: '1': expected [START, STOP], to "
        "record batches START to STOP-1"
    )
