#!/usr/bin/env bash
# Train on two ranks over a real wire: two network namespaces, each with a host name of its own,
# joined by a rate-limited veth pair, ranks under Open MPI over TCP. Beside it the same meshes over
# shared memory, and one rank. README.md tells more.
#
#   bench/netns/run.sh                         builds the release, needs root
#   bench/netns/run.sh --gbps "10 1" --meshes "tp dp" --set strategy=sequential
#
#   --gbps LIST       rates of the wire, Gbit/s, each direction         ["4 1"]
#   --latency-us N    one-way delay, where the kernel has netem         [0]
#   --meshes LIST     of dp tp pp cp, two ranks each, a strategy behind a
#                     colon: "tp:sequential tp:dhelix"                  ["tp dp pp"]
#   --steps N         steps of a run                                    [12]
#   --rounds N        repetitions in turns; the best counts             [2]
#   --set KEY=VALUE   passed to all runs; may be repeated
#   --job FILE        the job                                           [bench/netns/job.yaml]
#   --out DIR         runs, logs, netns.csv                             [runs/netns]
#   --dhelix FILE, --bench-comm FILE   programs to use instead of building the release
#   --quick           a small model, 4 steps, one rate, one round
#   --skip-code N     exit status where namespaces cannot be made       [0]
#
# Exit status 1 when a run fails, or its losses are not those of one rank.
source "$(dirname "$0")/../../scripts/env.sh"

gbps="4 1" latency_us=0 meshes="tp dp pp" steps=12 rounds=2
job=bench/netns/job.yaml out=runs/netns dhelix='' bench_comm='' skip_code=0
overrides=()
quick=(--set model.width=64 --set model.max_seq=32 --set train.seq_len=32)

while [ $# -gt 0 ]; do
    case $1 in
        --quick) gbps=4 steps=4 rounds=1 overrides+=("${quick[@]}") && shift && continue ;;
        -h | --help) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    esac
    [ $# -ge 2 ] || die "$1: unknown, or without its value (--help)"
    case $1 in
        --gbps) gbps=$2 ;;
        --latency-us) latency_us=$2 ;;
        --meshes) meshes=$2 ;;
        --steps) steps=$2 ;;
        --rounds) rounds=$2 ;;
        --set) overrides+=(--set "$2") ;;
        --job) job=$2 ;;
        --out) out=$2 ;;
        --dhelix) dhelix=$2 ;;
        --bench-comm) bench_comm=$2 ;;
        --skip-code) skip_code=$2 ;;
        *) die "unknown option $1 (--help)" ;;
    esac
    shift 2
done

skip() {
    echo "netns: skipped: $*"
    exit "$skip_code"
}

# ---- namespaces -----------------------------------------------------------------------------

# Only names made here are ever touched; they carry this process's id.
export DHELIX_NETNS=dhelix-$$
readonly SUBNET=192.0.2.0/24 # TEST-NET-1: routed nowhere
made=()
tmp=''

end_namespace() {
    local pids
    pids=$(ip netns pids "$1" 2>/dev/null) || true
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
    ip netns delete "$1" || true
}

