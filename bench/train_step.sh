#!/usr/bin/env bash
# One training step of GPT-2 124M, ours beside PyTorch's, alternating in one run.
# Builds the release, installs the peer, and passes its arguments on:
#   bench/train_step.sh --help
source "$(dirname "$0")/../scripts/env.sh"
scripts/install_deps.sh --peers
build release
exec /usr/bin/python3 bench/train_step.py "$@"
