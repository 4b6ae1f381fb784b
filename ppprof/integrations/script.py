"""Run an unmodified script under a ``Profiler`` block: ``ppprof run`` and ``tools/attach.py``.

The script sees the same interpreter state as with ``python train.py ARGUMENTS``: ``__main__``,
``sys.argv``, ``sys.path[0]``, the exit code, and tracebacks that begin in its own code. Calls of
its optimizers mark the ends of steps (`optimizer_steps`).
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import dataclasses
import functools
import importlib.util
import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from ppprof import rundir
from ppprof.capture.attach import attach
from ppprof.capture.attached import is_attached, run_directory, was_attached
from ppprof.capture.output import log_to_stderr
from ppprof.capture.ranks.job import is_alone, is_initialized
from ppprof.capture.recording.user_files import TRAINERS
from ppprof.capture.session import NoopSession, ProfilerSession, RecordingSession
from ppprof.capture.signals import pass_interruption
from ppprof.config import ProfilerConfig, load_profiler
from ppprof.errors import PpprofError, UsageError
from ppprof.integrations.optimizer_steps import OptimizerSteps, after_import

log = logging.getLogger("ppprof")


def main(
    argv: Sequence[str] | None = None,
    *,
    yields: bool = False,
    at_start: Set[str] | None = None,
) -> int:
    """Run a training script under a ``Profiler`` block, and return an exit code.

    Exceptions of the script are raised unchanged. If ``Profiler.stop_training`` is True,
    SystemExit(0) ends the thread that trains, mostly the main one and so the script, after the last
    window. The process's ``sys.argv``, ``sys.path[0]`` and ``__main__`` become those of the script,
    and stay so.

    Args:
        argv: the command line: options, then ``--``, the script and its arguments; None for the
            process's own.
        yields: whether a session that the script opens itself replaces the one of this program. If
            so, this one begins with the first call of a layer or an optimizer once there is an optimizer,
            else when one is created; also if step 0 or 1 is to be recorded.
        at_start: names of the modules that a new interpreter has; the script's own modules replace
            others that ppprof has imported. None: no module is replaced.

    Returns:
        0 if the script has ended normally; 2 if the script did not start, since the ``Profiler``
        block, the script's name or ``--optimizer`` (number of the optimizer that ends the steps)
        is invalid.

    Raises:
        SystemExit: the options cannot be parsed (code 2), the script exits, or
            ``Profiler.stop_training`` ends it (code 0).
    """
    args = _parser().parse_args(argv)
    log_to_stderr()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    prints_errors = os.environ.get("PADDLE_LOCAL_RANK", "0") == "0"
    overrides = list(args.override)
    if args.profiler_options is not None:
        overrides.append(f"Profiler.profiler_options={args.profiler_options}")
    try:
        if not command or command == ["-m"]:
            raise UsageError("no script to run; expected -- SCRIPT ARGUMENTS after the options")
        if args.optimizer < 1:
            raise UsageError(f"--optimizer: {args.optimizer}: expected 1 or more")
        world_size = _world_size()
        loaded = load_profiler(args.config, overrides, world_size)
        is_module = command[0] == "-m"
        program = _module(*command[1:]) if is_module else _script(*command)
    except PpprofError as error:
        if prints_errors:
            print(error, file=sys.stderr, flush=True)
        return error.exit_code
    if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
        for warning in loaded.warnings:
            print(warning, file=sys.stderr)
        if not loaded.profiler.enable:
            log.info("Profiler.enable is False: running the script without the profiler")
    if loaded.profiler.enable and loaded.profiler.python_stacks is not False:
        # The script may fork workers of a DataLoader before its optimizer, which begins the session. Not
        # at once: NumPy reads environment variables that the script may set before.
        after_import("paddle.io.dataloader", _sample_workers)
    session = _ScriptSession(loaded.profiler, loaded.resolved, args.optimizer, yields, args.report)
    if at_start is not None and not getattr(sys.flags, "safe_path", False):
        _forget_modules(program.path0, at_start)
    return _run(program, session)


def _sample_workers(_: ModuleType) -> None:
    import_module("ppprof.capture.recording.python_stacks")


def _world_size() -> int:
    number = os.environ.get("PADDLE_TRAINERS_NUM", "")
    return int(number) if number.isdecimal() else 1


def _forget_modules(folder: str, at_start: Set[str]) -> None:
    """Let a script import its own modules where ppprof has imported others with their names."""
    with suppress(OSError):
        for path in Path(folder).iterdir():
            name, file = (
                (path.stem, path) if path.suffix == ".py" else (path.name, path / "__init__.py")
            )
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if name in at_start or loaded is None or not file.is_file() or file.samefile(loaded):
                continue
            for other in [other for other in sys.modules if other.partition(".")[0] == name]:
                del sys.modules[other]


def _run(program: _Program, session: _ScriptSession) -> int:
    """Run a program, and return 0 when its code has ended normally.

    The interpreter ends it as any other program: it waits for threads, one of which may train, and
    calls the functions of `atexit`, one of which closes the session.
    """
    sys.argv[:] = program.argv
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, program.path0)
    sys.modules["__main__"] = program.module
    _ImportAgain.install("logging", logging.shutdown)
    try:
        exec(program.code(), vars(program.module))  # noqa: S102 (the purpose of this program)
    except SystemExit as error:
        session.exit_code = error.code
        raise
    except BaseException:
        _hide_own_frames(program.module)
        raise
    return 0


class _ImportAgain:
    """Lets the script import a module that ppprof has imported, as if for the first time.

    That registers the module's exit hook: hooks run in reverse order. The module stays the same object.
    """

    def __init__(self, module: ModuleType, hook: Callable[[], object]) -> None:
        self._module = module
        self._hook = hook
        self._spec = module.__spec__

    @classmethod
    def install(cls, name: str, hook: Callable[[], object]) -> None:
        """Do it for a module, unless the script's own has its name."""
        module = sys.modules.get(name)
        if module is not None and vars(module).get(hook.__name__) is hook:
            del sys.modules[name]
            sys.meta_path.insert(0, cls(module, hook))

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return how to import the module; None for other modules."""
        if name != self._module.__name__:
            return None
        sys.meta_path.remove(self)
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that there is."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Register the hook now."""
        module.__spec__ = self._spec
        atexit.unregister(self._hook)
        atexit.register(self._hook)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Run an unmodified training script under a Profiler block.",
        usage="%(prog)s [-c CFG] [-o K=V] [--profiler-options TEXT] [--optimizer N] -- SCRIPT ...",
    )
    parser.add_argument("-c", "--config", metavar="CFG", help="YAML with the block")
    parser.add_argument(
        *("-o", "--override"),
        action="append",
        default=[],
        metavar="K=V",
        help="set a key, such as Profiler.enable=True; repeatable",
    )
    parser.add_argument(
        "--profiler-options",
        metavar="TEXT",
        help='options as in PaddleClas, PaddleOCR and PaddleDetection: "batch_range=[50, 60]; ..."',
    )
    parser.add_argument(
        "--optimizer",
        type=int,
        default=1,
        metavar="N",
        help="with several optimizers, a training step ends with the N-th that steps (default: 1)",
    )
    parser.add_argument("--report", metavar="PAGE", help="afterwards, write a page as report does")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ...",
        help="the script and its arguments; -m MODULE for a module",
    )
    return parser


