/* What a job's data may be: compressed texts, folders, patterns, mixtures by shares. */
#include "dh_test.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include "data/dataset.h"

typedef struct fixture {
    char dir[256], path[320];
    dh_tokenizer *bytes;
} fixture;

static int set_up(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = calloc(1, sizeof *f);
    test_tmpdir(f->dir, sizeof f->dir);
    assert_ok(&ctx, dh_tokenizer_bytes(&ctx, &f->bytes));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = *state;
    assert_ok(&ctx, dh_dir_remove(&ctx, f->dir));
    dh_tokenizer_destroy(f->bytes);
    free(f);
    return 0;
}

/* Path of NAME in the test's folder, valid until the next call. */
static const char *in_dir(fixture *f, const char *name)
{
    snprintf(f->path, sizeof f->path, "%s/%s", f->dir, name);
    return f->path;
}

static const char *put(fixture *f, const char *name, const void *data, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_file_write_atomic(&ctx, in_dir(f, name), data, n));
    return f->path;
}

static dh_dataset_spec spec_of(const fixture *f, const char *const *files, size_t n)
{
    return (dh_dataset_spec){
        .files = files, .n_files = n, .tokenizer = f->bytes, .order = DH_ORDER_SEQUENTIAL};
}

/* The stream of one name, as bytes. */
static void assert_text(fixture *f, const char *path, const char *want, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_dataset_spec spec = spec_of(f, &path, 1);
    dh_dataset *ds;
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_int_equal(dh_dataset_tokens(ds), n);
    int32_t *ids = calloc(n + 1, sizeof *ids);
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, (int64_t)n, ids));
    for (size_t i = 0; i < n; i++)
        if (ids[i] != (unsigned char)want[i]) fail_msg("%s: token %zu is %d", path, i, ids[i]);
    free(ids);
    dh_dataset_close(ds);
}

static void assert_refused(fixture *f, const char *path, dh_status status, const char *says)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_dataset_spec spec = spec_of(f, &path, 1);
    dh_dataset *ds;
    assert_fails(&ctx, dh_dataset_open(&ctx, &spec, &ds), status, says);
}

/* ---- rows of JSON ---------------------------------------------------------------------------- */

static const char *put_text(fixture *f, const char *name, const char *text)
{
    return put(f, name, text, strlen(text));
}

/* What a file holds is told by its bytes; only a name of JSON makes plain text an error. */
static void content_tells_rows(void **state)
{
    static const char spread[] =
        "\xef\xbb\xbf [\n  {\n    \"text\": \"ab\",\n    \"of\": [\"]\\\"},\", {\"a\": []}]\n  }\n "
        ",{\"text\":\"c\"}\n]\n";
    static const char *const two[] = {
        "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n",
        "\n{\"id\": 1, \"text\": \"ab\"}\r\n\r\n{\"text\": \"c\"}",
        "[{\"text\": \"ab\"}, {\"text\": \"c\"}]",
        spread,
    };
    static const char *const names[] = {"d.json", "d.jsonl", "d.ndjson", "d.txt", "d-of-1024"};
    static const char *const plain[] = {
        "{",      "[INST] a [/INST]", "{\"text\": \"ab\"}\nand so on", "{\"body\": \"ab\"}",
        "[1, 2]", "[{\"text\": 3}]"};
    fixture *f = *state;
    for (size_t i = 0; i < DH_COUNTOF(two); i++)
        for (size_t k = 0; k < DH_COUNTOF(names); k++)
            assert_text(f, put_text(f, names[k], two[i]), "abc", 3);
    for (size_t i = 0; i < DH_COUNTOF(plain); i++) {
        assert_text(f, put_text(f, "d.txt", plain[i]), plain[i], strlen(plain[i]));
        assert_refused(f, put_text(f, "d.json", plain[i]), DH_EFORMAT, "line ");
        assert_refused(f, put_text(f, "d.jsonl", plain[i]), DH_EFORMAT, "line ");
    }
}

