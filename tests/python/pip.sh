# `pip install .` from the tree, as a user does it: the library compiled, with no network.
source tests/python/lib.sh

environment
install "$root"
inside -c '
import dhelix
assert dhelix.clusters() and dhelix.__version__
assert dhelix.Job(__import__("sys").argv[1]).check()["parameters"] > 0' "$root/examples/hide.yaml" ||
    fail "the installed package does not work"