cleanup() {
    local ns
    trap '' INT TERM
    for ns in "${made[@]}"; do end_namespace "$ns"; done
    [ -z "$tmp" ] || rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What a run that was killed outright could not clean up: its process is gone, its names are not.
end_leftovers() {
    local ns pid
    for ns in $(ip netns list 2>/dev/null | grep -oE '^dhelix-[0-9]+-dh-[ab]'); do
        pid=${ns#dhelix-}
        [ -d "/proc/${pid%%-*}" ] || end_namespace "$ns"
    done
}

make_namespace() {
    ip netns add "$1" 2>"$tmp/error" || skip "ip netns add: $(head -n1 "$tmp/error")"
    made+=("$1")
}

# Both ends of the pair are born inside the namespaces: the machine's own network never sees it.
make_link() {
    local a=$DHELIX_NETNS-dh-a b=$DHELIX_NETNS-dh-b
    make_namespace "$a"
    make_namespace "$b"
    ip -n "$a" link add wire type veth peer name wire netns "$b" 2>"$tmp/error" ||
        skip "no veth pair: $(head -n1 "$tmp/error")"
    ip -n "$a" address add 192.0.2.1/24 dev wire
    ip -n "$b" address add 192.0.2.2/24 dev wire
    for ns in "$a" "$b"; do
        ip -n "$ns" link set lo up
        ip -n "$ns" link set wire mtu 9000 up
    done
    limit_link 1 2>"$tmp/error" || skip "tc cannot limit a rate: $(head -n1 "$tmp/error")"
    [ "$latency_us" = 0 ] || has_netem || {
        echo "netns: this kernel has no netem: --latency-us $latency_us is left out" >&2
        latency_us=0
    }
}

has_netem() {
    tc -n "${made[0]}" qdisc replace dev wire root netem delay "${latency_us}us" 2>/dev/null
}

# TUNING: bursts of 64 KiB (one segmentation-offloaded packet) with jumbo frames; with frames of
# 1500 bytes and smaller bursts TCP lost and sent again enough to halve a 4 Gbit/s wire.
limit_link() {
    local ns shape="tbf rate ${1}gbit burst 64kb limit 8mb"
    [ "$latency_us" = 0 ] || shape="netem delay ${latency_us}us rate ${1}gbit limit 20000"
    for ns in "${made[@]}"; do
        tc -n "$ns" qdisc delete dev wire root 2>/dev/null || true
        # shellcheck disable=SC2086
        tc -n "$ns" qdisc add dev wire root $shape || return 1
    done
}

# Bytes both ends have sent.
wire_bytes() {
    local ns sum=0
    for ns in "${made[@]}"; do
        sum=$((sum + $(ip netns exec "$ns" cat /sys/class/net/wire/statistics/tx_bytes)))
    done
    echo "$sum"
}

# ---- programs -------------------------------------------------------------------------------

# run_logged LOG COMMAND...: on the first host. In the background, so that a signal to this script
# is served at once; whatever is left in the namespaces then, cleanup ends.
run_logged() {
    local log=$1
    shift
    timeout 300 ip netns exec "${made[0]}" unshare --uts \
        sh -c 'hostname dh-a && exec "$@"' sh "$@" >"$log" 2>&1 </dev/null &
    wait $! && return 0
    tail -n 20 "$log" >&2
    die "failed (whole log: $log): $*"
}

# Where the ranks are, and what joins them; no component that could take another way.
common_mpi=(mpirun -n 2 --bind-to none --mca pml ob1 --mca oob_tcp_if_include "$SUBNET")
launch_one=()
launch_threads=()
launch_mpi_shm=("${common_mpi[@]}" --host dh-a:2 --mca btl vader,self)
launch_wire=("${common_mpi[@]}" --host dh-a:1,dh-b:1 --mca btl tcp,self
    --mca btl_tcp_if_include "$SUBNET" --mca plm rsh --mca plm_rsh_agent netns-agent.sh)

# Two hosts or one, the machine is the same: ranks must not compute on the same cores. Asked only
# where all of at least two cores may be used.
check_cores() {
    local cores
    [ "$(nproc)" -eq "$(nproc --all)" ] || return 0
    [ "$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)" -ge 2 ] || return 0
    cores=$(sed -n 's/.*threads on processors //p' "$1")
    [ "$(sort -u <<<"$cores" | wc -l)" -eq 2 ] || die "ranks do not divide the cores: ${cores//$'\n'/ and } (log: $1)"
}

# train PLACE RATE MESH ROUND: one run, one line of runs.tsv for summary.py.
train() {
    local place=$1 rate=$2 mesh=$3 round=$4 before
    local dir="$out/$place${rate:+-$rate}-${mesh/:/-}.$round"
    local -n launcher=launch_$place
    local parallel=(--set "parallel.${mesh%%:*}=2")
    [ "${mesh#*:}" = "$mesh" ] || parallel+=(--set "strategy=${mesh#*:}")
    [ "$place" != one ] || parallel=()
    before=$(wire_bytes)
    DHELIX_LOG=debug run_logged "$dir.log" "${launcher[@]}" "$dhelix" train "$job" --fresh --quiet \
        --set "out=$dir" --set "train.steps=$steps" "${parallel[@]}" "${overrides[@]}"
    [ "$place" = one ] || check_cores "$dir.log"
    printf '%s\t' "$place" "${rate:-0}" "$mesh" "$(($(wire_bytes) - before))" >>"$out/runs.tsv"
    printf '%s\n' "$dir" >>"$out/runs.tsv"
}

# What the wire carries, by MPI messages both ways at once; and that they do take it.
check_link() {
    local csv=$out/link-$1.csv before sent
    before=$(wire_bytes)
    run_logged "${csv%.csv}.log" "${launch_wire[@]}" "$bench_comm" --comm mpi --call exchange \
        --csv "$csv"
    sent=$(awk -F, '$3 == "exchange" { sum += 2 * $4 * $5 } END { print sum }' "$csv")
    [ $(($(wire_bytes) - before)) -ge "$sent" ] || die "MPI did not send over the wire ($csv)"
    awk -F, -v rate="$1" '$3 == "exchange" { at = $8 * 8; size = $4 } END { printf \
        "wire of %s Gbit/s: %.2f Gbit/s each way in messages of %d MiB\n", rate, at, size / 1048576 }' "$csv"
}

# ---- what is run ----------------------------------------------------------------------------

[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
for tool in ip tc mpirun unshare hostname python3; do
    command -v "$tool" >/dev/null || skip "no $tool (scripts/install_deps.sh --dev)"
done
case $(mpirun --version 2>&1 | head -n1) in
    *"Open MPI"*) ;;
    *) skip "mpirun is not Open MPI's" ;;
esac
tmp=$(mktemp -d)
end_leftovers
make_link

if [ -z "$dhelix" ] || [ -z "$bench_comm" ]; then
    build release
    dhelix=build/release/src/cli/dhelix bench_comm=build/release/bench/comm/bench_comm
fi
# Open MPI runs programs from its own idea of the working folder, and finds the agent by PATH.
dhelix=$(realpath "$dhelix") bench_comm=$(realpath "$bench_comm") job=$(realpath "$job")
export PATH=$root/bench/netns:$PATH TMPDIR=$tmp
mkdir -p "$out"
out=$(realpath "$out")
rm -f "$out/runs.tsv"

for rate in $gbps; do
    limit_link "$rate"
    check_link "$rate"
done
for ((round = 1; round <= rounds; round++)); do
    train one '' one "$round"
    for mesh in $meshes; do
        train threads '' "$mesh" "$round"
        train mpi_shm '' "$mesh" "$round"
    done
    for rate in $gbps; do
        limit_link "$rate"
        for mesh in $meshes; do train wire "$rate" "$mesh" "$round"; done
    done
done
python3 bench/netns/summary.py "$out" --latency-us "$latency_us"