static void wrong_rows(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\n  \"text\": \"a\"\n}\n",
         "an object over several lines is not read: write an object a"},
        {"{\"text\": \"a\"}\n{\n\"text\": \"a\"}\n", "line 2, column 1: "},
        {"[{\"text\": \"a\"},\n{\"text\": \"b\"}\n", "its ] is missing"},
        {"[{\"text\": \"a\"},\n", "its ] is missing"},
        {"[\n{\"text\": \"a\"},\n]", "line 3, column 0: '[' or '{' expected"},
        {"[\n{\"text\": \"a\"}\n{\"text\": \"b\"}]", "line 3, column 1: end of file expected"},
        {"[{\"text\": \"a\"}]\n[]", "after the array's ]"},
        {"[{\"text\": \"a\"},\n\n{\"text\": 1}]", "line 3: not a text in field"},
        {"[{\"text\": \"a\"},\n{\"text\": \"b}]", "line 2, column "},
    };
    fixture *f = *state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        assert_refused(f, put_text(f, "d.json", cases[i].text), DH_EFORMAT, cases[i].says);
}

/* Both parts of an array together are all of it, wherever it is cut. */
static void arrays_are_cut_between_objects(void **state)
{
    fixture *f = *state;
    const char *path = put_text(f, "d.json",
                                "[ {\"text\": \"a\"} ,\n\n {\"text\": \"b\"},{\"text\": \"c\"},  "
                                "{\"text\": \"d\"}\n]\n");
    for (int part = 1; part < 20; part++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_dataset_spec spec = spec_of(f, &path, 1);
        char text[5] = "";
        int64_t n = 0;
        spec.val_fraction = 0.05 * part;
        for (spec.part = DH_PART_TRAIN; spec.part <= DH_PART_VAL; spec.part++) {
            dh_dataset *ds;
            int32_t ids[4];
            assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
            const int64_t more = dh_dataset_tokens(ds);
            assert_true(n + more <= 4);
            if (more > 0) assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, more, ids));
            for (int64_t i = 0; i < more; i++) text[n++] = (char)ids[i];
            dh_dataset_close(ds);
        }
        assert_string_equal(text, "abcd");
    }
}

/* ---- compressed texts ----------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char *at;
    size_t n;
} bytes;

static void gzip_more(bytes *b, const char *text, size_t n)
{
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = (uInt)n};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    const size_t room = deflateBound(&z, (uLong)n) + 64;
    b->at = realloc(b->at, b->n + room);
    z.next_out = b->at + b->n;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    b->n += room - z.avail_out;
    deflateEnd(&z);
}

static void zstd_more(bytes *b, const char *text, size_t n)
{
    const size_t room = ZSTD_compressBound(n);
    b->at = realloc(b->at, b->n + room);
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1); /* as the program zstd does */
    const size_t made = ZSTD_compress2(z, b->at + b->n, room, text, n);
    assert_false(ZSTD_isError(made));
    ZSTD_freeCCtx(z);
    b->n += made;
}

/* Text that does not compress to nothing, longer than any buffer on its way. */
static char *long_text(size_t n)
{
    char *text = malloc(n + 1);
    uint64_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = dh_mix64(x + i);
        text[i] = (char)(i % 61 == 60 ? '\n' : 'a' + (char)(x % 23));
    }
    return text;
}

