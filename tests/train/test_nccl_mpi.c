/* Links of the cuda device between processes: the unique id goes through MPI, groups that overlap
 * come up in the order in which each rank makes them, failures end all. Run by the launcher, one
 * process a rank (nccl_mpi.sh): test_nccl_mpi CASE FOLDER.
 *
 * Communicators come up here and do nothing more: NCCL's members meet as files of a folder, whose
 * names are the id and the place. GPUs are those that the host plays, of which every process takes
 * the one of its rank. */
#include "dh_test.h"

#include <errno.h>
#include <fcntl.h>
#include <nccl.h>

#include "run/comm/comm.h"
#include "run/cuda/cuda.h"
#include "run/cuda/device.h"
#include "run/cuda/host/host.h"

static const char *folder;
static bool fails, stays_away; /* this process's part in a communicator */

/* ---- NCCL, as far as links that come up need it -------------------------------------------------
 */

struct ncclComm {
    char id[64];
    int n;
};

static void member_path(char path[400], const char *id, int rank)
{
    snprintf(path, 400, "%s/%s.%d", folder, id, rank);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int n_ids;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%d-%d", (int)getpid(), ++n_ids);
    return ncclSuccess;
}

/* A file that is there already is a member that came twice. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    char path[400];
    ncclComm_t c = calloc(1, sizeof *c);
    if (!c || fails) {
        free(c);
        return ncclSystemError;
    }
    snprintf(c->id, sizeof c->id, "%.60s", id.internal);
    c->n = nranks;
    member_path(path, c->id, rank);
    if (!stays_away) {
        const int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (file < 0 || dprintf(file, "%d\n", nranks) < 0) {
            free(c);
            return ncclInvalidArgument;
        }
        close(file);
    }
    *comm = c;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    char path[400];
    *error = ncclSuccess;
    for (int r = 0; r < comm->n; r++) {
        int n = 0;
        member_path(path, comm->id, r);
        FILE *f = fopen(path, "r");
        if (!f || fscanf(f, "%d", &n) != 1)
            *error = ncclInProgress; /* not there, or half written */
        if (f) fclose(f);
        if (n != 0 && n != comm->n) return ncclInvalidUsage;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return ncclCommDestroy(comm);
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22800;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSystemError ? "system error" : "another error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return "";
}

/* ---- calls that nobody makes here --------------------------------------------------------------
 */

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return ncclInvalidUsage;
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return ncclInvalidUsage;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return ncclInvalidUsage;
}

ncclResult_t ncclSend(const void *send, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return ncclInvalidUsage;
}

ncclResult_t ncclRecv(void *recv, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return ncclInvalidUsage;
}

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    return ncclInvalidUsage;
}

ncclResult_t ncclGroupEnd(void)
{
    return ncclInvalidUsage;
}

/* ---- ranks -------------------------------------------------------------------------------------
 */

typedef struct rank {
    dh_ctx ctx;
    dh_comm_world *world;
    dh_comm *comm;
    dh_slab *slab;
    int me;
} rank;

static void begin(rank *r, int gpu_of_all)
{
    const dh_comm_config config = {.ranks = 4, .timeout_ns = INT64_C(60000000000)};
    int n, threads;
    assert_ok(&r->ctx, dh_comm_world_create(&r->ctx, "mpi", &config, &r->world));
    dh_comm_world_here(r->world, &r->me, &n);
    assert_ok(&r->ctx, dh_comm_attach(&r->ctx, r->world, r->me, &r->comm));
    dh_host_set_devices(4);
    const int gpu = gpu_of_all < 0 ? r->me : gpu_of_all;
    assert_ok(&r->ctx, dh_device_cuda.bind_rank(&r->ctx, gpu, 4, 1, &threads));
    assert_ok(&r->ctx, cuda_slab_create(&r->ctx, 4096, &r->slab));
}

static void end(rank *r)
{
    cuda_slab_destroy(r->slab);
    dh_comm_world_destroy(r->world);
}

static dh_status link_of(rank *r, const char *name, const int *members, int n, dh_devlink **link,
                         char why[160])
{
    dh_comm_group *group;
    const dh_comm_group_spec spec = {name, members, n, 0, DH_ENGINE_LOCAL};
    DH_TRY(dh_comm_group_create(&r->ctx, r->comm, &spec, &group));
    const dh_devlink_spec wanted = {.name = name, .comm = r->comm, .group = group, .n = n};
    *link = NULL;
    return dh_device_cuda.links[0]->create(&r->ctx, r->slab, &wanted, link, why, 160);
}

/* Rows, columns and all of a square of ranks; each id has as many members as its group, once. */
static void groups_come_up(rank *r)
{
    begin(r, -1);
    static const int all[] = {0, 1, 2, 3};
    const int row[] = {r->me / 2 * 2, r->me / 2 * 2 + 1}, column[] = {r->me % 2, r->me % 2 + 2};
    const struct {
        const char *name;
        const int *members;
        int n;
    } groups[] = {{"tp", row, 2}, {"dp", column, 2}, {"all", all, 4}, {"tp", row, 2}};
    dh_devlink *links[DH_COUNTOF(groups)];
    char why[160];
    for (size_t i = 0; i < DH_COUNTOF(groups); i++) {
        assert_ok(&r->ctx,
                  link_of(r, groups[i].name, groups[i].members, groups[i].n, &links[i], why));
        assert_non_null(links[i]);
    }
    for (size_t i = DH_COUNTOF(groups); i-- > 0;) dh_device_cuda.links[0]->destroy(links[i]);
    end(r);
}

/* All are told the same, and none has a communicator. */
static void one_gpu_is_shared(rank *r)
{
    static const int all[] = {0, 1, 2, 3};
    dh_devlink *link;
    char why[160];
    begin(r, 2);
    assert_ok(&r->ctx, link_of(r, "tp", all, 4, &link, why));
    assert_null(link);
    assert_string_equal(why, "members 0 and 1 of group tp have the same GPU");
    end(r);
}

/* What a rank does whose program cannot be made ready: it ends the world with its message. */
static void expect_failure(rank *r, const char *message)
{
    static const int all[] = {0, 1, 2, 3};
    dh_devlink *link;
    char why[160];
    const dh_status st = link_of(r, "tp", all, 4, &link, why);
    printf("rank %d told: %s\n", r->me, st == DH_OK ? "nothing" : r->ctx.message);
    fflush(stdout);
    assert_true(st != DH_OK && strstr(r->ctx.message, message));
    dh_comm_abort(r->comm, r->ctx.message);
}

static void one_cannot(rank *r)
{
    begin(r, -1);
    fails = r->me == 1;
    expect_failure(r, "ncclCommInitRankConfig");
}

static void one_stays_away(rank *r)
{
    begin(r, -1);
    stays_away = r->me == 1;
    dh_comm_set_timeout(r->comm, INT64_C(1000000000), "");
    expect_failure(r, "tp");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(rank *);
    } cases[] = {{"groups", groups_come_up},
                 {"shared", one_gpu_is_shared},
                 {"fails", one_cannot},
                 {"away", one_stays_away}};
    if (argc != 3) return 2;
    folder = argv[2];
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        rank r = {.ctx = DH_CTX_INIT};
        if (strcmp(argv[1], cases[i].name) != 0) continue;
        cases[i].run(&r);
        printf("rank %d is through\n", r.me);
        return 0;
    }
    return 2;
}
