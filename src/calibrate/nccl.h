/* One output of nccl-tests or rccl-tests while it is read: which test, which ranks, and rows.
 *
 * An output states some figures twice. It is refused where they do not agree:
 *   algbw          size / time
 *   busbw / algbw  follows from collective and number of ranks (nccl-tests, doc/PERFORMANCE.md):
 *                  2 (n - 1) / n for all_reduce; (n - 1) / n for all_gather, reduce_scatter and
 *                  alltoall; 1 for sendrecv. Compared as exactly as both are printed
 *   ranks          0 to n - 1, once each, on devices of their own; no line "..." in their list;
 *                  nThread * nGpus in each process, as many processes as were started; groups of
 *                  NCCL_TESTS_SPLIT of the same size */
#ifndef DH_CALIBRATE_NCCL_H
#define DH_CALIBRATE_NCCL_H

#include "calibrate/measured.h"

typedef struct nccl_rank {
    int64_t number, group, device, pid; /* pid 0: not said */
    const char *host;                   /* in the arena; NULL: not said */
    const char *id;                     /* "[0000:1b:00]", in the arena; "": not said */
} nccl_rank;

enum {
    NCCL_UNNAMED = -1, /* the output does not say its test */
    NCCL_OTHER = -2    /* a test that no constant of a cluster rests on */
};

typedef struct nccl_output {
    const measured_file *file;
    int test;           /* index of a known test, or one of the above */
    char test_name[64]; /* as the output says it */
    DH_VEC(nccl_rank) ranks;
    int64_t each;             /* ranks of a process; 0: not said */
    int64_t n_processes;      /* 0: not said */
    int32_t cut;              /* line with dots in the list of ranks; 0: none */
    int64_t n_ranks, n_nodes; /* the current group's; 0: not checked yet */
    const char *why_not;      /* rows are left out; NULL: they are not */
    bool told;                /* that they are */
} nccl_output;

/* A row: sizes are of the whole vector, as cluster.h counts them, in every test. */
typedef struct nccl_row {
    int32_t line;
    double bytes, us;
    double algbw, busbw;           /* GB/s; 0: not said */
    double algbw_unit, busbw_unit; /* of the last digit that is printed */
} nccl_row;

/* The test of a name without "_perf" ("all_reduce", "AllReduce", "alltoall"): NCCL_OTHER where it
 * is none of the known ones. n_bytes of name. */
int nccl_test_of(const char *name, size_t n_bytes);
/* Sets the test, as a name says it. */
void nccl_name(nccl_output *output, const char *name, size_t n_bytes);
/* For a new output; keeps the test. */
void nccl_begin(nccl_output *output);
/* Checks the row, and the ranks before the first; adds it, or leaves it out with a note.
 * errors    DH_EFORMAT with file, line and what does not agree */
dh_status nccl_add(nccl_output *output, const nccl_row *row);
void nccl_fini(nccl_output *output);

/* The tests whose programs a line names, without "_perf". */
typedef struct nccl_names {
    char test[64];
    bool one, several;   /* it has a name; it has different ones */
    bool runs;           /* the line is its command, or a heading of the test itself */
    int64_t n_processes; /* that a launcher starts; 0: not said */
} nccl_names;
void nccl_find_names(const char *line, nccl_names *names);

/* What every table's heading has, and no other kind of file. */
#define NCCL_HEADING "algbw"
/* Appends the text of a file whose lines are in JSON; nothing where they are not. The lines of a
 * file with one object a line keep their numbers. */
dh_status nccl_unwrap(const measured_file *file, dh_str *text);
/* Removes colours and escapes from a line, and makes blanks of pages plain. Returns the bytes that
 * are left. */
size_t nccl_plain(char *line, size_t n_bytes);

/* JSON of nccl-tests (-J) or of rccl-tests (-Z json); false: something else. */
bool nccl_is_json(const char *text);
dh_status nccl_read_json(const measured_file *file);
/* CSV of rccl-tests (-Z csv). */
bool nccl_is_csv(const char *text);
dh_status nccl_read_csv(const measured_file *file);

#endif
