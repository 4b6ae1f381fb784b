# make profile   train a tiny GPT on 2 CPU processes with the profiler on, and print the tables
# make profile-hybrid   the same on 8, data, tensor and pipeline parallel
# make check     lint, format, types
# make test      everything that needs no training but one: run it after each change
# make test-jobs real launches, a page in a browser, a server, an install: one case a feature
# make test-all  both, every other launch, and many more random examples: before a release
# make test-paddle26   captures, and trains data parallel, with Paddle 2.6.2 in .venv-26
# make lock      pins anew what development installs; LOCK=requirements/dev.lock installs that
# make integrations   the Trainers of PaddleNLP and PaddleFormers, in environments of their own
# make bench     the numbers of the README, measured again
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK ?=
# Paddle 2.6.2 has wheels for Python 3.8 to 3.12.
PYTHON26 ?= $(PYTHON)
# A test that hangs ends with the stacks of all threads.
PYTEST := $(BIN)/python -m pytest --timeout 600
ARGS ?=
LAUNCH := $(BIN)/python -m paddle.distributed.launch --nproc_per_node

TRAINERS := .venv-paddlenlp/.installed .venv-paddleformers/.installed

.PHONY: profile profile-hybrid test test-jobs test-all test-paddle26 check lock integrations trainers bench install clean

install: $(VENV)/.installed

# pip below 25.1 cannot read dependency groups, so the environment brings its own pip.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[train,view]" --group dev $(addprefix --constraint ,$(LOCK))
	touch $@

profile: install
	$(LAUNCH) 2 tools/train.py -c configs/gpt/pretrain_gpt_tiny_cpu_dp2.yaml -o Profiler.enable=True

profile-hybrid: install
	$(LAUNCH) 8 tools/train.py -c configs/gpt/pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml -o Profiler.enable=True

# A worker a core. The same random examples each time, so that a change is judged by what it changes.
test: install
	HYPOTHESIS_PROFILE=ci $(PYTEST) -n auto --dist worksteal -m "not jobs and not all" $(ARGS)

test-jobs: install
	HYPOTHESIS_PROFILE=ci $(PYTEST) -n 2 --dist loadscope -m jobs $(ARGS)

# Launches one after the other: some measure times, and gloo gives up after 30 s.
# Environments that do not install here skip their tests.
test-all: install
	-$(MAKE) --keep-going trainers $(VENV)-26/.installed
	HYPOTHESIS_PROFILE=full $(PYTEST) -n auto --dist worksteal -m "not jobs and not all" $(ARGS)
	HYPOTHESIS_PROFILE=full PPPROF_PADDLE26_PYTHON=$$(ls $(VENV)-26/bin/python 2>/dev/null) \
		$(PYTEST) -m "jobs or all" $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/audit.py requirements/dev.lock

lock: install
	$(BIN)/python -m pip install --quiet "uv>=0.5,<1"
	$(BIN)/uv pip compile --quiet --universal --python-version 3.9 --upgrade --no-header \
		--extra train --extra view --group dev pyproject.toml -o requirements/dev.lock

$(VENV)-26/.installed: pyproject.toml
	$(PYTHON26) -m venv $(VENV)-26
	$(VENV)-26/bin/python -m pip install --quiet --editable ".[train]" \
		"paddlepaddle==2.6.2" "numpy<2" "protobuf<7" setuptools "pytest>=8,<10" "hypothesis>=6.100,<7" "filelock>=3.12,<4"
	touch $@

test-paddle26: install $(VENV)-26/.installed
	PPPROF_PADDLE26_PYTHON=$(VENV)-26/bin/python $(PYTEST) tests/jobs/test_paddle_26.py

trainers: $(TRAINERS)

$(TRAINERS): .venv-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-$*/bin/python -m pip install --quiet --editable . --group $*
	touch $@

integrations: install trainers
	$(PYTEST) tests/jobs/test_trainers.py tests/jobs/test_documented_integrations.py

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-26 .venv-paddlenlp .venv-paddleformers profiler_log output log
