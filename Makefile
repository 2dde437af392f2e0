# make demo      runs tenure on real servers and real input, about two minutes after the build
# make test      unit, integration and documentation tests on real servers; POSTGRES=17 make test: the SQL tests on that release
# make check     formatter, lints, documentation without warnings, links of the guide
# make trials    kills a hundred workers with default settings, a hundred beside a group of 10,000, and takes servers away; TRIALS=20
# make faults    forces every fault of docs/reliability.md
# make chaos     a minute of faults in random order, and an account of every job; MINUTES=60 SEED=7 make chaos
# make conformance  the clients of other languages under each case of the worker protocol; CLIENT='mine=./worker' make conformance: yours
# make fuzz      feeds untrusted input to the readers, ten minutes each; MINUTES=1
# make mutants   plants mistakes in the statements, each of which a test must catch; OF=code make mutants: in the code
# make bench     measures tenure and five other libraries; OF=tenure, OF=retention, OF=gateway or OF=peers make bench: that part
# make rolling-upgrade  updates a fleet under load from the last checkout before the baseline, goes back, and on again; FROM=COMMIT
# make release   oldest Rust, licences and advisories, packages, public API, unused dependencies, the features of docs.rs, and what
#                scripts/when-changed leaves out where its paths have not changed; ONLY=package make release: one of them
# make pictures  takes the pictures of the dashboard in docs/images
# make book      the guide as a book, in target/book
# Each target first installs missing tools: see scripts/setup. scripts/ has the rest: check-deploy, durations, static, scale, lines.

SHELL := /bin/sh
CARGO ?= cargo
export CARGO

# The nats-server that scripts/setup installs where the machine has none.
ifeq ($(TENURE_NATS_SERVER),)
ifneq ($(wildcard .tools/nats/bin/nats-server),)
export TENURE_NATS_SERVER := $(CURDIR)/.tools/nats/bin/nats-server
endif
endif

.PHONY: help demo test check trials faults chaos conformance fuzz mutants bench rolling-upgrade release pictures book
# Prints the lines above; installs and builds nothing.
help:
	@sed -n '/^# make /,/^$$/{/^#/s/^# //p;/^$$/q}' Makefile

# Each calls make again after scripts/setup, so that make sees the nats-server that it has installed.
demo:
	@scripts/setup
	@$(MAKE) --no-print-directory run-demo

test:
	@scripts/setup test
	@$(MAKE) --no-print-directory run-test$(if $(POSTGRES),-postgres)

trials:
	@scripts/setup test
	@TENURE_TRIALS=$(or $(TRIALS),100) KILLS=$(or $(TRIALS),100) MEMBERS=10000 $(MAKE) --no-print-directory run-test \
		TESTS="--test it -- --nocapture a_killed_workers_jobs no_healthy_job_is_ a_worker_that_is_paused wrong_clocks \
			a_follower_of_thousands"

faults:
	@scripts/setup test
	@$(MAKE) --no-print-directory run-script SCRIPT=faults

chaos:
	@scripts/setup test
	@$(MAKE) --no-print-directory run-chaos

conformance:
	@scripts/setup test
	@$(MAKE) --no-print-directory run-conformance

mutants:
	@scripts/setup test
	@$(MAKE) --no-print-directory run-script SCRIPT=$(if $(filter code,$(OF)),mutants-rust,mutants)

bench:
	@scripts/setup
	@$(MAKE) --no-print-directory run-bench-$(or $(OF),all)

fuzz:
	@scripts/fuzz $(or $(MINUTES),10)

# The last commit with migrations 1 to 30.
rolling-upgrade:
	@scripts/rolling-upgrade $(or $(FROM),ebf7e6a)

release:
	@scripts/release $(or $(ONLY),msrv licences semver unused features)
	@[ -n "$(ONLY)" ] || FORCE=1 scripts/when-changed deploy features package kit-mistakes postgres-17

pictures:
	@scripts/pictures

book:
	@python3 scripts/check_docs.py
	@command -v mdbook >/dev/null || { echo 'mdBook was not found: cargo install mdbook' >&2; exit 1; }
	mdbook build

