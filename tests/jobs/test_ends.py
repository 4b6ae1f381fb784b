"""A script ends under ``ppprof run`` as it ends with Python alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import ppprof
from tests.jobs.launching import command, environment

LINES = """
import atexit, asyncio, multiprocessing, os, signal, sys, tempfile, threading, time, weakref
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

def say(*words):
    os.write(1, (" ".join(map(str, ("script:", *words))) + "\\n").encode())

def train(number):
    for step in range(number):
        net(paddle.ones([2, 8])).mean().backward()
        optimizer.step()
    say("trained", number)
"""
PADDLE = """
atexit.register(say, "a hook registered before Paddle is imported")
import paddle
net = paddle.nn.Linear(8, 8)
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
train(3)
"""

ENDS = {
    "an executor that is never shut down": """
pool = ThreadPoolExecutor(2)
say(pool.submit(int, "3").result())
""",
    "an executor of a function that calls exit": """
def main():
    pool = ThreadPoolExecutor(2)
    pool.submit(time.sleep, 0.3).add_done_callback(lambda _: say("done"))
    atexit.register(say, "exit hook")
    sys.exit(7)
main()
""",
    "an executor of processes": """
pool = ProcessPoolExecutor(1)
say(pool.submit(int, "3").result())
atexit.register(say, "exit hook")
""",
    "an executor that gets work at the end": """
pool = ThreadPoolExecutor(1)
def late():
    time.sleep(0.3)
    try:
        pool.submit(say, "late")
    except RuntimeError as error:
        say(error)
threading.Thread(target=late).start()
""",
    "hooks and threads": """
def slow():
    time.sleep(0.3)
    say("thread ends")
    atexit.register(say, "hook of the thread")
atexit.register(say, "first hook")
threading._register_atexit(say, "ahead of threads")
atexit.register(say, "second hook")
threading.Thread(target=slow).start()
say("code ends")
""",
    "a thread that waits for the main thread": """
def waits():
    threading.main_thread().join()
    say("main thread has ended", threading.main_thread().is_alive())
threading.Thread(target=waits).start()
""",
    "a thread that exits, one that fails and a daemon": """
threading.Thread(target=lambda: sys.exit(3)).start()
threading.Thread(target=lambda: 1 / 0).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
    "a hook that fails and one that exits": """
atexit.register(say, "last")
atexit.register(lambda: 1 / 0)
atexit.register(lambda: sys.exit(5))
""",
    "an event loop that is left open": """
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
async def work():
    loop.create_task(asyncio.sleep(60))
    return await loop.run_in_executor(None, int, "3")
say(loop.run_until_complete(work()))
""",
    "an event loop whose task exits": """
async def work():
    try:
        sys.exit("its message")
    finally:
        say("finally")
asyncio.run(work())
""",
    "objects": """
class Held:
    def __del__(self):
        say("deleted", self.name, train is not None)
held = Held(); held.name = "global"
def function():
    held = Held(); held.name = "local"
    weakref.finalize(held, say, "finalized")
    raise ValueError("its own")
def generator():
    try:
        yield
    finally:
        say("generator closed")
open_generator = generator()
next(open_generator)
function()
""",
    "a thread after an exception": """
threading.Thread(target=lambda: (time.sleep(0.3), say("thread ends"))).start()
atexit.register(say, "exit hook")
raise ValueError("its own")
""",
    "an exit at once": """
atexit.register(say, "never")
threading.Thread(target=time.sleep, args=(60,)).start()
os._exit(5)
""",
    "a forked child": """
child = os.fork()
if not child:
    atexit.register(say, "hook of the child")
    threading.Thread(target=say, args=("thread of the child",)).start()
    sys.exit(3)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "an interrupt": "raise KeyboardInterrupt",
    "an exit without a code": "sys.exit()",
    "no end of its own": "say('end')",
}
"""What a script does last, by a name."""

CODES = ("259", "-1", "True", "1.5", "[1, 2]", "2**70", "'text'")
"""What a script calls sys.exit with; the exit code is of a byte, and other values are printed."""
FORK = "context = multiprocessing.get_context('fork')\n"
MORE_ENDS = {
    **{f"an exit with {code}": f"sys.exit({code})" for code in CODES},
    "an exit of a kind of its own": "class Own(SystemExit): pass\nraise Own(4)",
    "no Exception": "class Own(BaseException): pass\nraise Own('x')",
    "an exit in a context": """
