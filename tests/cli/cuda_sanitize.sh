# scripts/cuda_sanitize.sh with a tool, a GPU and a device that are played: every job under every tool,
# findings are errors, and what is missing is named.
. tests/cli/lib.sh "$1"
real=$dhelix
script=$PWD/scripts/cuda_sanitize.sh
mkdir -p "$tmp/bin" "$tmp/build/src/cli"
export PLAYED=$tmp REAL=$real CUDA_HOME=$tmp/nothing

# A program that trains on the cpu where cuda is asked for.
cat >"$tmp/build/src/cli/dhelix" <<'EOF'
#!/usr/bin/env bash
if [ "$1 ${2:-}" = "list devices" ]; then
    "$REAL" list devices
    [ -e "$PLAYED/no-device" ] || echo 'cuda  played'
    exit
fi
exec "$REAL" "${@/device=cuda/device=cpu}"
EOF
# A tool that writes down what it was called for and runs it, or finds what it is told to.
cat >"$tmp/bin/compute-sanitizer" <<'EOF'
#!/usr/bin/env bash
code=0
while [ "${1#--}" != "$1" ]; do
    [ "$1" != --tool ] || tool=$2
    [ "$1" != --error-exitcode ] || code=$2
    shift 2
done
echo "$tool $*" >>"$PLAYED/calls"
[ -e "$PLAYED/finds" ] || "$@" || exit
if [ "$(cat "$PLAYED/finds" 2>/dev/null)" = "$tool" ]; then
    echo '========= Invalid __global__ write of size 4 bytes'
    exit "$code"
fi
EOF
printf '#!/bin/sh\n[ ! -e "$PLAYED/no-gpu" ] && echo "GPU 0: played"\n' >"$tmp/bin/nvidia-smi"
chmod +x "$tmp/bin"/* "$tmp/build/src/cli/dhelix"
PATH=$tmp/bin:$PATH

ok bash "$script" "$tmp/build"
says 'runs under each of memcheck racecheck synccheck, 0 with findings'
n=$(wc -l <"$tmp/calls")
for tool in memcheck racecheck synccheck; do
    same $(($(grep -c "^$tool .* train .*device=cuda" "$tmp/calls") * 3)) "$n" "calls of $tool"
done
for family in gpt2 llama qwen3 gemma2 mixtral deepseek_v3 'attention: linear' 'fp8=hybrid' 'zero=2'; do
    check "a run with $family" grep -q "$family" "$tmp/calls"
done

# One tool's findings, and only those.
echo racecheck >"$tmp/finds"
run bash "$script" "$tmp/build"
same "$status" 1 'status with findings'
says 'racecheck: {family: gpt2'
says 'Invalid __global__ write'
says "$((n / 3)) with findings"
check 'nothing of other tools' bash -c '! grep -qE "^(memcheck|synccheck):" "$1"' _ "$tmp/out"
rm "$tmp/finds"

# What is missing.
touch "$tmp/no-device"
ok bash "$script" "$tmp/build"
says "NOT run (memcheck racecheck synccheck): $tmp/build/src/cli/dhelix has no device cuda"
ok bash "$script" "$tmp/elsewhere"
says "there is no $tmp/elsewhere/src/cli/dhelix"
touch "$tmp/no-gpu"
ok bash "$script" "$tmp/build"
says 'nvidia-smi finds no GPU'
rm "$tmp/no-gpu" "$tmp/bin/compute-sanitizer"
if ! command -v compute-sanitizer >/dev/null; then
    ok bash "$script" "$tmp/build"
    says 'there is no compute-sanitizer'
fi
finish