check:
	@scripts/setup
	@$(MAKE) --no-print-directory run-check-files
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --all-features --test chaos -- -D warnings
	@$(MAKE) --no-print-directory run-check-features

.PHONY: run-check-files run-check-features run-demo run-test run-test-postgres run-chaos run-conformance run-script run-bench-all run-bench-tenure run-bench-retention run-bench-gateway run-bench-peers
BUILT := $${CARGO_TARGET_DIR:-target}

run-check-files:
	@python3 scripts/check_docs.py
	@python3 scripts/scale --check
	@python3 scripts/check_dependencies.py
	@LIST=1 python3 scripts/mutants
	@scripts/check-clients
	$(CARGO) fmt --all --check

# Each compiles the dependencies in a shape of its own.
run-check-features:
	$(CARGO) clippy --locked -p tenure --lib --no-default-features -- -D warnings
	$(CARGO) clippy --locked -p tenure --lib --no-default-features --features schedules -- -D warnings
	$(CARGO) clippy --locked -p tenure --lib -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

run-demo:
	$(CARGO) build --quiet --locked --all-features --bin tenure --example code_evolution
	$(BUILT)/debug/examples/code_evolution demo

run-test:
	@rm -f $(BUILT)/failed-tests.json
	PYTHONPATH=$(CURDIR)/.tools/python scripts/test --locked --all-features $(TESTS) || \
		{ [ -n "$(CI)" ] && PYTHONPATH=$(CURDIR)/.tools/python scripts/test --again; }

# Runs the tests of statements, functions, plans and errors, without pg_basebackup. The user of Postgres may not read a home
# folder, so a copy runs.
run-test-postgres:
	@scripts/setup postgres-$(POSTGRES)
	@copy=$$(mktemp -d) && chmod 755 $$copy && cp -r .tools/postgres-$(POSTGRES)/native $$copy/postgres && \
		TENURE_PG_BIN=$$copy/postgres/bin $(MAKE) --no-print-directory run-test \
			TESTS="--lib --test it -- store:: recover:: run:: client:: enqueue:: schema:: plans:: migrations:: claim:: effects:: \
				sql:: sql_attempts:: sql_lanes:: retention:: verify:: faults::answers gateway::a_job gateway::each_outcome"; \
		code=$$?; rm -rf $$copy; exit $$code

run-chaos:
	PYTHONPATH=$(CURDIR)/clients/python/src:$(CURDIR)/.tools/python $(CARGO) test --quiet --locked --all-features --test chaos -- --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED)) $(CHAOS)

# KIT: more arguments of tests/kit/main.rs, as --case crash, or --jobs 1000000.
run-conformance:
	PYTHONPATH=$(CURDIR)/.tools/python $(CARGO) test --quiet --locked --all-features --test conformance -- \
		$(if $(CLIENT),--client '$(CLIENT)') $(KIT)

run-script:
	@scripts/$(SCRIPT)

run-bench-all: run-bench-tenure
	@$(MAKE) --no-print-directory run-bench-peers PEERS="--rounds 1 --jobs 10000"

run-bench-tenure:
	$(CARGO) build --release --quiet --locked --bin tenure -p tenure-cli
	$(BUILT)/release/tenure bench --quick --slots 2000 $(BENCH)

# Sweeps ROWS finished jobs while one worker drains.
run-bench-retention:
	@$(MAKE) --no-print-directory run-bench-tenure BENCH="retention --runs 3 --jobs 50000 --finished $(or $(ROWS),300000)"

# Workers in other languages behind a gateway.
run-bench-gateway:
	@scripts/setup test
	@PYTHONPATH=$(CURDIR)/clients/python/src:$(CURDIR)/.tools/python $(MAKE) --no-print-directory run-bench-tenure \
		BENCH="gateway $(BENCH) --client 'python=python3 $(CURDIR)/clients/python/kit.py' \
			--client 'node=node $(CURDIR)/clients/node/dist/kit.js'"

# The peers are a separate crate: a build of tenure does not build them.
run-bench-peers:
	$(CARGO) run --release --quiet --locked --manifest-path benches/peers/Cargo.toml -- $(PEERS)