_REPORT = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # nothing from the script's directory
    "from ppprof.cli import main; sys.exit(main(sys.argv[1:]))"
)


_NO_BENCH = (
    "the script calls ppprof.attach() itself, and ppprof bench cannot end that session after --steps: turn "
    "it off, as with -o Profiler.enable=False of tools/train.py, or give bench a command with {log}"
)


class _ScriptSession:
    """The profiler session of a script, from its first optimizer to its end."""

    def __init__(
        self,
        profiler: ProfilerConfig,
        config: Mapping[str, Any],
        optimizer: int,
        yields: bool = False,
        page: str | None = None,
    ) -> None:
        self._profiler = profiler
        self._config = config
        self._pid = os.getpid()
        self._session: ProfilerSession = NoopSession()
        self._num_steps = 0
        self._optimizer = optimizer
        self._yields = yields
        self._page = page
        self._cwd = Path.cwd()  # the script may change it
        self._log = Path(profiler.profiler_log).absolute()
        self._run: Path | None = None
        """The session's directory: `rundir.newest` may be that of another job."""
        self._has_begun = self._has_own_session = self._has_hooks = False
        self._is_alone = False
        """Whether this process of several works with the others by rpc only."""
        self._awaits_hooks = False
        """Whether `_begin` has opened the session, and no hooks of a Trainer have taken it over."""
        self._steps: OptimizerSteps | None = None
        self._end_message = ""
        """The last line of the process, after those of the script's own session."""
        self.exit_code: object = None
        """What the script has called ``sys.exit`` with. The exception itself holds its frames."""
        if profiler.enable:
            atexit.register(self.close)
            schedule = profiler.scheduler
            records_first = isinstance(schedule, tuple) and schedule[0] <= 1
            self._steps = OptimizerSteps(
                self._begin, self._end_step, optimizer, at_creation=records_first or not yields
            )
            for package in TRAINERS:
                watch = functools.partial(self._watch_trainer, package, self._steps)
                after_import(f"{package}.trainer.trainer", watch)

    def close(self) -> None:
        """Close the session; log a warning if the script ended normally but without a step.

        Called by `atexit`. In a forked child, do nothing.
        """
        if self._steps is None or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        self._steps.close()
        error = getattr(sys, "last_value", None)  # set when an exception ends the program
        if self.exit_code:
            error = SystemExit(self.exit_code)
        self._session.__exit__(type(error) if error is not None else None, error, None)
        if self._end_message:
            log.error(self._end_message)
        session = self._session
        is_first = isinstance(session, RecordingSession) and session.rank == 0
        if self._page is not None and error is None and is_first:
            self._write_page(self._page)
        elif self._page is not None and error is None and self._has_own_session:
            log.warning(f"{self._page}: no page was written: the script's own session records")
        if error is None and self._num_steps and not self._has_begun:
            log.warning(
                f"nothing is recorded: this process is one of {_world_size()} ranks, and the script "
                "has called neither paddle.distributed.init_parallel_env, fleet.init nor rpc.init_rpc, "
                "nor made a ProcessMesh of several ranks"
            )
        has_own_session = self._has_own_session or (not self._has_begun and was_attached())
        is_silent = error is None and not (self._num_steps or self._has_hooks or has_own_session)
        if is_silent and self._steps.has_served:
            log.info(
                "this process serves calls by rpc: they are recorded with the steps of a caller that trains"
            )
        elif is_silent:
            num = self._steps.num_optimizers
            stepped = f"{num or 'no'} optimizer{'s' * (num > 1)} stepped"
            log.warning(
                f"no training step was detected: {stepped} in this process, and number "
                f"{self._optimizer} would end a step; in a script that steps none, such as "
                "inference, use ppprof.attach() and its step()"
            )

    def _write_page(self, page: str) -> None:
        """Write the page of the run, in a separate process."""
        try:
            run = self._run or rundir.newest(self._log)
            if self._is_alone:  # several such processes may train
                rank = os.environ["PADDLE_TRAINER_ID"]
                page = str(Path(page).with_name(f"rank_{rank}_{Path(page).name}"))
            command = [sys.executable, "-c", _REPORT, "report", str(run), "-o", page, "--force"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        except (PpprofError, OSError, subprocess.CalledProcessError) as error:
            log.warning(f"{page}: no page was written: {error}")

    def _watch_trainer(self, package: str, steps: OptimizerSteps, module: ModuleType) -> None:
        """Let hooks of a Trainer end the steps: they know its tokens, evaluations and checkpoints."""
        train = getattr(getattr(module, "Trainer", None), "train", None)
        if train is None:  # another version: its optimizer ends the steps, here and below
            return

        @functools.wraps(train)
        def wrapper(trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
            with suppress(AttributeError, ImportError):
                hooks = importlib.import_module(f"ppprof.integrations.{package}").PpprofCallback
                has_own = any(
                    isinstance(each, hooks) for each in trainer.callback_handler.callbacks
                )
                takes_over = not (has_own or self._has_own_session)
                if takes_over and self._has_begun and self._num_steps:
                    log.info(
                        "the Trainer's hooks are left out, since an optimizer has stepped before "
                        "train(): tokens are unknown, evaluations and checkpoints count in steps"
                    )
                elif takes_over:
                    trainer.add_callback(hooks(self._profiler, self._session_of_hooks))
                    steps.close()
                    self._has_hooks = True
            return train(trainer, *args, **kwargs)

        module.Trainer.train = wrapper

    def _begin(self) -> bool:
        if _world_size() > 1 and not is_initialized():
            # Some of the processes that only work by rpc serve others, though they make a model or an optimizer.
            in_step = self._steps is not None and self._steps.begins_in_step
            self._is_alone = in_step and is_alone()
            if not self._is_alone:
                return False
        if self._yields and is_attached():
            self._has_begun = self._has_own_session = True
            if self._steps is not None:
                self._steps.close()
            if "PPPROF_BENCH" in os.environ:  # see ppprof.cli.bench
                self._end_message = _NO_BENCH
                raise SystemExit(UsageError.exit_code)
            log.info("the script calls ppprof.attach() itself: its own session records")
        else:
            self._open_session(self._profiler)
            self._awaits_hooks = True
        return True

    def _session_of_hooks(self, profiler: ProfilerConfig, first_step: int = 0) -> ProfilerSession:
        """Return the session that began before ``train()``, if it did: its steps count from 0."""
        if not self._awaits_hooks:
            return self._open_session(profiler, first_step)
        self._awaits_hooks = False
        if first_step:
            log.info(
                f"step {first_step} of the Trainer is step 0 here: an optimizer was made, or a "
                "layer called, before train()"
            )
        return self._session

    def _open_session(self, profiler: ProfilerConfig, first_step: int = 0) -> ProfilerSession:
        self._has_begun = True
        if Path.cwd() != self._cwd:
            profiler = dataclasses.replace(profiler, profiler_log=str(self._log))
        try:
            self._session = attach(profiler, config=self._config, first_step=first_step)
            self._run = run_directory()
        except Exception as error:
            pass_interruption(error)
            log.warning(f"{error}; the training continues without the profiler")
        # Called in reverse order: now ahead of what Paddle and the session have registered.
        atexit.unregister(self.close)
        atexit.register(self.close)
        return self._session

    def _end_step(self) -> None:
        self._num_steps += 1
        self._session.step()
        if self._session.should_stop:
            thread = threading.current_thread()
            if thread is not threading.main_thread():
                log.info(
                    f"stop_training: the last window has closed, so {thread.name}, the thread that "
                    "trains, ends here; the script ends when its main thread does"
                )
            raise SystemExit(0)  # the only clean way to end an unmodified script


class _Program(NamedTuple):
    """A script or module as Python would run it: its code and the interpreter state it sees."""

    code: Callable[[], CodeType]
    module: ModuleType
    argv: list[str]
    path0: str


def _script(path: str, *args: str) -> _Program:
    try:
        with io.open_code(str(Path(path).absolute())) as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; expected a Python script") from None
    full = str(Path(path).absolute())
    module = _main_module(full, SourceFileLoader("__main__", full))

    def code() -> CodeType:
        return compile(source, full, "exec", dont_inherit=True)

    return _Program(code, module, [path, *args], str(Path(path).resolve().parent))


def _module(name: str, *args: str) -> _Program:
    # As with python -m: packages in the working directory can be imported.
    sys.argv[:] = ["-m", *args]
    folder = str(Path.cwd())
    is_added = not getattr(sys.flags, "safe_path", False)
    if is_added:
        sys.path.insert(0, folder)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of the package's own code
        spec = None
    except ValueError:
        spec = None
    finally:
        if is_added:
            sys.path.remove(folder)
    loader: Any = spec.loader if spec is not None else None
    has_code = hasattr(loader, "get_code") and not hasattr(loader, "_ORIGIN")  # no built-in module
    if spec is None or spec.origin is None or not has_code:
        raise UsageError(f"-m {name}: expected a module, or a package with a __main__")
    module = _main_module(spec.origin, loader)
    vars(module).update(__package__=spec.parent, __spec__=spec, __cached__=spec.cached)
    code = functools.partial(loader.get_code, spec.name)
    return _Program(code, module, [spec.origin, *args], folder)


def _main_module(path: str, loader: Any) -> ModuleType:
    module = ModuleType("__main__")
    vars(module).update(
        __file__=path, __loader__=loader, __cached__=None, __annotations__={}, __builtins__=builtins
    )
    return module


def _hide_own_frames(script: ModuleType) -> None:
    """Replace ``sys.excepthook``, so that a printed traceback begins in the script's own code, not in this program's."""
    print_exception = sys.excepthook
    names = id(vars(script))  # no reference: its objects end when they would by themselves

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        while traceback is not None and id(traceback.tb_frame.f_globals) != names:
            traceback = traceback.tb_next
        print_exception(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = excepthook


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory; the program's own folder is added
    sys.exit(main())
