/* Places that ranks share: lists asked for by several threads at once, and classes of ranks built
 * by threads, against one after the other. */
#include "meshes.h"

#include <pthread.h>

#include "program/places.h"

enum { N_BUFFERS = 200, N_LISTS = 5, N_ASKERS = 4, N_TIMES = 60 };

typedef struct asked {
    dh_placing at[N_BUFFERS];
    dh_placing_list list;
    uint64_t want[N_BUFFERS];
} asked;

static asked lists[N_LISTS];

/* Two streams; a buffer is released later than it is first written. */
static void draw(asked *a, uint64_t *seed)
{
    for (size_t i = 0; i < N_BUFFERS; i++) {
        const uint32_t first = (uint32_t)(test_rand(seed) % N_TIMES);
        a->at[i] = (dh_placing){.n_bytes = 1 + test_rand(seed) % 5000,
                                .stream = (uint32_t)(test_rand(seed) % 2),
                                .first = first,
                                .release = {0}};
        for (int s = 0; s < 2; s++)
            a->at[i].release[s] = first + 1 + (uint32_t)(test_rand(seed) % (N_TIMES - first));
    }
    a->list = (dh_placing_list){.at = a->at, .n = N_BUFFERS, .n_times = N_TIMES, .from = 128};
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_places_find(&ctx, &a->list, a->want));
}

static bool conflict(const asked *a, size_t x, size_t y)
{
    const dh_placing *p = &a->at[x], *q = &a->at[y];
    return p->first < q->release[p->stream] && q->first < p->release[q->stream];
}

/* What is in use at the same time lies apart, and nothing could have been placed lower down by
 * 64 bytes, what places are aligned to. */
static void places_are_free_and_low(void **state)
{
    uint64_t seed = test_seed("places_are_free_and_low");
    asked *a = &lists[0];
    draw(a, &seed);
    for (size_t i = 0; i < N_BUFFERS; i++) {
        bool low = a->want[i] == a->list.from;
        for (size_t k = 0; k < i; k++) {
            if (!conflict(a, i, k)) continue;
            const uint64_t end = (a->want[k] + a->at[k].n_bytes + 63) / 64 * 64;
            assert_true(a->want[i] >= end || a->want[i] + a->at[i].n_bytes <= a->want[k]);
            low |= a->want[i] == end;
        }
        assert_true(low);
    }
}

typedef struct asker {
    pthread_t thread;
    dh_places *places;
    size_t first;
    bool ok;
} asker;

static void *ask(void *self)
{
    asker *k = self;
    uint64_t got[N_BUFFERS];
    k->ok = true;
    for (size_t turn = 0; turn < 2 * N_LISTS; turn++) {
        const asked *a = &lists[(k->first + turn) % N_LISTS];
        dh_ctx ctx = DH_CTX_INIT;
        k->ok = k->ok && dh_places_get(&ctx, k->places, &a->list, got) == DH_OK &&
                memcmp(got, a->want, sizeof got) == 0;
    }
    return NULL;
}

static void threads_share_what_was_found(void **state)
{
    uint64_t seed = test_seed("threads_share_what_was_found");
    asker askers[N_ASKERS];
    dh_places *places = dh_places_create();
    assert_non_null(places);
    for (size_t i = 0; i < N_LISTS; i++) draw(&lists[i], &seed);
    for (size_t i = 0; i < N_ASKERS; i++) {
        askers[i] = (asker){.places = places, .first = i / 2};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    for (size_t i = 0; i < N_ASKERS; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_true(askers[i].ok);
    }
    dh_places_destroy(places);
    dh_places_destroy(NULL);
}

/* The flag of one call; whoever asks for the same list later is told too, since all belong to that
 * call. Other lists are looked for as before. */
static void a_request_to_stop_is_heeded(void **state)
{
    static volatile sig_atomic_t stop = 1;
    uint64_t seed = test_seed("a_request_to_stop_is_heeded"), got[N_BUFFERS];
    dh_ctx ctx = {.rank = -1, .stop = &stop}, plain = DH_CTX_INIT;
    dh_places *places = dh_places_create();
    assert_non_null(places);
    for (size_t i = 0; i < 2; i++) draw(&lists[i], &seed);
    assert_fails(&ctx, dh_places_find(&ctx, &lists[0].list, got), DH_EINTERRUPTED,
                 "stopped while buffers were placed");
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_places_get(&ctx, NULL, &lists[0].list, got), DH_EINTERRUPTED, "placed");
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_places_get(&ctx, places, &lists[0].list, got), DH_EINTERRUPTED, "placed");
    assert_fails(&plain, dh_places_get(&plain, places, &lists[0].list, got), DH_EINTERRUPTED,
                 "stopped while buffers were placed");
    dh_ctx_reset(&plain);
    assert_ok(&plain, dh_places_get(&plain, places, &lists[1].list, got));
    assert_memory_equal(got, lists[1].want, sizeof got);
    dh_places_destroy(places);
}

static const setup mesh = {.preset = "llama-tiny",
                           .schedule = "1f1b",
                           .tp = 4,
                           .pp = 2,
                           .dp = 2,
                           .n_micro = 4,
                           .seq = 16,
                           .dtype = DH_BF16,
                           .zero = 1};

/* The programs, and with them all places, are those of ranks that are built by themselves. */
static void threads_build_the_same_classes(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build(&mesh);
    dh_mesh_footprint by[2];
    dh_rank_classes classes;
    uint64_t digest = 0;
    for (int i = 0; i < 2; i++) {
        m->spec.n_threads = i == 0 ? 1 : 3;
        assert_ok(&ctx, dh_mesh_verify(&ctx, &m->spec, &by[i]));
    }
    assert_true(by[0].n_classes > 3 && by[0].slab_bytes > 0);
    assert_memory_equal(&by[0], &by[1], sizeof by[0]);
    assert_ok(&ctx, dh_rank_classes_find(&ctx, &m->spec, &classes));
    for (size_t c = 0; c < classes.n; c++)
        digest = dh_mix64(digest ^ dh_program_digest(m->at[classes.first[c]]));
    assert_int_equal(digest, by[0].digest);
    dh_rank_classes_fini(&classes);
    destroy(m);
}

/* The last tensor-parallel rank has no rows of so small a vocabulary. */
static void threads_say_what_is_wrong(void **state)
{
    dh_ctx by[2] = {DH_CTX_INIT, DH_CTX_INIT};
    mesh_programs *m = prepare(&mesh);
    m->spec.recipe.model.vocab = 5;
    for (int i = 0; i < 2; i++) {
        m->spec.n_threads = i == 0 ? 1 : 3;
        assert_int_not_equal(dh_mesh_verify(&by[i], &m->spec, NULL), DH_OK);
    }
    assert_string_equal(by[0].message, by[1].message);
    print_message("%s\n", by[0].message);
    destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_are_free_and_low),
        cmocka_unit_test(threads_share_what_was_found),
        cmocka_unit_test(a_request_to_stop_is_heeded),
        cmocka_unit_test(threads_build_the_same_classes),
        cmocka_unit_test(threads_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
