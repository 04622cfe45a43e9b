# The wheel made of the module in the build folder, installed and used; then the documents' example.
source tests/python/lib.sh

[ -f "$build/python/_dhelix.abi3.so" ] ||
    fail "the module was not built: python3-dev is missing (scripts/install_deps.sh --dev), then configure and build again"
wheel=$(DHELIX_BUILD_DIR=$build scripts/wheel.sh "$tmp/dist")
again=$(DHELIX_BUILD_DIR=$build scripts/wheel.sh "$tmp/again")
cmp "$wheel" "$again" || fail "the same module gave another wheel"
environment
install "$wheel"

# The module shows its entry alone, and needs none of the library's functions from elsewhere.
symbols=$(nm -D --defined-only "$build/python/_dhelix.abi3.so" | sed 's/.* //')
[ "$symbols" = PyInit__dhelix ] || fail "the module shows: $symbols"

inside "$root/tests/python/test_package.py" "$root"
inside "$root/tests/python/embedding.py" "$root"
inside "$root/tests/python/test_orders.py" "$root"

# Every block of the page, one behind the other, as a reader would type them.
sed -n '/^```python$/,/^```$/p' docs/python.md | grep -v '^```' >"$tmp/example.py"
[ "$(grep -c '^import dhelix$' "$tmp/example.py")" -eq 1 ] || fail "docs/python.md has no example"
ln -s "$root/examples" "$tmp/examples"
inside example.py >"$tmp/printed" || fail "docs/python.md: the example failed"
for line in '^8 layers, 2 ranks$' '^sequential [0-9.]* ms, [0-9]*% hidden$' '^dhelix [0-9.]* ms' \
    '^fastest on 8 A100: ' '^4 [0-9.]*$' '^checkpoint .*runs/python' '^ROMEO:' '^DH_EINVAL .*steps'; do
    grep -q "$line" "$tmp/printed" || fail "docs/python.md: no line $line in: $(cat "$tmp/printed")"
done
