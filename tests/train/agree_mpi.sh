# Ranks as processes, one of which fails where the others wait: all have its message at once.
#   bash tests/train/agree_mpi.sh TEST_AGREE MPIRUN [OPTIONS OF MPIRUN...]
# from the repository root.
mpirun=("${@:2}")
. tests/cli/lib.sh "$1"
for call in create init store load; do
    run "${mpirun[@]}" -n 4 "$1" "$call" "$tmp/run-$call"
    check "rank 3 has rank 1's message from $call" \
        grep -qE "^told: .*rank 1 stopped: .*no memory in $call; rank 3 was " "$tmp/out"
done
finish
