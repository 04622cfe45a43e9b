/* What suites of hand-written programs share: inputs made by lot, one run on threads. */
#ifndef TEST_TRAIN_GRAPH_PROGRAMS_H
#define TEST_TRAIN_GRAPH_PROGRAMS_H

#include "dh_test.h"

#include "config/settings.h"
#include "train/graph_run.h"

typedef struct test_program {
    dh_job *job;
    dh_graph_text text;
    dh_graph_run run;
    dh_safetensors *given;
    char file[300];
} test_program;

static char programs_dir[256];

static inline int programs_make_dir(void **state)
{
    test_tmpdir(programs_dir, sizeof programs_dir);
    return 0;
}

static inline int programs_drop_dir(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, programs_dir) == DH_OK ? 0 : -1;
}

/* settings: "key=value" apart by blanks */
static inline dh_job *program_job(const char *settings)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    char copy[300], *at = copy, *word;
    assert_ok(&ctx, dh_job_create(&ctx, &job));
    snprintf(copy, sizeof copy, "%s", settings);
    while ((word = strsep(&at, " ")) != NULL) {
        char *equals = strchr(word, '=');
        assert_non_null(equals);
        *equals = '\0';
        assert_ok(&ctx, dh_job_set(&ctx, job, word, equals + 1));
    }
    assert_ok(&ctx, dh_job_derive_ranks(&ctx, job));
    return job;
}

/* Small numbers by lot in (-1, 1); positions count up. */
static inline void program_fill(uint64_t *seed, const dh_tensor *t, void *data)
{
    const int64_t n = dh_tensor_elements(t);
    for (int64_t i = 0; i < n; i++) {
        const float f = test_randf(seed);
        if (t->dtype == DH_F32) ((float *)data)[i] = f;
        if (t->dtype == DH_BF16) ((dh_bf16 *)data)[i] = dh_f32_to_bf16(f);
        if (t->dtype == DH_F64) ((double *)data)[i] = (double)f;
        if (t->dtype == DH_I32) ((int32_t *)data)[i] = (int32_t)i;
        if (t->dtype == DH_I64) ((int64_t *)data)[i] = 0;
    }
}

/* An input by rank where its name begins with "own", else one for all; those that begin with
 * "square" (second moments) are not negative. */
static inline void program_give(test_program *p, uint64_t seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_st_writer *w;
    const dh_graph *g = p->text.graph;
    snprintf(p->file, sizeof p->file, "%s/given.safetensors", programs_dir);
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    for (int puts = 0; puts < 2; puts++) {
        if (puts) assert_ok(&ctx, dh_st_writer_start(&ctx, w, p->file, DH_ST_CREATE));
        for (size_t i = 0; i < p->run.ios.n; i++) {
            const dh_tensor *t = &g->tensors.at[p->run.ios.at[i].tensor];
            const bool own = strncmp(t->name, "own", 3) == 0;
            if (!p->run.ios.at[i].in) continue;
            for (int64_t r = 0; r < (own ? p->run.mesh.ranks : 1); r++) {
                char name[64];
                snprintf(name, sizeof name, own ? "%s@%lld" : "%s", t->name, (long long)r);
                if (!puts) {
                    assert_ok(&ctx, dh_st_writer_declare(&ctx, w, name, dh_st_dtype_of(t->dtype),
                                                         t->ndim, t->shape));
                    continue;
                }
                void *data = malloc((size_t)dh_tensor_bytes(t));
                uint64_t lot = seed + 977 * i + 31 * (uint64_t)r;
                program_fill(&lot, t, data);
                for (int64_t e = 0; strncmp(t->name, "square", 6) == 0 && e < dh_tensor_elements(t);
                     e++)
                    ((float *)data)[e] *= ((float *)data)[e];
                assert_ok(&ctx,
                          dh_st_writer_put(&ctx, w, name, 0, data, (size_t)dh_tensor_bytes(t)));
                free(data);
            }
        }
    }
    assert_ok(&ctx, dh_st_writer_finish(&ctx, w));
    dh_st_writer_destroy(w);
    assert_ok(&ctx, dh_st_open(&ctx, p->file, &p->given));
    assert_ok(&ctx, dh_graph_run_give(&ctx, &p->run, p->given, p->file));
}

static inline void program_run_as(test_program *p, const char *text, const char *settings,
                                  const dh_graph_run_options *how, uint64_t seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    *p = (test_program){.job = program_job(settings), .text = {.file = "program"}};
    assert_ok(&ctx, dh_graph_parse_lines(&ctx, text, strlen(text), &p->text.graph, &p->text.lines));
    assert_ok(&ctx, dh_graph_run_prepare(&ctx, p->job, &p->text, how, &p->run));
    program_give(p, seed);
    assert_ok(&ctx, dh_graph_run_start(&ctx, &p->run));
    assert_true(p->run.here);
}

/* passes: as in a strategy, "" for none */
static inline void program_run(test_program *p, const char *text, const char *settings,
                               const char *passes, uint64_t seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph_run_options how = {.quiet = true};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &how.passes));
    program_run_as(p, text, settings, &how, seed);
}

static inline void program_fini(test_program *p)
{
    dh_st_close(p->given);
    dh_graph_run_fini(&p->run);
    dh_graph_text_fini(&p->text);
    dh_job_destroy(p->job);
}

/* What a rank left under a name. */
static inline const void *program_left(const test_program *p, const char *name, int64_t rank)
{
    for (size_t i = 0; i < p->run.ios.n; i++)
        if (strcmp(p->text.graph->tensors.at[p->run.ios.at[i].tensor].name, name) == 0)
            return p->run.left[(size_t)rank * p->run.ios.n + i];
    fail_msg("the program leaves no %s", name);
    return NULL;
}

#endif