static void compressed_texts(void **state)
{
    enum { N = 1500000, CUT = 700001 };
    static const struct {
        const char *suffix;
        void (*more)(bytes *, const char *, size_t);
    } formats[] = {{".gz", gzip_more}, {".zst", zstd_more}};
    fixture *f = *state;
    char *text = long_text(N), name[32];
    for (size_t i = 0; i < DH_COUNTOF(formats); i++) {
        bytes b = {NULL, 0};
        formats[i].more(&b, text, CUT);
        formats[i].more(&b, text + CUT, N - CUT); /* a second member or frame */
        snprintf(name, sizeof name, "long.txt%s", formats[i].suffix);
        assert_text(f, put(f, name, b.at, b.n), text, N);
        assert_text(f, put(f, "by_its_bytes.txt", b.at, b.n), text, N);
        for (size_t cut = 5; cut < b.n; cut += b.n / 7)
            assert_refused(f, put(f, name, b.at, cut), DH_EFORMAT, "ends in the middle");
        b.at[b.n / 2] ^= 0x55;
        b.at[b.n / 2 + 1] ^= 0x55;
        assert_refused(f, put(f, name, b.at, b.n), DH_EFORMAT, name);
        bytes lines = {NULL, 0}, twice = {NULL, 0};
        static const char json[] = "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n";
        formats[i].more(&lines, json, sizeof json - 1);
        snprintf(name, sizeof name, "docs.jsonl%s", formats[i].suffix);
        assert_text(f, put(f, name, lines.at, lines.n), "abc", 3);
        snprintf(name, sizeof name, "docs.json%s", formats[i].suffix);
        assert_text(f, put(f, name, lines.at, lines.n), "abc", 3);
        formats[i].more(&twice, (const char *)lines.at, lines.n);
        assert_refused(f, put(f, name, twice.at, twice.n), DH_EUNSUPPORTED, "twice");
        snprintf(name, sizeof name, "plain%s", formats[i].suffix);
        assert_refused(f, put(f, name, "text", 4), DH_EFORMAT, "not compressed as its name says");
        snprintf(name, sizeof name, "tokens.bin%s", formats[i].suffix);
        assert_refused(f, put(f, name, lines.at, lines.n), DH_EUNSUPPORTED, "compressed tokens");
        free(b.at);
        free(lines.at);
        free(twice.at);
    }
    free(text);
}

/* First tokens of a file through a cache folder, from which the tokens of before are gone. */
static void assert_cached(fixture *f, const char *path, const char *cache, const char *want)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset_spec spec = spec_of(f, &path, 1);
    char command[800];
    int32_t ids[8];
    dh_dataset *ds;
    snprintf(command, sizeof command, "rm -f '%s'/*.tokens", cache);
    assert_int_equal(system(command), 0);
    spec.cache_dir = cache;
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_int_equal(dh_dataset_tokens(ds), strlen(want));
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, (int64_t)strlen(want), ids));
    for (size_t i = 0; i < strlen(want); i++) assert_int_equal(ids[i], want[i]);
    dh_dataset_close(ds);
}

/* The file of the cache whose name ends so. */
static void find_in(const char *cache, const char *suffix, char *path, size_t n)
{
    char command[800];
    snprintf(command, sizeof command, "ls '%s'/*%s", cache, suffix);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_non_null(fgets(path, (int)n, list));
    path[strcspn(path, "\n")] = '\0';
    assert_int_equal(pclose(list), 0);
}

static void assert_no_temporaries(const char *cache)
{
    char command[400];
    snprintf(command, sizeof command, "ls '%s' | grep -q tmp", cache);
    assert_int_not_equal(system(command), 0);
}

static void read_all(const char *path, char **text, size_t *n)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, text, n));
}

static ino_t inode_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_ino;
}

static void compressed_texts_are_kept(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = *state;
    bytes b = {NULL, 0};
    char path[320], cache[320], kept[400], left[400], *whole;
    size_t n;
    snprintf(cache, sizeof cache, "%s/cache", f->dir);
    gzip_more(&b, "abc", 3);
    snprintf(path, sizeof path, "%s", put(f, "kept.txt.gz", b.at, b.n));
    assert_cached(f, path, cache, "abc");
    find_in(cache, ".text", kept, sizeof kept);
    const ino_t first = inode_of(kept);
    assert_cached(f, path, cache, "abc");
    assert_int_equal(inode_of(kept), first); /* it was taken */
    read_all(kept, &whole, &n);
    /* Any byte that is not as it was written, and any length, shows. */
    for (size_t i = 0; i < n; i++) {
        whole[i] ^= 1;
        assert_ok(&ctx, dh_file_write_atomic(&ctx, kept, whole, n));
        assert_cached(f, path, cache, "abc");
        whole[i] ^= 1;
    }
    for (size_t i = 0; i < n; i++) {
        assert_ok(&ctx, dh_file_write_atomic(&ctx, kept, whole, i));
        assert_cached(f, path, cache, "abc");
    }
    assert_int_equal(unlink(kept), 0);
    assert_cached(f, path, cache, "abc");
    gzip_more(&b, "de", 2);
    put(f, "kept.txt.gz", b.at, b.n);
    assert_cached(f, path, cache, "abcde");
    /* Damage is told as without, and leaves nothing in the folder. */
    dh_dataset_spec spec = spec_of(f, (const char *const[]){path}, 1);
    dh_dataset *ds;
    spec.cache_dir = cache;
    put(f, "kept.txt.gz", b.at, b.n - 4);
    assert_fails(&ctx, dh_dataset_open(&ctx, &spec, &ds), DH_EFORMAT, "ends in the middle");
    assert_no_temporaries(cache);
    /* Nor does a process that was killed, once the folder is used again. */
    snprintf(left, sizeof left, "%s%s", kept, DH_TEMPORARY_END);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, left, "half", 4));
    put(f, "kept.txt.gz", b.at, b.n);
    assert_cached(f, path, cache, "abcde");
    assert_no_temporaries(cache);
    free(whole);
    free(b.at);
}

