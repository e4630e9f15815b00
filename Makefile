# Tollgate. `make` alone lists what there is; each target is one command in .ci/.
#
# Needed beforehand: rustup, git, make and a C compiler; for the tests also a
# C++ compiler and Python, and, unless apt can install them, clang and lld,
# pkg-config and valgrind, Node.js with npm, Go, and CMake, libclang and QEMU for RDMA; gRPC's C++ library, which the bench does without if
# it isn't there, comes through apt only. The rest (the Rust
# toolchain named in rust-toolchain.toml, the guests' target, Miri) is installed
# through rustup when a target needs it, and said aloud.

CRATE =

.PHONY: help demo quick test conformance fuzz bench dist dist-test fmt clean

help: ## list the targets (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## build, start two hosts, and show calls and tenants' policies at work (ends by itself)
	@.ci/demo

quick: ## check what the change concerns: format, lints, unit tests; CRATE=NAME for one crate
	@.ci/quick $(CRATE)

test: ## everything that CI runs: format, lints, model checks, Miri, tests, benches' smoke runs
	@.ci/test

conformance: ## run protobuf's own conformance suite against the marshalling
	@.ci/conformance

fuzz: ## fuzz what strangers send and daemons hand over for 20 s per target; .ci/fuzz SECONDS for longer
	@.ci/fuzz

bench: ## measure Tollgate against raw TCP, gRPC and Envoy, and through upgrades and crashes; release build, above half an hour
	@.ci/bench

dist: ## build what is released into target/dist: packages, wheel, crates, image; release build
	@.ci/dist

dist-test: ## the same, twice, and install, upgrade and remove it in a clean Debian; needs root
	@.ci/dist test

fmt: ## format all sources
	@cargo fmt --all

clean: ## delete everything that was built
	@cargo clean
	@rm -rf benches/out
