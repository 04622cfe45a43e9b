# Ranks as processes, one of which fails where the others wait: all end at once, with its message. The
# first that ends takes the others along, so that not each of them is sure to say it.
#   bash tests/train/agree_mpi.sh TEST_AGREE MPIRUN [OPTIONS OF MPIRUN...]
# from the repository root.
mpirun=("${@:2}")
. tests/cli/lib.sh "$1"
for call in create init store load; do
    run "${mpirun[@]}" -n 4 "$1" "$call" "$tmp/run-$call"
    check "nobody waits for rank 1 after $call" test "$status" -ne 124
    check "the message of rank 1 from $call" grep -q "^told: .*no memory in $call" "$tmp/out"
done
finish
