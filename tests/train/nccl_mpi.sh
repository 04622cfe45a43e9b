# Communicators of GPUs between processes (test_nccl_mpi.c).
#   bash tests/train/nccl_mpi.sh TEST_NCCL_MPI MPIRUN [OPTIONS OF MPIRUN...]
# from the repository root.
mpirun=("${@:2}")
. tests/cli/lib.sh "$1"
mkdir "$tmp/groups" "$tmp/shared" "$tmp/fails" "$tmp/away"

run "${mpirun[@]}" -n 4 "$1" groups "$tmp/groups"
check 'groups come up' test "$status" -eq 0
# Two pairs twice, once the other way, and all: 7 ids with 16 members in all.
check 'members of all ids' test "$(ls "$tmp/groups" | wc -l)" -eq 16
check 'an id for each group' test "$(ls "$tmp/groups" | sed 's/\.[0-9]*$//' | sort -u | wc -l)" -eq 7

run "${mpirun[@]}" -n 4 "$1" shared "$tmp/shared"
check 'ranks on one GPU have none' test "$status" -eq 0
check 'and nobody asks for one' test "$(ls "$tmp/shared" | wc -l)" -eq 0

run "${mpirun[@]}" -n 4 "$1" fails "$tmp/fails"
check 'nobody waits for a rank that fails' test "$status" -ne 124 -a "$status" -ne 0
check 'its message' grep -q 'told: .*ncclCommInitRankConfig.* on group tp\|told: .*group tp: ncclCommInitRankConfig' "$tmp/out"

run "${mpirun[@]}" -n 4 "$1" away "$tmp/away"
check 'nobody waits for a rank that stays away' test "$status" -ne 124 -a "$status" -ne 0
check 'who waited for what' grep -q 'told: .*group tp' "$tmp/out"
finish
