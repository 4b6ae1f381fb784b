# make profile   train a tiny GPT on 2 CPU processes with the profiler on, and print the tables
# make profile-hybrid   the same on 8 processes: data, tensor and pipeline parallel
# make check     lint, format, types, words, workflow files, who imports whom, outputs in pages
# make test      tests without training, except one shared capture: run it after each change
# make test-jobs real launches, a browser, a server, an install: one case for each feature
# make test-all  both, all other launches, and many more random examples: before a release
# make test-gpu  tests on GPUs; PPPROF_KEEP_CAPTURES=FOLDER keeps what they recorded
# make test-paddle26   capture and data parallel training with Paddle 2.6.2, in .venv-26
# make lock      pin the development packages again; LOCK=requirements/dev.lock installs them
# make mutants   changes of one file that no test sees; pyproject.toml names the file and its tests
# make release   sdist, wheels, checksums and SBOM into dist/, built twice and compared
# make integrations   tests with the Trainers of PaddleNLP and PaddleFormers, in .venv-paddle*
# make docs      the pages of docs/ as a site, in site/; runs their trainings and compares their words
# make bench     measure the numbers of the README again
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK ?=
# Paddle 2.6.2 has wheels for Python 3.8 to 3.12.
PYTHON26 ?= $(PYTHON)
# End a test that hangs, and print the stacks of all threads.
PYTEST := $(BIN)/python -m pytest --timeout 600
ARGS ?=
# The interpreter of an environment; nothing if its installation failed.
installed = $$(ls $(1)/.installed >/dev/null 2>&1 && echo $(1)/bin/python)
# Tests start hundreds of processes: compile each module once.
unexport PYTHONDONTWRITEBYTECODE
LAUNCH := $(BIN)/python -m paddle.distributed.launch --nproc_per_node

# The compiled core of the reader; without a compiler, tests of it are skipped.
CORE := ppprof/trace/fastpath/native/_core.so

TRAINERS := .venv-paddlenlp/.installed .venv-paddleformers/.installed

.PHONY: profile profile-hybrid test test-jobs test-all test-gpu test-paddle26 check lock integrations trainers bench mutants release docs install clean

install: $(VENV)/.installed $(CORE)

$(CORE): tools/build_core.py $(wildcard ppprof/trace/fastpath/native/*.[ch]) | $(VENV)/.installed
	$(BIN)/python tools/build_core.py

# pip below 25.1 cannot read dependency groups, so upgrade it in the environment.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[train,view]" --group dev $(addprefix --constraint ,$(LOCK))
	touch $@

profile: install
	$(LAUNCH) 2 tools/train.py -c configs/gpt/pretrain_gpt_tiny_cpu_dp2.yaml -o Profiler.enable=True

profile-hybrid: install
	$(LAUNCH) 8 tools/train.py -c configs/gpt/pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml -o Profiler.enable=True

# One worker per core. The random examples are the same each time, so that results can be compared.
test: install
	HYPOTHESIS_PROFILE=ci $(PYTEST) -n auto --dist worksteal -m "not jobs and not all" $(ARGS)

test-jobs: install
	HYPOTHESIS_PROFILE=ci $(PYTEST) -n 2 --dist loadscope -m jobs $(ARGS)

# 1,000 examples of whole analyses take 10 minutes, hence the longer timeout.
# Launches run one after another: some measure times, and gloo times out after 30 s.
# If an environment cannot be installed here, its tests are skipped.
test-all: ALL = HYPOTHESIS_PROFILE=full PPPROF_PADDLE26_PYTHON=$(call installed,$(VENV)-26) \
	PPPROF_RPC_PYTHON=$(call installed,$(VENV)-rpc) PPPROF_PEERS_PYTHON=$(call installed,$(VENV)-peers) $(PYTEST)
test-all: install
	-$(MAKE) --keep-going trainers $(VENV)-26/.installed $(VENV)-rpc/.installed $(VENV)-peers/.installed
	$(ALL) --timeout 1800 -n auto --dist worksteal --ignore tests/jobs $(ARGS)
	$(ALL) tests/jobs $(ARGS)

# The environment needs Paddle's GPU wheel: the extra `gpu` instead of `train`.
test-gpu:
	$(PYTEST) -m gpu $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_words.py
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml examples/ci_gate.yml
	$(BIN)/check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github examples/ci_gate.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms \
		$(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/python -m pytest -q tests/test_rooms.py tests/docs/test_sessions.py tests/tools/test_docs.py
	$(BIN)/python tools/audit.py requirements/dev.lock

release: install
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python tools/release.py $(ARGS)

lock: install
	$(BIN)/python -m pip install --quiet "uv>=0.5,<1"
	$(BIN)/uv pip compile --quiet --universal --python-version 3.9 --upgrade --no-header \
		--extra train --extra view --group dev --group docs pyproject.toml -o requirements/dev.lock

$(VENV)-26/.installed: pyproject.toml
	$(PYTHON26) -m venv $(VENV)-26
	$(VENV)-26/bin/python -m pip install --quiet --editable ".[train]" \
		"paddlepaddle==2.6.2" "numpy<2" "protobuf<7" setuptools "pytest>=8,<10" "hypothesis>=6.100,<7" "filelock>=3.12,<4"
	touch $@

# The only wheel with paddle.distributed.rpc that needs no GPU for it: 3 GB.
$(VENV)-rpc/.installed: pyproject.toml
	$(PYTHON26) -m venv $(VENV)-rpc
	$(VENV)-rpc/bin/python -m pip install --quiet --editable . \
		"paddlepaddle-gpu==2.6.2" "numpy<2" "protobuf<7" setuptools
	touch $@

# The newest of both; HTA fails on pandas 3. TraceLens is not on PyPI: its name there is another project's.
$(VENV)-peers/.installed:
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet "HolisticTraceAnalysis==0.5.0" "pandas<3" \
		"TraceLens @ git+https://github.com/AMD-AGI/TraceLens@171dd74721ca1ec45709e5805b68ae1f65e27811"
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
	$(PYTEST) tests/jobs/test_trainers.py tests/jobs/test_documented_integrations.py \
		tests/jobs/test_examples.py::test_the_trainer_of_paddleformers

docs: $(VENV)/.docs $(CORE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python -m tools.docs --trainings

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group docs $(addprefix --constraint ,$(LOCK))
	touch $@

bench: install
	$(BIN)/python -m benchmarks

mutants: install
	$(BIN)/python -m pip install --quiet --group mutants
	$(BIN)/mutmut run
	$(BIN)/mutmut results

clean:
	rm -rf $(CORE) $(VENV) $(VENV)-26 $(VENV)-rpc $(VENV)-peers .venv-paddlenlp .venv-paddleformers profiler_log output log site mutants