/* Asked to stop: compressed texts, kept or not, and what is done with tokens that are there. */
static void reading_is_stopped(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = *state;
    volatile sig_atomic_t stop = 1;
    char path[320], cache[320];
    dh_dataset *ds;
    uint64_t hash;
    snprintf(cache, sizeof cache, "%s/stopped", f->dir);
    for (int i = 0; i < 4; i++) {
        bytes b = {NULL, 0};
        (i % 2 ? zstd_more : gzip_more)(&b, "a\nb\n", 4);
        snprintf(path, sizeof path, "%s", put(f, "stopped.txt", b.at, b.n));
        dh_dataset_spec spec = spec_of(f, (const char *const[]){path}, 1);
        ctx.stop = &stop;
        spec.cache_dir = i < 2 ? NULL : cache;
        stop = 1;
        assert_fails(&ctx, dh_dataset_open(&ctx, &spec, &ds), DH_EINTERRUPTED, "was unpacked");
        if (i >= 2) assert_no_temporaries(cache);
        stop = 0;
        assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
        stop = 1;
        assert_fails(&ctx, dh_dataset_hash(&ctx, ds, &hash), DH_EINTERRUPTED, "data were read");
        assert_fails(&ctx, dh_dataset_pack(&ctx, ds, 8, '\n'), DH_EINTERRUPTED, "data were read");
        dh_dataset_close(ds);
        free(b.at);
    }
}

/* ---- other content of equal length and time ------------------------------------------------- */

static void put_dated(fixture *f, const char *name, const void *data, size_t n)
{
    const struct timespec times[2] = {{1000000000, 5}, {1000000000, 5}};
    assert_int_equal(utimensat(AT_FDCWD, put(f, name, data, n), times, 0), 0);
}

static void assert_cached_all(fixture *f, const char *path, const char *cache, const char *want)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset_spec spec = spec_of(f, &path, 1);
    int32_t ids[8];
    dh_dataset *ds;
    spec.cache_dir = cache;
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_int_equal(dh_dataset_tokens(ds), strlen(want));
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, (int64_t)strlen(want), ids));
    for (size_t i = 0; i < strlen(want); i++) assert_int_equal(ids[i], want[i]);
    dh_dataset_close(ds);
}

/* Files of container layers have equal times, and lengths may be equal too. */
static void content_tells_files_apart(void **state)
{
    static const struct {
        const char *name;
        void (*more)(bytes *, const char *, size_t);
    } kinds[] = {{"a.txt", NULL}, {"a.txt.gz", gzip_more}, {"a.txt.zst", zstd_more}};
    static const char *const texts[] = {"abc", "xyz"};
    fixture *f = *state;
    char path[320], cache[320];
    snprintf(cache, sizeof cache, "%s/cache", f->dir);
    for (size_t k = 0; k < DH_COUNTOF(kinds); k++) {
        size_t n_first = 0;
        for (size_t i = 0; i < 6; i++) {
            bytes b = {NULL, 0};
            if (kinds[k].more) kinds[k].more(&b, texts[i % 2], 3);
            const void *data = b.at ? (const void *)b.at : texts[i % 2];
            const size_t n = b.at ? b.n : 3;
            put_dated(f, kinds[k].name, data, n);
            if (i == 0) n_first = n;
            assert_int_equal(n, n_first); /* or it would show nothing */
            snprintf(path, sizeof path, "%s", in_dir(f, kinds[k].name));
            assert_cached_all(f, path, cache, texts[i % 2]);
            free(b.at);
        }
    }
}

