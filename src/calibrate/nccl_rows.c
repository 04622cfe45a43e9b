/* An output of nccl-tests: its ranks and rows are checked and added (nccl.h). */
#include "calibrate/nccl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"

static const struct {
    const char *name; /* letters alone */
    dh_op_type type;
    double factor; /* busbw / algbw is factor * (n - 1) / n; 0: it is 1 */
} tests[] = {
    {"allreduce", DH_OP_ALL_REDUCE, 2},         {"allgather", DH_OP_ALL_GATHER, 1},
    {"reducescatter", DH_OP_REDUCE_SCATTER, 1}, {"alltoall", DH_OP_ALL_TO_ALL, 1},
    {"sendrecv", DH_OP_RING_EXCHANGE, 0},
};

int nccl_test_of(const char *name, size_t n_bytes)
{
    char letters[64];
    size_t n = 0;
    for (size_t i = 0; i < n_bytes && n + 1 < sizeof letters; i++)
        if (name[i] != '_' && name[i] != '-') letters[n++] = name[i];
    letters[n] = '\0';
    dh_to_lower(letters);
    for (size_t i = 0; i < DH_COUNTOF(tests); i++)
        if (strcmp(letters, tests[i].name) == 0) return (int)i;
    return NCCL_OTHER;
}

void nccl_name(nccl_output *o, const char *name, size_t n_bytes)
{
    o->test = nccl_test_of(name, n_bytes);
    snprintf(o->test_name, sizeof o->test_name, "%.*s", (int)DH_MIN(n_bytes, (size_t)60), name);
}

void nccl_begin(nccl_output *o)
{
    o->ranks.n = 0;
    o->each = o->n_processes = 0;
    o->cut = 0;
    o->n_ranks = o->n_nodes = 0;
    o->why_not = NULL;
    o->told = false;
}

