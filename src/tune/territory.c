/* Published jobs that predictions were compared with: those of `dhelix validate`, by device. A job
 * unlike them may be predicted as well, but nobody has looked. */
#include <string.h>

#include "plan/schedule.h"
#include "strategy/strategy.h"
#include "tune/tuner.h"

/* Of published steps, which are tables of src/validate/validate.c. A micro-batch's tokens are those
 * of one rank. */
static const tune_measured rows[] = {
    {.device = "A100",
     .clusters = "a100,selene",
     .tables = "korthikanti-iteration megatron-sc21 vtrain megascale zero-bubble-throughput "
               "torchtitan-fsdp held-out",
     .schedules = "1f1b,interleaved-1f1b,zb-auto",
     .strategies = "sequential",
     .most_devices = 3360,
     .least_tokens = 2048},
    {.device = "H100",
     .clusters = "h100,h100-500w",
     .tables = "nemo-recipes nemo nemo-long torchtitan moe-folding moe-zoo held-out",
     .schedules = "1f1b,interleaved-1f1b,combined-1f1b",
     .strategies = "sequential,intra-batch,combined-1f1b",
     .experts = true,
     .cp_nodes = true,
     .most_devices = 16384,
     .least_tokens = 2048},
    {.device = "A40",
     .clusters = "a40",
     .tables = "dhelix-throughput dhelix-context dhelix-experts",
     .schedules = "1f1b,interleaved-1f1b,dhelix-w",
     .strategies = "sequential,intra-batch,wavelet+,dhelix-paper",
     .experts = true,
     .cp_nodes = true,
     .most_devices = 64,
     .least_tokens = 2048},
    {.device = "A800",
     .clusters = "a800",
     .tables = "dhelix-a800 hotspa",
     .schedules = "1f1b,interleaved-1f1b,dhelix-w",
     .strategies = "sequential,intra-batch,dhelix-paper",
     .cp_nodes = true,
     .most_devices = 64,
     .least_tokens = 2048},
    {.device = "B200",
     .clusters = "b200",
     .tables = "simumax-dense",
     .schedules = "1f1b,interleaved-1f1b",
     .strategies = "sequential",
     .most_devices = 8,
     .least_tokens = 2048},
};

const tune_measured *tune_measured_rows(size_t *n)
{
    *n = DH_COUNTOF(rows);
    return rows;
}

typedef struct finding {
    dh_arena *arena;
    const char **texts; /* [MOST] */
    size_t n;
    bool failed;
} finding;

enum { MOST = 8 };

static void add(finding *f, const char *text)
{
    f->failed |= !text;
    if (text) f->texts[f->n++] = text;
}

static const tune_measured *measured_on(const char *cluster)
{
    for (size_t i = 0; i < DH_COUNTOF(rows); i++)
        if (tune_is_listed(rows[i].clusters, cluster)) return &rows[i];
    return NULL;
}

static void compare_order(finding *f, const tune_measured *m, const dh_tune_config *c)
{
    size_t n;
    const char *schedule = dh_schedule_rows(&n)[c->at[DH_TUNE_SCHEDULE]]->name;
    const char *strategy = dh_strategies(&n)[c->at[DH_TUNE_STRATEGY]].name;
    if (!tune_is_listed(m->strategies, strategy))
        add(f, dh_arena_printf(f->arena, "strategy %s (measured on %s: %s)", strategy, m->device,
                               m->strategies));
    if (c->at[DH_TUNE_PP] > 1 && !tune_is_listed(m->schedules, schedule))
        add(f, dh_arena_printf(f->arena, "schedule %s (measured on %s: %s)", schedule, m->device,
                               m->schedules));
}

static void compare_mesh(finding *f, const tune_measured *m, const tuner *t,
                         const dh_tune_config *c)
{
    const int64_t node = (int64_t)t->options->cluster->node_devices, *at = c->at;
    const int64_t tokens = at[DH_TUNE_MICRO_BATCH] * t->job->seq_len / at[DH_TUNE_CP];
    if (at[DH_TUNE_CP] > 1 && at[DH_TUNE_TP] * at[DH_TUNE_CP] > node && !m->cp_nodes)
        add(f, dh_arena_printf(f->arena, "context parallelism over nodes (none measured on %s)",
                               m->device));
    if (at[DH_TUNE_TP] > node)
        add(f, dh_arena_printf(f->arena, "tensor parallelism over nodes (none measured on %s)",
                               m->device));
    if (at[DH_TUNE_EP] > 1 && !m->experts)
        add(f, dh_arena_printf(f->arena, "expert parallelism (none measured on %s)", m->device));
    if (tokens < m->least_tokens)
        add(f, dh_arena_printf(f->arena,
                               "micro-batches of %lld tokens a rank (measured on %s: "
                               "%lld and more)",
                               (long long)tokens, m->device, (long long)m->least_tokens));
    if (t->options->devices > m->most_devices)
        add(f,
            dh_arena_printf(f->arena, "%lld devices (measured on %s: up to %lld)",
                            (long long)t->options->devices, m->device, (long long)m->most_devices));
}

/* Costs of this machine are its own measurements. */
dh_status tune_beyond(dh_ctx *ctx, dh_arena *arena, const tuner *t, const dh_tune_config *config,
                      const char ***texts, const char **tables, size_t *n)
{
    const dh_cluster *cluster = t->options->cluster;
    finding f = {.arena = arena, .texts = DH_NEW_N(arena, const char *, MOST)};
    f.failed = !f.texts;
    const tune_measured *m = cluster ? measured_on(cluster->name) : NULL;
    *tables = m ? m->tables : "";
    if (!f.failed && cluster && !m)
        add(&f, dh_arena_printf(arena, "cluster %s (no step measured on it)", cluster->name));
    if (!f.failed && m) {
        compare_order(&f, m, config);
        compare_mesh(&f, m, t, config);
    }
    if (f.failed) return dh_no_memory(ctx);
    *texts = f.texts;
    *n = f.n;
    return DH_OK;
}