/* ---- what stands after the last member ------------------------------------------------------ */

static void after_the_last_member(void **state)
{
    static const char zeros[70000] = "";
    fixture *f = *state;
    bytes b = {NULL, 0};
    gzip_more(&b, "abc", 3);
    const size_t n = b.n;
    b.at = realloc(b.at, n + sizeof zeros + 64);
    memcpy(b.at + n, zeros, sizeof zeros);
    assert_text(f, put(f, "zeros.gz", b.at, n + 1), "abc", 3);
    assert_text(f, put(f, "zeros.gz", b.at, n + sizeof zeros), "abc", 3);
    memcpy(b.at + n + 100, "garbage", 7);
    assert_text(f, put(f, "garbage.gz", b.at, n + 107), "abc", 3);
    memcpy(b.at + n, "garbage", 7);
    assert_text(f, put(f, "garbage.gz", b.at, n + 7), "abc", 3);
    /* A member that is damaged or cut short is none that could be left out. */
    memcpy(b.at + n, b.at, n);
    assert_text(f, put(f, "two.gz", b.at, 2 * n), "abcabc", 6);
    for (size_t cut = 1; cut < n; cut++)
        assert_refused(f, put(f, "cut.gz", b.at, 2 * n - cut), DH_EFORMAT, "ends in the middle");
    memcpy(b.at + n, "\x1f\x8bgarbage", 9);
    assert_refused(f, put(f, "damaged.gz", b.at, n + 9), DH_EFORMAT, "damaged.gz");
    bytes z = {NULL, 0};
    zstd_more(&z, "abc", 3);
    z.at = realloc(z.at, z.n + 32);
    memcpy(z.at + z.n, "\x50\x2a\x4d\x18\x03\0\0\0any", 11); /* a frame to be passed over */
    assert_text(f, put(f, "skipped.zst", z.at, z.n + 11), "abc", 3);
    assert_refused(f, put(f, "cut.zst", z.at, z.n + 10), DH_EFORMAT, "ends in the middle");
    memcpy(z.at + z.n, "garbage", 7);
    assert_refused(f, put(f, "garbage.zst", z.at, z.n + 7), DH_EFORMAT, "garbage.zst");
    memset(z.at + z.n, 0, 7);
    assert_refused(f, put(f, "zeros.zst", z.at, z.n + 7), DH_EFORMAT, "zeros.zst");
    free(b.at);
    free(z.at);
}

/* ---- limits --------------------------------------------------------------------------------- */

/* 200 MB of one letter, which both formats make 200 KB and less of. */
static void bombs_are_refused(void **state)
{
    enum { PART = 50000000 };
    fixture *f = *state;
    char *text = malloc(PART);
    memset(text, 'a', PART);
    bytes g = {NULL, 0}, z = {NULL, 0};
    gzip_more(&g, text, PART);
    zstd_more(&z, text, PART);
    free(text);
    g.at = realloc(g.at, 4 * g.n);
    z.at = realloc(z.at, 4 * z.n);
    for (size_t i = 1; i < 4; i++) {
        memcpy(g.at + i * g.n, g.at, g.n);
        memcpy(z.at + i * z.n, z.at, z.n);
    }
    assert_refused(f, put(f, "bomb.gz", g.at, 4 * g.n), DH_EFORMAT, "gunzip");
    assert_refused(f, put(f, "bomb.zst", z.at, 4 * z.n), DH_EFORMAT, "unzstd");
    free(g.at);
    free(z.at);
}

static size_t data_bytes(void)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "VmData: %zu", &kib) != 1) {}
    if (f) fclose(f);
    return kib * 1024;
}

