"""Each promise of docs/reliability.md has a test that exists, and every tested fault is on the page.

`TESTS` names the tests of each row of the page's tables, by its first cell: ``file::function``,
``file[case]`` of a parametrized test, or a file.
"""

from __future__ import annotations

import re

from tests.jobs.launching import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")

TESTS = {
    "an exception, Ctrl-C (SIGINT), `sys.exit`, an end without `close()` or `with`": [
        "test_faults[exception]",
        "test_faults[sigint]",
        "test_faults[exit]",
        "test_faults[never_closed]",
    ],
    "SIGTERM": [
        "test_faults[sigterm]",
        "test_signals::test_it_saves_though_the_main_thread_never_returns_to_python",
    ],
    "an exception, then the launcher's SIGTERM": ["test_faults[sigterm_while_saving]"],
    "SIGHUP, SIGQUIT, SIGXCPU (`ulimit -t`)": [
        "test_signals::test_each_guarded_signal_is_saved_and_ends_the_process",
        "test_faults_without_paddle::test_a_fault_ends_as_without_ppprof_and_what_can_be_saved_is",
    ],
    "SIGHUP under `nohup`, handlers of C (`faulthandler.register`)": [
        "test_signals::test_ignored_signals_and_handlers_of_c_stay"
    ],
    "SIGTERM, and the training's handler exits": ["test_faults[sigterm_handled]"],
    "SIGINT, SIGTERM, SIGUSR1, and the training's handlers go on; set before or after `attach`": [
        "test_faults[handlers_before]",
        "test_faults[handlers_after]",
    ],
    "SIGKILL, as by the kernel out of memory": ["test_faults[sigkill]"],
    "`next(iter(loader))` leaves a thread that reads on, and the dataset keeps a state between samples": [
        "test_loader_threads::test_two_threads_that_read_one_dataset_take_turns_as_without_a_window"
    ],
    "a window of any length": [
        "test_long_windows::test_every_step_is_in_one_segment_and_no_stall_is_long",
        "test_long_windows::test_a_signal_saves_the_open_segment_and_finishes_the_window",
        "test_long_window_faults::test_sigterm_loses_nothing_and_does_not_wait",
        "test_long_window_faults::test_sigkill_loses_the_open_segment_only",
        "test_segmented_capture::test_a_window_in_segments_has_the_tables_of_the_window_in_one_piece",
    ],
    "a step of any length": [
        "test_long_steps::test_allocations_end_in_a_long_step_and_the_window_goes_on",
        "test_long_steps::test_a_window_ends_within_a_step_that_is_too_long",
        "test_long_steps::test_allocations_end_where_paddle_has_kept_too_many",
    ],
    "`os._exit`": ["test_faults[quit]"],
    "an allocation is refused, memory stays short": [
        "test_faults[out_of_memory]",
        "test_session::test_a_window_that_cannot_be_saved_at_the_end_is_one_warning",
    ],
    "the log directory is removed or becomes read-only": [
        "test_faults[directory_removed]",
        "test_faults[read_only_later]",
    ],
    "the log directory is read-only, or a file": [
        "test_faults[read_only]",
        "test_faults[in_the_way]",
    ],
    "the disk is full": [
        "test_faults[disk_full]",
        "test_long_windows::test_the_disk_that_fills_costs_the_open_segment_only",
    ],
    "the capture (`raw/*.pb`) fits the disk, the trace does not": [
        "test_faults[disk_too_small_for_the_trace]"
    ],
    "stdout and stderr go to a full disk or closed pipe": [
        "test_faults[output_full]",
        "test_postprocess::test_tables_that_cannot_be_printed_are_a_warning",
    ],
    "the window is never reached": ["test_faults[never_reached]"],
    "the training ends within the window": ["test_faults[cut_short]"],
    "`step()` is never called": ["test_faults[no_step]"],
    "the wall clock is set while a window is open": [
        "test_capture::test_a_clock_that_is_set_forward_a_day_changes_no_step",
        "test_clock_jumps::test_a_clock_set_back_a_little_is_named",
    ],
    "attached twice": ["test_faults[attach_twice]"],
    "`paddle.profiler.Profiler` is open when a window begins": [
        "test_training_profilers::test_a_profiler_that_was_open_before_is_left_alone"
    ],
    "the training opens one within a window": [
        "test_training_profilers::test_a_profiler_that_the_training_opens_in_a_window_ends_the_window"
    ],
    "the training opens one between or after windows, or one with `timer_only`": [
        "test_training_profilers::test_a_training_may_profile_itself_between_and_after_windows",
        "test_training_profilers::test_a_profiler_that_only_times_costs_no_window",
    ],
    "a `RecordEvent` ends in another step, or has a name that Paddle refuses, such as a number": [
        "test_training_profilers::test_an_event_from_one_step_into_another_is_left_out_and_reported_once",
        "test_training_profilers::test_a_name_that_paddle_refuses_costs_its_event",
    ],
    "the training opens a profiler within a `RecordEvent` or a layer's forward pass": [
        "test_training_profilers::test_an_event_that_is_open_when_the_training_opens_a_profiler_is_in_neither_recording"
    ],
    "the training's signal handler raises in `step()`": [
        "test_session::test_an_exception_of_the_trainings_signal_handler_reaches_the_training"
    ],
    "a DataLoader forks workers in a window; a forked child exits": [
        "test_faults[workers]",
        "test_faults[forked_child]",
        "test_signals::test_a_forked_child_dies_of_its_own_signal_and_of_that_alone",
    ],
    "a forked child goes on as the training (a daemon)": [
        "test_faults_without_paddle::test_a_fault_ends_as_without_ppprof_and_what_can_be_saved_is"
    ],
    "all file descriptors are closed (`os.closerange`) and used again": [
        "test_faults_without_paddle::test_a_fault_ends_as_without_ppprof_and_what_can_be_saved_is",
        "test_signals::test_process_that_the_training_has_closed_and_used_again_stay_its_own",
        "test_process::test_a_channel_whose_socket_is_taken_reports_it_and_closes_nothing",
    ],
    "the log directory's path is not UTF-8": [
        "test_capture::test_a_path_that_is_not_utf8_is_reported_at_once"
    ],
    "`step(num_samples=...)` gets NaN, infinity or text": [
        "test_session::test_a_count_that_is_no_number_costs_itself_only"
    ],
    "`step()` in several threads": [
        "test_session::test_one_thread_ends_the_steps_until_it_has_ended"
    ],
    "two jobs in one directory": [
        "test_faults::test_two_jobs_into_one_directory_each_get_their_own",
        "test_faults::test_two_jobs_with_paddles_profiler_mix_their_files",
    ],
    "SIGKILL of a rank": ["test_dying[kill]"],
    "SIGTERM to a rank": ["test_dying[term]"],
    "an exception or `sys.exit(7)` on a rank": ["test_dying[raise]", "test_dying[exit]"],
    "Ctrl-C at the launcher, ranks wait in a collective": [
        "test_dying::test_a_job_that_is_interrupted_saves_every_rank"
    ],
    "SIGKILL at any moment of an operation (2 ranks, 200 moments)": [
        "test_flight_faults::test_a_ring_is_readable_after_sigkill_at_any_moment"
    ],
    "the ring does not fit the disk, or its folder is read-only": [
        "test_flight_faults::test_what_the_recorder_cannot_write_costs_the_recorder_alone"
    ],
    "the disk fills up later, or the directory is removed": [
        "test_flight_faults::test_what_the_recorder_cannot_write_costs_the_recorder_alone"
    ],
    "the training goes on": ["test_background::test_steps_go_on_while_tables_are_made"],
    "the helper is killed": [
        "test_background::test_a_helper_that_is_killed_costs_a_warning_and_can_be_made_up_for",
        "test_postprocess::test_a_helper_that_crashes_loses_the_window_it_works_on",
    ],
    "the training is killed while it saves": [
        "test_finish::test_a_save_that_was_cut_is_named_and_removed"
    ],
    "the helper takes too long": [
        "test_finish::test_a_limit_of_time_ends_it_and_leaves_the_capture",
        "test_postprocess::test_a_child_that_is_ended_is_a_warning_that_says_why",
    ],
    "the helper cannot start, or memory is short": [
        "test_postprocess::test_a_child_that_cannot_start_is_a_warning_too",
        "test_postprocess::test_where_memory_is_short_no_child_starts",
    ],
    "the training has ended, the helper has not": [
        "test_postprocess::test_waiting_is_logged_and_ends_and_the_child_lives_on"
    ],
    "`background: False`": [
        "test_background::test_in_the_foreground_the_training_waits_for_its_tables"
    ],
    "trace, `.json`, `.pb`": ["tests/trace/test_fuzz.py"],
    "trace, `.gz`": ["tests/trace/json/test_broken_json.py"],
    "`manifest.json`, `summary/*.json`": ["tests/test_untrusted.py"],
    "`clocks/`, `steps/`, `raw/*.calls/`, `devices/`": ["tests/test_untrusted.py"],
    "`raw/*.ops`, shapes in a trace": ["tests/test_untrusted.py"],
    "`stacks/`, with lines of your source": ["tests/rundir/test_python_stacks.py"],
    "`memory/`, for `ppprof memory`": ["tests/run/test_memory.py"],
    "`flight/`, for `ppprof hang`": ["tests/rundir/test_flight.py"],
    "file names": ["tests/test_untrusted.py"],
    "YAML": ["tests/test_untrusted.py"],
    "`-o K=V`": ["tests/test_untrusted.py"],
    "any of them": ["tests/test_untrusted.py"],
    "a file of a run directory": ["tests/rundir/test_run_file.py"],
    "a datagram without the session's token": ["tests/capture/ranks/test_control_channel.py"],
    "all of the above, 2,400 at random": ["tests/test_stress.py"],
}