class Context:
    def __enter__(self): return self
    def __exit__(self, *error): say("left", error[0])
with Context():
    sys.exit(2)
""",
    "hooks for exceptions": """
sys.excepthook = lambda *error: say("hook", error[0].__name__)
threading.excepthook = lambda error: say("hook of threads", error.exc_type.__name__)
sys.unraisablehook = lambda error: say("hook of deletions", error.exc_type.__name__)
class Fails:
    def __del__(self): 1 / 0
fails = Fails()
thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
atexit.register(lambda: say("last", repr(getattr(sys, "last_value", None))))
raise ValueError("its own")
""",
    "hooks in hooks": """
def hook():
    atexit.register(say, "inner hook")
    thread = threading.Thread(target=say, args=("thread",))
    for begin in (lambda: thread.start() or thread.join(),
                  lambda: say(ThreadPoolExecutor(1).submit(int, "3").result())):
        try:
            begin()
        except RuntimeError as error:
            say(error)
atexit.register(hook)
""",
    "hooks that are removed": """
atexit.register(say, "removed"); atexit.unregister(say)
atexit.register(say, "kept")
held = tempfile.TemporaryDirectory()
atexit.register(lambda: say(os.path.exists(held.name)))
""",
    "a hook that exits at once": "atexit.register(os._exit, 6)",
    "a timer, and a thread of a thread": """
threading.Timer(0.2, say, ("timer",)).start()
def outer():
    time.sleep(0.3)
    threading.Thread(target=lambda: (time.sleep(0.1), say("inner"))).start()
threading.Thread(target=outer).start()
""",
    "an executor that is shut down without waiting": """
pool = ThreadPoolExecutor(1)
for number in range(3):
    pool.submit(lambda number=number: (time.sleep(0.1), say(number)))
pool.shutdown(wait=False, cancel_futures=True)
""",
    "an executor of processes that works": """
pool = ProcessPoolExecutor(1)
pool.submit(time.sleep, 0.3)
atexit.register(say, "exit hook")
""",
    "a child process": FORK
    + """
def child():
    time.sleep(0.3)
    say("child ends")
context.Process(target=child).start()
atexit.register(say, "exit hook")
""",
    "a daemon process and a pool": FORK
    + """
child = context.Process(target=time.sleep, args=(60,), daemon=True)
child.start()
pool = context.Pool(1)
say(pool.apply(int, ("3",)))
atexit.register(lambda: say(child.is_alive()))
""",
    "processes that import the script": """
def child(): say("child", __name__)
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        child_process = multiprocessing.get_context(method).Process(target=child)
        child_process.start()
        child_process.join()
""",
    "an event loop in a thread": """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
say(asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1, 5), loop).result())
""",
    "tasks that are not done": """
async def task():
    try:
        await asyncio.sleep(60)
    finally:
        say("cancelled")
async def work():
    asyncio.create_task(task())
    await asyncio.sleep(0)
    asyncio.get_running_loop().run_in_executor(None, lambda: (time.sleep(0.2), say("late")))
asyncio.run(work())
""",
    "an interrupt in an event loop": """
async def work():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        say("cancelled")
        raise
asyncio.run(work())
""",
    **{
        f"{name} of another process": f"""
atexit.register(say, "exit hook")
os.kill(os.getpid(), signal.{name})
time.sleep(5)
"""
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGKILL")
    },
    "a handler of its own": """
def handler(*_):
    say("handler")
    sys.exit(9)