/* Without data.cache: 4 bytes a token, asked for before they are there. */
static void texts_in_memory_have_a_limit(void **state)
{
    enum { N = 20000000 };
    fixture *f = *state;
    struct rlimit was, less;
    if (TEST_SANITIZED) skip(); /* what a sanitizer maps counts too */
    char *text = long_text(N), path[320];
    snprintf(path, sizeof path, "%s", put(f, "long.txt", text, N));
    assert_text(f, path, text, N);
    assert_int_equal(getrlimit(RLIMIT_DATA, &was), 0);
    less = was;
    less.rlim_cur = data_bytes() + 60000000;
    assert_int_equal(setrlimit(RLIMIT_DATA, &less), 0);
    assert_refused(f, path, DH_ENOMEM, "tokens so far and is held in memory");
    assert_int_equal(setrlimit(RLIMIT_DATA, &was), 0);
    free(text);
}

/* ---- folders and patterns ------------------------------------------------------------------- */

static void folders_and_patterns(void **state)
{
    fixture *f = *state;
    char path[400];
    put(f, "b.txt", "BB", 2);
    put(f, "a.txt", "A", 1);
    put(f, "c.text", "C", 1);
    put(f, ".hidden", "no", 2);
    put(f, "odd[1].txt", "O", 1);
    assert_int_equal(mkdir(in_dir(f, "empty"), 0700), 0);
    assert_text(f, f->dir, "ABBCO", 5);
    snprintf(path, sizeof path, "%s/", f->dir);
    assert_text(f, path, "ABBCO", 5);
    assert_text(f, in_dir(f, "[ab].txt"), "ABB", 3);
    assert_text(f, in_dir(f, "*.t?xt"), "C", 1);
    assert_text(f, in_dir(f, "odd[1].txt"), "O", 1); /* its own name comes first */
    assert_refused(f, in_dir(f, "*.none"), DH_EMISSING, "no file matches");
    assert_refused(f, in_dir(f, "empty"), DH_EMISSING, "has no file");
    assert_refused(f, in_dir(f, "nowhere/*.txt"), DH_EMISSING, "nowhere");
}

/* ---- mixtures ------------------------------------------------------------------------------- */

enum { T = 4, N_TEXTS = 3 };

/* Three files of one letter each, of other lengths. */
static void put_letters(fixture *f, char paths[N_TEXTS][320], const size_t *lengths)
{
    char text[4096];
    for (int i = 0; i < N_TEXTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c.txt", 'x' + i);
        memset(text, 'x' + i, lengths[i]);
        snprintf(paths[i], 320, "%s", put(f, name, text, lengths[i]));
    }
}

static int source_of(const dh_dataset *ds, int64_t sample)
{
    dh_ctx ctx = DH_CTX_INIT;
    int32_t tokens[T + 1];
    assert_ok(&ctx, dh_dataset_sample(&ctx, ds, sample, T, tokens));
    for (int i = 1; i <= T; i++) assert_int_equal(tokens[i], tokens[0]); /* never across files */
    return tokens[0] - 'x';
}

static void shares_are_kept(void **state)
{
    static const size_t lengths[N_TEXTS] = {1001, 90, 333};
    static const int64_t shares[][N_TEXTS] = {{7, 2, 1}, {1, 1, 1}, {1, 50, 3}, {10000, 1, 5}};
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    char paths[N_TEXTS][320];
    put_letters(f, paths, lengths);
    const char *files[N_TEXTS] = {paths[0], paths[1], paths[2]};
    for (size_t c = 0; c < DH_COUNTOF(shares); c++)
        for (int order = DH_ORDER_SHUFFLE; order <= DH_ORDER_RANDOM; order++) {
            dh_dataset_spec spec = spec_of(f, files, N_TEXTS);
            dh_dataset *ds;
            spec.shares = shares[c];
            spec.order = (dh_data_order)order;
            const int64_t sum = shares[c][0] + shares[c][1] + shares[c][2];
            assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
            int64_t n[N_TEXTS] = {0};
            for (int64_t i = 0; i < 2 * sum; i++) {
                n[source_of(ds, i)]++;
                for (int k = 0; k < N_TEXTS; k++) {
                    const double due = (double)(i + 1) * (double)shares[c][k] / (double)sum;
                    if (fabs((double)n[k] - due) > N_TEXTS - 1)
                        fail_msg("after %lld samples %lld of %d, not %g", (long long)i + 1,
                                 (long long)n[k], k, due);
                }
            }
            for (int k = 0; k < N_TEXTS; k++) assert_int_equal(n[k], 2 * shares[c][k]);
            dh_dataset_close(ds);
        }
}