def exists(test: str) -> bool:
    if test.endswith(".py"):
        return (ROOT / test).is_file()
    file, function, case = re.fullmatch(r"(\w+)(?:::(\w+))?(?:\[(\w+)\])?", test).groups()  # type: ignore[union-attr]
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    source = path.read_text(encoding="utf-8")
    has_function = not function or re.search(rf"^def {function}\(", source, re.M)
    has_case = not case or re.search(rf'^    "{case}": Fault\(|id="{case}"', source, re.M)
    return bool(function or case) and bool(has_function) and bool(has_case)


def test_every_named_test_exists() -> None:
    named = {test for tests in TESTS.values() for test in tests}
    assert [test for test in sorted(named) if not exists(test)] == []


def test_every_row_of_the_page_has_tests() -> None:
    rows = re.findall(r"^\| (.+?) \| ", PAGE, re.M)
    headers = re.findall(r"^\| (.+?) \| .*\n\|---", PAGE, re.M)
    assert sorted(set(rows) - set(headers)) == sorted(TESTS)
    assert all(TESTS.values())


def test_every_fault_has_a_row() -> None:
    faults = ROOT / "tests/jobs/test_faults.py"
    tested = re.findall(r'^    "(\w+)": Fault\(', faults.read_text(encoding="utf-8"), re.M)
    assert len(tested) > 20
    named = [test for tests in TESTS.values() for test in tests]
    cases = re.findall(r"test_faults\[(\w+)\]", " ".join(named))
    assert set(tested) == set(cases)