void nccl_fini(nccl_output *o)
{
    dh_vec_fini(&o->ranks);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const nccl_rank *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static int by_place(const void *a, const void *b)
{
    const nccl_rank *x = a, *y = b;
    const int host = strcmp(x->host, y->host);
    if (host != 0) return host;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return strcmp(x->id, y->id);
}

static dh_status check_numbers(const nccl_output *o, int32_t line)
{
    const nccl_rank *r = o->ranks.at;
    const size_t n = o->ranks.n;
    const char *path = o->file->path;
    if (n < 2)
        return dh_fail(o->file->ctx, DH_EFORMAT,
                       "%s:%d: %zu rank%s before this row; lines \"# Rank N Pid P on HOST device "
                       "D\" of two or more are wanted, as the test prints them at its start%s",
                       path, line, n, n == 1 ? "" : "s",
                       n == 1 ? "; if several processes ran, nccl-tests was built without MPI "
                                "(build it with MPI=1)"
                              : "");
    if (r[n - 1].number == 0)
        return dh_fail(o->file->ctx, DH_EFORMAT,
                       "%s:%d: each of the %zu ranks is rank 0: nccl-tests was built without MPI, "
                       "and every process measured itself alone; build it with MPI=1",
                       path, line, n);
    for (size_t i = 0; i < n; i++) {
        if (r[i].number == (int64_t)i) continue;
        if (i > 0 && r[i].number == r[i - 1].number)
            return dh_fail(o->file->ctx, DH_EFORMAT, "%s:%d: rank %lld is listed twice", path, line,
                           (long long)r[i].number);
        return dh_fail(o->file->ctx, DH_EFORMAT,
                       "%s:%d: the list of ranks lacks rank %zu and goes up to %lld: it was "
                       "shortened; the whole list is wanted",
                       path, line, i, (long long)r[n - 1].number);
    }
    if (o->cut > 0)
        return dh_fail(o->file->ctx, DH_EFORMAT,
                       "%s:%d: the list of ranks was shortened with dots after rank %zu; the whole "
                       "list is wanted",
                       path, o->cut, n - 1);
    return DH_OK;
}

/* A list that was cut without dots. Of sendrecv no bandwidth tells how many ranks there were. */
static dh_status check_processes(const nccl_output *o, int32_t line)
{
    const nccl_rank *r = o->ranks.at;
    const int64_t n = (int64_t)o->ranks.n, each = o->each;
    bool whole = each <= 0 || n % each == 0;
    for (int64_t i = 1; each > 0 && i < n && whole; i++)
        whole = i % each == 0 || r[i].pid == r[i - 1].pid;
    if (!whole)
        return dh_fail(
            o->file->ctx, DH_EFORMAT,
            "%s:%d: nThread and nGpus say %lld ranks of each process, and the %lld ranks "
            "in the list are not so: the whole list is wanted",
            o->file->path, line, (long long)each, (long long)n);
    if (each <= 0 || o->n_processes <= 0 || n / each == o->n_processes) return DH_OK;
    return dh_fail(o->file->ctx, DH_EFORMAT,
                   "%s:%d: the launcher started %lld processes, and the list has the ranks of "
                   "%lld: the whole list is wanted",
                   o->file->path, line, (long long)o->n_processes, (long long)(n / each));
}

/* Whether each process numbers the devices that it sees from 0, as with CUDA_VISIBLE_DEVICES. A
 * device of a node is then known by its number and its PCI id. Ranks are in order. */
static bool number_their_own(const nccl_output *o)
{
    const nccl_rank *r = o->ranks.at;
    for (size_t i = 0; i < o->ranks.n; i++) {
        const bool follows =
            i > 0 && r[i].pid > 0 && r[i].pid == r[i - 1].pid && r[i].device == r[i - 1].device + 1;
        if (r[i].device != 0 && !follows) return false;
    }
    return true;
}

static dh_status same_device(const nccl_output *o, int32_t line, const nccl_rank *r)
{
    return dh_fail(o->file->ctx, DH_EFORMAT,
                   "%s:%d: two ranks are on device %lld%s%s of %s: nodes with the same name, or "
                   "ranks that share a device; host names that differ are wanted",
                   o->file->path, line, (long long)r->device, *r->id ? " " : "", r->id, r->host);
}

static dh_status more_devices(const nccl_output *o, int32_t line, int64_t n, const char *host)
{
    return dh_fail(o->file->ctx, DH_EFORMAT,
                   "%s:%d: %lld ranks or more are on %s, where each process numbers its own "
                   "devices, and a node has %lld: nodes with the same name (or say --devices N)",
                   o->file->path, line, (long long)n, host, (long long)o->file->m->node_devices);
}

/* Sorts by host and device. out: nodes of all ranks, and of those of group 0, which is timed while
 * the other groups run. */
static dh_status count_nodes(nccl_output *o, int32_t line, int64_t *all_nodes)
{
    nccl_rank *r = o->ranks.at;
    const char *last = NULL; /* host of the last rank of group 0 */
    const bool own = number_their_own(o);
    bool again = false; /* a number stands twice on this host */
    int64_t n_here = 0;
    qsort(r, o->ranks.n, sizeof *r, by_place);
    *all_nodes = 0;
    for (size_t i = 0; i < o->ranks.n; i++) {
        const bool same = i > 0 && strcmp(r[i].host, r[i - 1].host) == 0;
        const bool number = same && r[i].device == r[i - 1].device;
        const bool told_apart = number && own && *r[i - 1].id && strcmp(r[i].id, r[i - 1].id) != 0;
        if (number && !told_apart) return same_device(o, line, &r[i]);
        again = same && (again || number);
        n_here = same ? n_here + 1 : 1;
        if (again && n_here > o->file->m->node_devices)
            return more_devices(o, line, n_here, r[i].host);
        *all_nodes += !same;
        if (r[i].group != 0) continue;
        o->n_ranks++;
        o->n_nodes += !last || strcmp(r[i].host, last) != 0;
        last = r[i].host;
    }
    return DH_OK;
}

/* Where hosts are not said, ranks fill nodes one after the other. */
static void place_unsaid(nccl_output *o, int64_t *all_nodes)
{
    const int64_t n = (int64_t)o->ranks.n, per_node = DH_MAX(o->file->m->node_devices, 1);
    o->n_ranks = n;
    *all_nodes = o->n_nodes = n <= per_node ? 1 : (n + per_node - 1) / per_node;
}

/* Why rows between nodes cannot be used; NULL: they can. The model has the rate of all devices of a
 * node together, so all of them must take part. */
static const char *why_not(const nccl_output *o, int64_t all_nodes)
{
    if (o->n_nodes == 1) return NULL;
    if ((int64_t)o->ranks.n / all_nodes < o->file->m->node_devices)
        return "a node has more devices than took part, which share its network: measure with all "
               "of them (or say --devices N)";
    if (tests[o->test].type == DH_OP_RING_EXCHANGE && o->n_ranks > o->n_nodes)
        return "the ring of sendrecv_perf leaves a node from one device alone: measure pairs of "
               "nodes, NCCL_TESTS_SPLIT=\"MOD DEVICES_OF_A_NODE\"";
    return NULL;
}

static int by_group(const void *a, const void *b)
{
    const nccl_rank *x = a, *y = b;
    return (x->group > y->group) - (x->group < y->group);
}

/* Sorts by group. Unequal groups are those of a list that was cut. */
static dh_status check_groups(nccl_output *o, int32_t line)
{
    const nccl_rank *r = o->ranks.at;
    qsort(o->ranks.at, o->ranks.n, sizeof *r, by_group);
    for (size_t i = 0, end; i < o->ranks.n; i = end) {
        for (end = i + 1; end < o->ranks.n && r[end].group == r[i].group;) end++;
        if ((int64_t)(end - i) != o->n_ranks)
            return dh_fail(o->file->ctx, DH_EFORMAT,
                           "%s:%d: group 0 has %lld ranks and group %lld has %zu; groups of one "
                           "size in a whole list are wanted",
                           o->file->path, line, (long long)o->n_ranks, (long long)r[i].group,
                           end - i);
    }
    return DH_OK;
}

/* Once an output. */
static dh_status check_ranks(nccl_output *o, int32_t line)
{
    int64_t all_nodes;
    if (o->n_ranks > 0) return DH_OK;
    if (o->ranks.n) qsort(o->ranks.at, o->ranks.n, sizeof *o->ranks.at, by_number);
    DH_TRY(check_numbers(o, line));
    DH_TRY(check_processes(o, line));
    if (o->ranks.at[0].host)
        DH_TRY(count_nodes(o, line, &all_nodes));
    else
        place_unsaid(o, &all_nodes);
    if (o->n_ranks < 2)
        return dh_fail(o->file->ctx, DH_EFORMAT, "%s:%d: group 0 has %lld rank; two are wanted",
                       o->file->path, line, (long long)o->n_ranks);
    DH_TRY(check_groups(o, line));
    if (o->n_ranks % o->n_nodes != 0)
        return dh_fail(o->file->ctx, DH_EFORMAT,
                       "%s:%d: %lld ranks lie unevenly on %lld nodes; as many on each are wanted",
                       o->file->path, line, (long long)o->n_ranks, (long long)o->n_nodes);
    o->why_not = why_not(o, all_nodes);
    return DH_OK;
}

/* ---- what a row says twice ------------------------------------------------------------------ */

/* Printed with two digits. TUNING: 1 % beside that, since the time was rounded before. */
static bool near(double a, double b)
{
    return fabs(a - b) <= 0.011 + 0.01 * DH_MAX(fabs(a), fabs(b));
}

/* busbw is a multiple of algbw to the last digit, before both are rounded. TUNING: 0.51 units of
 * that digit, for the rounding of binary fractions. */
static bool is_multiple(const nccl_row *row, double factor)
{
    const double rounding = 0.51 * (row->busbw_unit + factor * row->algbw_unit);
    return fabs(row->busbw - factor * row->algbw) <= rounding;
}

static double factor_of(int test, int64_t n)
{
    return tests[test].factor > 0 ? tests[test].factor * (double)(n - 1) / (double)n : 1;
}

static dh_status check_bandwidths(const nccl_output *o, const nccl_row *row)
{
    const double want = factor_of(o->test, o->n_ranks);
    if (row->algbw > 0 && !near(row->algbw, row->bytes / row->us * 1e-3))
        return dh_fail(o->file->ctx, DH_EFORMAT,
                       "%s:%d: %g bytes in %g us are %.2f GB/s, and algbw says %.2f", o->file->path,
                       row->line, row->bytes, row->us, row->bytes / row->us * 1e-3, row->algbw);
    if (row->algbw <= 0 || is_multiple(row, want)) return DH_OK;
    return dh_fail(o->file->ctx, DH_EFORMAT,
                   "%s:%d: busbw is %.4f times algbw; for %s of %lld ranks it would be %.4f: the "
                   "ranks or the name of the test do not belong to this table",
                   o->file->path, row->line, row->busbw / row->algbw, o->test_name,
                   (long long)o->n_ranks, want);
}

static dh_status leave_out(nccl_output *o, int32_t line, const char *why)
{
    if (o->told) return DH_OK;
    o->told = true;
    return measured_note(o->file, "rows from line %d on are left out: %s", line, why);
}

static dh_status unnamed(const nccl_output *o, int32_t line)
{
    return dh_fail(o->file->ctx, DH_EFORMAT,
                   "%s:%d: which collective was measured is not said: name the file after its "
                   "test, as all_gather_8gpus.txt (all_reduce, all_gather, reduce_scatter, "
                   "alltoall, sendrecv), or keep the line of the command, ./all_gather_perf ...",
                   o->file->path, line);
}

dh_status nccl_add(nccl_output *o, const nccl_row *row)
{
    char other[128];
    if (o->test == NCCL_OTHER) {
        snprintf(other, sizeof other, "no constant rests on %s", o->test_name);
        return leave_out(o, row->line, other);
    }
    if (o->test == NCCL_UNNAMED) {
        if (row->algbw < 1 || row->busbw < 1.02 * row->algbw) return unnamed(o, row->line);
        nccl_name(o, "all_reduce", 10); /* alone has more on the bus than it reduces */
    }
    DH_TRY(check_ranks(o, row->line));
    DH_TRY(check_bandwidths(o, row));
    if (o->why_not) return leave_out(o, row->line, o->why_not);
    return measured_add_collective(o->file, row->line, tests[o->test].type, o->n_ranks, o->n_nodes,
                                   row->bytes, row->us * 1e3);
}