/* A source's samples come in the order that it would have alone, all windows once an epoch. */
static void sources_keep_their_order(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    char a[320], b[320], text[41];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)i;
    snprintf(a, sizeof a, "%s", put(f, "a.txt", text, 41)); /* 10 windows */
    snprintf(b, sizeof b, "%s", put(f, "b.txt", "zzzzzzzzz", 9));
    const char *files[] = {a, b};
    static const int64_t shares[] = {2, 1};
    for (int order = DH_ORDER_SHUFFLE; order <= DH_ORDER_RANDOM; order++) {
        dh_dataset_spec alone = spec_of(f, files, 1), mixed = spec_of(f, files, 2);
        dh_dataset *one, *both, *again;
        alone.order = mixed.order = (dh_data_order)order;
        alone.seed = mixed.seed = 5;
        mixed.shares = shares;
        assert_ok(&ctx, dh_dataset_open(&ctx, &alone, &one));
        assert_ok(&ctx, dh_dataset_open(&ctx, &mixed, &both));
        assert_ok(&ctx, dh_dataset_open(&ctx, &mixed, &again));
        assert_int_equal(dh_dataset_windows(both, T), 12);
        uint64_t hashes[2];
        assert_ok(&ctx, dh_dataset_hash(&ctx, both, &hashes[0]));
        assert_ok(&ctx, dh_dataset_hash(&ctx, again, &hashes[1]));
        assert_true(hashes[0] == hashes[1]);
        for (int64_t i = 0, own = 0; i < 90; i++) {
            int32_t got[T + 1], want[T + 1], late[T + 1];
            assert_ok(&ctx, dh_dataset_sample(&ctx, both, i, T, got));
            assert_ok(&ctx, dh_dataset_sample(&ctx, again, i, T, late)); /* from anywhere */
            assert_memory_equal(got, late, sizeof got);
            if (got[0] == 'z') continue;
            assert_ok(&ctx, dh_dataset_sample(&ctx, one, own++, T, want));
            assert_memory_equal(got, want, sizeof got);
        }
        dh_dataset_close(one);
        dh_dataset_close(both);
        dh_dataset_close(again);
    }
}

static void wrong_shares(void **state)
{
    static const size_t lengths[N_TEXTS] = {100, 4, 100};
    static const int64_t none[] = {1, 0, 1}, many[] = {40000, 40000, 1}, right[] = {1, 1, 1};
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    char paths[N_TEXTS][320];
    put_letters(f, paths, lengths);
    const char *files[N_TEXTS] = {paths[0], paths[1], paths[2]};
    dh_dataset_spec spec = spec_of(f, files, N_TEXTS);
    dh_dataset *ds;
    spec.shares = none;
    assert_fails(&ctx, dh_dataset_open(&ctx, &spec, &ds), DH_EINVAL, "y.txt has a weight of 0");
    spec.shares = many;
    assert_fails(&ctx, dh_dataset_open(&ctx, &spec, &ds), DH_EINVAL, "65536");
    spec.shares = right;
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_fails(&ctx, dh_dataset_check(&ctx, ds, T), DH_EINVAL, "y.txt: 4 tokens");
    dh_dataset_close(ds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(content_tells_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(arrays_are_cut_between_objects, set_up, tear_down),
        cmocka_unit_test_setup_teardown(compressed_texts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(compressed_texts_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(reading_is_stopped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(content_tells_files_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(after_the_last_member, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bombs_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(texts_in_memory_have_a_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folders_and_patterns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shares_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sources_keep_their_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_shares, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
