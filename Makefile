# LiveCTR's commands. `make help` lists them; each does its own set-up.
SECONDS = 60
WATCH =
LOG = file
RANKS = 2
REPORT = report.json
ARGS =
WORKERS = 4  # processes of `make test`: half of the time a test waits for others
NEWEST = tests/test_house.py tests/kernels tests/ingest/test_decode.py tests/ingest/test_examples.py tests/ingest/test_sources_files.py  # tests that run on the newest Python, too


CXX_SOURCES = $(shell find kernels serving/native tests/fuzz/native -name '*.[ch]pp' -o -name '*.cuh')  # but those of .clang-format-ignore

unexport PYTHONDONTWRITEBYTECODE  # a process that compiles every module again starts half a second later
PY = .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-sanitizers test-newest fuzz test-k8s check check-format check-lint check-types check-wire check-house format docs images release k8s-demo k8s-down bench test-gpu gpu-kit bench-gpu

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: .venv/ready  ## system parts, .venv and packages (the others call it)

.venv/ready: setup.sh pyproject.toml constraints.txt
	@./setup.sh

demo: setup  ## the whole path, live: make demo [SECONDS=60] [LOG=file|kafka] [RANKS=2] [REPORT=report.json]; WATCH=1: until Ctrl-C, with Prometheus
	@$(PY) -m livectr demo $(if $(WATCH),--watch,--seconds $(SECONDS) --report $(REPORT)) --log $(LOG) --ranks $(RANKS)

test: setup  ## every behavior once, with a real Kafka broker, Redis-protocol server, gRPC and processes: make test [ARGS="-k name"]
ifeq ($(strip $(ARGS)),)
	@$(PY) -m pytest --numprocesses=$(WORKERS) --dist=loadscope
else
	@$(PY) -m pytest $(ARGS)
endif

test-full: setup  ## all tests: whole products, long sessions and kills at every point, too
	@$(PY) -m pytest --numprocesses=$(WORKERS) --dist=loadscope --full

test-sanitizers: setup  ## tests of kernels, ingest and serving with ASan, UBSan and TSan: make test-sanitizers [ARGS=address]
	@$(PY) -m tests.sanitizers $(ARGS)

test-newest: setup .venv-newest/ready  ## some of the tests with the newest Python that torch has wheels for
	@.venv-newest/bin/python -m pytest --numprocesses=2 --dist=loadfile $(NEWEST) $(ARGS)

.venv-newest/ready: setup.sh pyproject.toml constraints.txt
	@./setup.sh newest

fuzz: setup .venv-fuzz/ready  ## coverage-guided fuzzers of all that reads bytes from outside: make fuzz [ARGS="json_rows --seconds 600"]
	@$(PY) -m tests.fuzz $(ARGS)

.venv-fuzz/ready: setup.sh constraints.txt
	@./setup.sh fuzz

check: check-format check-lint check-types check-wire check-house  ## formatters, linters, types, import directions, checkov on the manifests

check-format: setup
	@{ $(PY) -m ruff format --check . && .venv/bin/clang-format --dry-run --Werror $(CXX_SOURCES) && \
	    .venv/bin/buf format --diff --exit-code protos; } || { echo "make format rewrites them" >&2; exit 1; }

check-lint: setup
	@$(PY) -m ruff check .

check-types: setup
	@$(PY) -m mypy

check-wire: setup
	@.venv/bin/buf lint protos

check-house: setup
	@$(PY) -m pytest -q tests/test_house.py tests/k8s/test_0_scores.py -k "not kube-score"

format: setup  ## rewrite the sources as the formatters and the linter want them
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .
	@.venv/bin/clang-format -i $(CXX_SOURCES)
	@.venv/bin/buf format --write protos

images: setup  ## the container images, as archives: make images [ARGS="--base debian gpu --build-arg TORCH=cuda"]
	@$(PY) k8s/image/build.py $(ARGS)

release: setup  ## wheel, sdist, images and their bills of materials, from a clean checkout of the tag: make release [ARGS="--check|--no-images"]
	@$(PY) release.py $(ARGS)

k8s-demo: setup  ## the whole path on the cluster of KUBECONFIG, else on a lab of our own (root): k8s/lab/README.md
	@$(PY) k8s/demo.py up

k8s-down: setup  ## the end of k8s-demo
	@$(PY) k8s/demo.py down

test-k8s: setup  ## checks on a real cluster, as k8s-demo; a table of all with their seconds
	@$(PY) -m pytest -v --timeout=3600 tests/k8s -k "not checkov" $(ARGS)

docs: .venv-docs/ready  ## the docs site, from docs/ to site/; fails on a broken link or name
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

.venv-docs/ready: setup.sh pyproject.toml constraints.txt
	@./setup.sh docs

bench: setup  ## every benchmark, JSON under bench/results/
	@for name in ingest kafka features featurebox tables tiers train step whole-run peers des-bytes mesh quality learning first-rows counters funnel delayed carry scaling publish redis-memory serving freshness start resize images memory day large-day network; do \
	    $(PY) -m livectr bench $$name --json bench/results/$$name.json || exit 1; done

test-gpu: setup  ## the tests that need a GPU; fails where there is none
	@$(PY) -m pytest tests/gpu $(ARGS)

gpu-kit: setup  ## what bench/gpu_kit/run.sh brings to a machine with a GPU: kernels for sm_90, by a dry run here
	@$(PY) -m bench.gpu_kit.build

bench-gpu: setup  ## the benchmarks that need a GPU, JSON under bench/results/
	@$(PY) -m livectr bench gpu --json bench/results/gpu.json
