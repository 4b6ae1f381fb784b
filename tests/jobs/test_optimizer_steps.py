"""Where steps end, by real optimizers of Paddle; each program in a process of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.jobs.launching import run

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

BEFORE = """
import logging, os, sys, warnings
warnings.simplefilter("ignore")
from ppprof.integrations.optimizer_steps import OptimizerSteps

def begin():
    print("begin", end=" ")
    return len(sys.argv) < 3 or bool(begun)

begun = []
class Brackets(logging.Handler):
    def emit(self, record):
        print(f"[{record.getMessage()}]", end=" ")

logging.getLogger("ppprof").addHandler(Brackets())
watched = OptimizerSteps(begin, lambda: print("step", end=" "), int(sys.argv[1]))
import paddle
net = paddle.nn.Linear(2, 2)
parameters = net.parameters()

def backward():
    loss = net(paddle.ones([1, 2])).sum()
    loss.backward()
    return loss

def say(word):
    print(word, end=" ")
"""


def seen(folder: Path, program: str, boundary: int = 1, *more: str) -> str:
    """What a program and the steps seen in it print, in their order."""
    program = BEFORE + textwrap.dedent(program)
    return run(folder, "-c", program, str(boundary), *more).stdout.strip()


def test_a_step_ends_after_each_step_of_the_optimizer_however_many_backwards_it_takes(
    tmp_path: Path,
) -> None:
    program = """
    optimizer = paddle.optimizer.AdamW(parameters=parameters)
    for _ in range(2):
        backward()
        say("backward")
        backward()
        optimizer.step()
        say("clear")
        optimizer.clear_grad()
    """
    assert seen(tmp_path, program) == "begin backward step clear backward step clear"


def test_minimize_is_a_step_too_and_so_are_the_steps_of_somebodys_own_class(tmp_path: Path) -> None:
    program = """
    sgd = paddle.optimizer.SGD(parameters=parameters)
    sgd.minimize(backward())
    say("own")
    del sgd
    class Own(paddle.optimizer.Momentum):
        def step(self):
            super().step()
            say("inside")
    own = Own(parameters=parameters)
    backward()
    own.step()
    """
    assert seen(tmp_path, program) == "begin step own inside step"


def test_without_an_optimizer_of_paddle_each_outermost_backward_ends_a_step(tmp_path: Path) -> None:
    program = """
    class Nested(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1
        @staticmethod
        def backward(ctx, grad):
            y = paddle.ones([1])
            y.stop_gradient = False
            y.sum().backward()  # as recomputation does it
            return grad

    def update():
        for parameter in parameters:
            parameter.set_value(parameter - 0.1 * parameter.grad)
            parameter.clear_gradient()

    for number in range(7):
        say(number)
        Nested.apply(net(paddle.ones([1, 2]))).sum().backward()
        update()
    say("autograd")
    paddle.autograd.backward([net(paddle.ones([1, 2])).sum()])
    optimizer = paddle.optimizer.SGD(parameters=parameters)
    backward()
    say("update")
    optimizer.step()
    """
    warning = (
        "[there is no optimizer of Paddle: each backward() ends a step; if an update takes several "
        "of them, use ppprof.attach() and its step()]"
    )
    assert seen(tmp_path, program) == (
        f"0 1 2 3 4 begin {warning} step 5 step 6 step autograd step update step"
    )


def test_updates_of_some_rows_of_a_table_are_steps(tmp_path: Path) -> None:
    program = """
    import weakref
    proxy = weakref.proxy(type("Gone", (), {})())  # of an object that is gone
    table = paddle.nn.Embedding(20000, 8)
    for number in range(7):
        say(number)
        rows = paddle.randint(0, 20000, [2000])
        table(rows).sum().backward()
        table.weight.set_value(table.weight - 0.1 * table.weight.grad)
        table.weight.clear_gradient()
    """
    assert seen(tmp_path, program).replace("[", "]").split("]")[::2] == [
        "0 1 2 3 4 begin ",
        " step 5 step 6 step",
    ]


def test_backwards_that_update_nothing_end_no_step(tmp_path: Path) -> None:
    """Gradients that are only looked at, as to initialize LoRA, and then a training."""
    program = """
    for _ in range(20):
        backward()
        for parameter in parameters:
            parameter.clear_gradient()
    say("estimated")
    optimizer = paddle.optimizer.SGD(parameters=parameters)
    for _ in range(2):
        backward()
        optimizer.step()
    """
    assert seen(tmp_path, program) == "estimated begin step step"


def test_an_own_optimizer_in_a_scaler_is_one_step(tmp_path: Path) -> None:
    program = """
    class Own:
        def __init__(self):
            self._parameter_list = parameters
        def step(self):
            for parameter in parameters:
                parameter.set_value(parameter - 0.1 * parameter.grad)
                parameter.clear_gradient()
    own, scaler = Own(), paddle.amp.GradScaler(enable=False)
    for number in range(8):
        say(number)
        scaler.scale(net(paddle.ones([1, 2])).sum()).backward()
        scaler.step(own)
    """
    # The first one ends with its backward(): no scaler is watched before.
    assert seen(tmp_path, program).partition("]")[2] == " step step 5 step 6 step 7 step"


def test_backwards_ahead_of_an_optimizers_first_step_end_no_step(tmp_path: Path) -> None:
    program = """
    optimizer = paddle.optimizer.SGD(parameters=parameters)
    for _ in range(8):
        backward()
    say("accumulated")
    optimizer.step()
    """
    assert seen(tmp_path, program) == "begin accumulated step"


@pytest.mark.jobs
def test_a_scaler_and_its_optimizer_are_one_step_and_a_skipped_update_is_one(
    tmp_path: Path,
) -> None:
    program = """
    scaler = paddle.amp.GradScaler()
    taken = paddle.amp.GradScaler.step
    def step(self, optimizer):
        if not skips:
            taken(self, optimizer)
    paddle.amp.GradScaler.step = step  # on a CPU a scaler never skips
    optimizer = paddle.optimizer.Adam(parameters=parameters)
    for skips in (True, False):
        backward()
        scaler.step(optimizer)
        scaler.update()
        say("updated")
    scaler.step(optimizer=optimizer)
    scaler.minimize(optimizer, backward())
    """
    assert seen(tmp_path, program) == "begin step updated step updated step step"


def test_optimizers_in_optimizers_are_one_step(tmp_path: Path) -> None:
    program = """
    inner = paddle.optimizer.SGD(parameters=parameters)
    outer = paddle.incubate.LookAhead(inner, k=2)
    for _ in range(2):
        backward()
        outer.step()
        say("next")
    """
    assert seen(tmp_path, program) == "begin step next step next"


def test_an_optimizer_that_is_created_in_each_step_needs_no_garbage_collection(
    tmp_path: Path,
) -> None:
    program = """
    import gc
    full = []
    gc.disable()
    gc.callbacks.append(lambda *_: full.append(1))
    for _ in range(4):
        backward()
        paddle.optimizer.Adam(parameters=parameters).step()
    say(len(full))
    """
    assert seen(tmp_path, program) == "begin step step step step 0"


@pytest.mark.jobs
def test_a_thread_that_steps_while_another_one_begins_waits_for_it(tmp_path: Path) -> None:
    program = """
    import threading, time
    inside = threading.Event()

    def slow():
        say("begin")
        inside.set()
        time.sleep(0.5)
        say("begun")
        return True

    watched._begin = slow
    other = threading.Thread(target=lambda: paddle.optimizer.SGD(parameters=parameters))
    base = paddle.optimizer.Optimizer
    other.start()
    inside.wait()
    backward()
    optimizer = paddle.optimizer.Adam(parameters=parameters)
    optimizer.step()
    other.join()
    """
    assert seen(tmp_path, program) == "begin begun step"


def test_the_options_of_an_optimizer_can_be_asked_for(tmp_path: Path) -> None:
    program = """
    import inspect
    kinds = [paddle.optimizer.AdamW, paddle.optimizer.SGD, paddle.optimizer.Momentum]
    for kind in kinds:
        say(",".join(inspect.getfullargspec(kind.__init__).args[:3]))
    """
    assert seen(tmp_path, program) == (
        "self,learning_rate,beta1 self,learning_rate,parameters self,learning_rate,momentum"
    )


GAN = """
discriminator = paddle.optimizer.SGD(parameters=parameters)
generator = paddle.optimizer.Adam(parameters=parameters)
for _ in range(2):
    for optimizer in (discriminator, generator):
        backward()
        optimizer.step()
        say(type(optimizer).__name__)
"""


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("boundary", "printed"),
    [(1, "begin step SGD {} Adam step SGD Adam"), (2, "begin SGD {} step Adam SGD step Adam")],
)
def test_of_several_optimizers_one_ends_the_steps(
    tmp_path: Path, boundary: int, printed: str
) -> None:
    line = (
        f"[several optimizers step, SGD (1) and Adam (2): number {boundary} ends the steps; "
        "select another with --optimizer N]"
    )
    assert seen(tmp_path, GAN, boundary) == printed.format(line)


@pytest.mark.parametrize(
    ("boundary", "printed"),
    [
        (1, "begin step a step b step c {} step a b c step a b c"),
        (3, "begin a b c {} a b step c a b step c"),
    ],
)
def test_optimizers_that_take_turns_are_several_also_if_they_update_the_same(
    tmp_path: Path, boundary: int, printed: str
) -> None:
    """An optimizer may have replaced another one, until that one steps again."""
    program = """
    optimizers = [paddle.optimizer.Adam(parameters=parameters) for _ in range(3)]
    for _ in range(3):
        for name, optimizer in zip("abc", optimizers):
            backward()
            optimizer.step()
            say(name)
    """
    line = (
        f"[several optimizers step, Adam (1) and Adam (2): number {boundary} ends the steps; "
        "select another with --optimizer N]"
    )
    assert seen(tmp_path, program, boundary) == printed.format(line)


def test_an_optimizer_that_follows_one_that_is_gone_takes_its_place(tmp_path: Path) -> None:
    program = """
    for kind in (paddle.optimizer.SGD, paddle.optimizer.Adam):
        optimizer = kind(parameters=parameters)
        backward()
        optimizer.step()
        say(kind.__name__)
        del optimizer
    """
    assert seen(tmp_path, program) == "begin step SGD step Adam"


def test_what_cannot_begin_yet_begins_with_the_first_step(tmp_path: Path) -> None:
    program = """
    optimizer = paddle.optimizer.SGD(parameters=parameters)
    say("made")
    begun.append(True)
    for _ in range(2):
        backward()
        say("backward")
        optimizer.step()
    """
    # Asked twice in making: by SGD and by the class that it inherits from.
    assert (
        seen(tmp_path, program, 1, "late") == "begin begin made backward begin step backward step"
    )


@pytest.mark.jobs
def test_a_forked_child_a_static_program_and_a_step_that_raises_end_no_step(tmp_path: Path) -> None:
    program = """
    optimizer = paddle.optimizer.SGD(parameters=parameters)
    sys.stdout.flush()
    if not os.fork():
        optimizer.step()
        os._exit(0)
    os.wait()
    def fails(*_, **__):
        raise ValueError("not now")
    optimizer._apply_optimize = fails
    backward()
    try:
        optimizer.step()
    except ValueError as error:
        say(error)
    del optimizer._apply_optimize
    optimizer.step()
    paddle.enable_static()
    x = paddle.static.data("x", [1, 2])
    paddle.optimizer.SGD().minimize(paddle.static.nn.fc(x, 2).mean())
    """
    assert seen(tmp_path, program) == "begin not now step"


def test_a_training_call_of_a_program_of_distributed_to_static_is_a_step(tmp_path: Path) -> None:
    program = """
    import paddle.distributed as dist
    mesh = dist.ProcessMesh([0])
    net.weight = dist.shard_tensor(net.weight, mesh, [dist.Replicate()])
    data = [(paddle.ones([2]), paddle.ones([2]))]
    loader = dist.shard_dataloader(paddle.io.DataLoader(data, batch_size=1), meshes=[mesh])
    optimizer = paddle.optimizer.SGD(parameters=net.parameters())
    model = dist.to_static(net, loader, paddle.nn.MSELoss(), optimizer)
    for mode in (model.train, model.eval, model.train):
        mode()
        for inputs, labels in loader():
            say(model._mode)
            model(inputs, labels)
    """
    assert seen(tmp_path, program) == "begin train step eval train step"


def test_paddle_is_imported_by_the_program_alone(tmp_path: Path) -> None:
    program = "from ppprof.integrations import script; import sys; print('paddle' in sys.modules)"
    done = run(tmp_path, "-c", program)
    assert done.stdout == "False\n"


def test_steps_of_a_served_call_are_its_callers_unless_the_call_trains(tmp_path: Path) -> None:
    """Two optimizers step three times each in a call, also by a scaler; then one steps six times."""
    program = """
    from paddle.distributed.rpc import internal

    optimizers = [paddle.optimizer.SGD(parameters=parameters) for _ in range(2)]
    scaler = paddle.amp.GradScaler(enable=False)

    def serve(times):
        for _ in range(times):
            for optimizer in optimizers[: 1 if times > 3 else 2]:
                backward()
                scaler.step(optimizer)
        say("served")

    for times in (3, 3, 6):
        internal._run_py_func(internal.PythonFunc(serve, (times,), {}))
    backward()
    optimizers[0].step()
    """
    # The first five steps of the last call show that it trains.
    assert seen(tmp_path, program) == "begin served served step served step"