signal.signal(signal.SIGTERM, handler)
atexit.register(say, "exit hook")
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(5)
""",
    "a signal that is ignored": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGTERM)
say("goes on")
""",
    "an abort": "os.abort()",
    "another program": """
code = 'import os; os.write(1, b"script: the other one")'
os.execv(sys.executable, [sys.executable, "-c", code])
""",
    "no standard output": "sys.stdout.close()",
    "no standard error": "sys.stderr = None\n1 / 0",
    "no descriptor of standard error": "os.close(2)\n1 / 0",
    "text that is not flushed": "sys.stdout.write('script: text')",
}
"""Further ends, in the tier `all`."""


def ended(folder: Path, *words: str) -> tuple[int, list[str], str]:
    """Return the exit code, what the script has printed, and its traceback."""
    done = subprocess.run(
        command("-W", "ignore", *words),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("script:")]
    own = ("ppprof: ", "I")  # this program's messages, and those of Paddle's profiler
    errors = [line for line in done.stderr.splitlines() if not line.startswith(own)]
    return done.returncode, lines, re.sub("0x[0-9a-f]+", "0x", "\n".join(errors))


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *(pytest.param(*end, marks=pytest.mark.jobs) for end in ENDS.items()),
        *(pytest.param(*end, marks=pytest.mark.all) for end in MORE_ENDS.items()),
    ],
)
def test_a_script_ends_as_with_python_alone(tmp_path: Path, name: str, end: str) -> None:
    (tmp_path / "train.py").write_text(LINES + end)
    alone = ended(tmp_path, "train.py")
    assert ended(tmp_path, "-m", "ppprof", "run", "train.py") == alone


LOGGING = """
import atexit, os
def say(*words):
    os.write(1, (" ".join(map(str, ("script:", *words))) + "\\n").encode())
atexit.register(say, "a hook registered before logging is imported")
{imports}
class Said(logging.Handler):
    def flush(self):
        say("shut down")
logging.getLogger("script").addHandler(Said())
atexit.register(say, "a hook registered after it")
import logging as again
say(again is logging, logging.__spec__.name, logging.__spec__.origin == logging.__file__)
"""


@pytest.mark.jobs
@pytest.mark.parametrize(
    "imports", ["import logging", "import logging.handlers", "import concurrent.futures, logging"]
)
def test_hooks_run_in_the_order_in_which_the_script_imports_logging(
    tmp_path: Path, imports: str
) -> None:
    (tmp_path / "train.py").write_text(LOGGING.format(imports=imports))
    alone = ended(tmp_path, "train.py")
    assert ended(tmp_path, "-m", "ppprof", "run", "train.py") == alone
    assert alone[1] == [
        "script: True logging True",
        "script: a hook registered after it",
        "script: shut down",
        "script: a hook registered before logging is imported",
    ]


TRAINED = {
    "in an executor": (
        """
pool = ThreadPoolExecutor(1)
atexit.register(say, "exit hook")
pool.submit(train, 4)
""",
        3,  # the thread of the first step ends the steps
    ),
    "in a thread beside an exit": (
        """
threading.Thread(target=lambda: (threading.main_thread().join(), train(4))).start()
atexit.register(say, "exit hook")
sys.exit(7)
""",
        7,  # once that thread has ended, another one does
    ),
    "by itself and fails": (
        """
class Deleted:
    def __del__(self):
        say("deleted")
def fails():
    held = Deleted()
    held.itself = held
    1 / 0
fails()
""",
        3,
    ),
}
"""How a training ends, and how many of its steps count."""


@pytest.mark.jobs
@pytest.mark.paddle
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_ends_as_with_python_alone_and_is_recorded(tmp_path: Path, name: str) -> None:
    end, num_steps = TRAINED[name]
    (tmp_path / "train.py").write_text(LINES + PADDLE + end)
    alone = ended(tmp_path, "train.py")
    assert ended(tmp_path, "-m", "ppprof", "run", "--steps", "0:90", "train.py") == alone
    run = ppprof.open(tmp_path / "profiler_log")
    assert len(run.recordings) == 1
    assert (
        len((tmp_path / "profiler_log/steps/rank_00000.jsonl").read_text().splitlines())
        == num_steps
    )
