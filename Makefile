# make profile   train a tiny GPT on 2 CPU processes with the profiler on, and print the tables
# make profile-hybrid   the same on 8, data, tensor and pipeline parallel
# make test      every test            make check   lint, format, types
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
LAUNCH := $(BIN)/python -m paddle.distributed.launch --nproc_per_node

TRAINERS := .venv-paddlenlp/.installed .venv-paddleformers/.installed

.PHONY: profile profile-hybrid test test-paddle26 check lock integrations trainers bench install clean

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

test: install
	$(BIN)/python -m pytest

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
		"paddlepaddle==2.6.2" "numpy<2" "protobuf<7" setuptools "pytest>=8,<10" "hypothesis>=6.100,<7"
	touch $@

test-paddle26: install $(VENV)-26/.installed
	PPPROF_PADDLE26_PYTHON=$(VENV)-26/bin/python $(BIN)/python -m pytest tests/test_paddle_26.py

trainers: $(TRAINERS)

$(TRAINERS): .venv-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-$*/bin/python -m pip install --quiet --editable . --group $*
	touch $@

integrations: install trainers
	$(BIN)/python -m pytest tests/integrations

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-26 .venv-paddlenlp .venv-paddleformers profiler_log output log
