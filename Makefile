# The front door. Daily work is plain cargo; what needs code is `cargo xtask`.

.PHONY: help bare demo test test-full bench setup-bench setup-demo setup-test audit fmt

help: ## what each target does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: setup-demo ## a controller with the example site, a machine that boots from it, a deployment, until Ctrl-C
	cargo xtask demo

test: ## install what is missing, then every test (etcd and PostgreSQL are started by the tests)
	cargo xtask test

test-full: ## the same with ignored tests and many more cases of each property
	cargo xtask test --full

bench: setup-bench ## measure against the promised limits (release build)
	cargo run --release --package hoist-bench

setup-bench: ## install what the benchmarks compare and measure with: nginx, wrk, valgrind, etcd (Debian; root or sudo)
	cargo xtask setup bench

setup-demo: ## install what the demo needs: QEMU, iPXE, OVMF, a kernel, Python (Debian; root or sudo)
	cargo xtask setup demo

setup-test: ## install what the tests need: the same, etcd, PostgreSQL, trees with cloud-init (Debian; root or sudo)
	cargo xtask setup test

bare: ## the demo, and a few tests, each after its setup in a Debian with nothing else (root or sudo)
	cargo xtask bare

audit: ## known vulnerabilities, licences, bans, sources (needs cargo-deny and the internet)
	cargo deny check

fmt: ## format the code
	cargo fmt --all
