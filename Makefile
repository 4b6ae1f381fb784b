# make profile   train a tiny GPT on 2 CPU processes with the profiler on, and print the tables
# make profile-hybrid   the same on 8, data, tensor and pipeline parallel
# make test      every test            make check   lint, format, types
# make bench     the numbers of the README, measured again
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LAUNCH := $(BIN)/python -m paddle.distributed.launch --nproc_per_node

.PHONY: profile profile-hybrid test check bench install clean

install: $(VENV)/.installed

# pip below 25.1 cannot read dependency groups, so the environment brings its own pip.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[train,view]" --group dev
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

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) profiler_log output log
