/* Inside of the mpi world: what its files share. */
#ifndef DHELIX_RUN_COMM_MPI_WORLD_H
#define DHELIX_RUN_COMM_MPI_WORLD_H

#include "run/comm/impl.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

/* Kinds of messages on mpi_world.told. */
enum { TOLD_NEWS, TOLD_QUESTION, TOLD_ANSWER };

/* A failing rank's message to the others. */
typedef struct mpi_news {
    int by_rank;
    bool lost; /* ranks did not come: what the program ends with says so */
    char message[DH_CTX_MESSAGE_BYTES];
} mpi_news;

/* A rank's activity, as it answers when asked. */
typedef struct mpi_answer {
    int32_t question; /* its number */
    dh_comm_state state;
} mpi_answer;

/* Ends the process (DH_COMM_EXIT_LOST) where what is between begin and end takes longer. */
typedef struct mpi_guard {
    const char *what;
    int64_t from_ns, ns;
    bool watched, is_over;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
} mpi_guard;

/* in        what: name of the step, for the message
 *           ns: how long ranks wait for each other; a margin is added */
void mpi_guard_begin(mpi_guard *g, const char *what, int64_t ns);
void mpi_guard_end(mpi_guard *g);

typedef struct mpi_group mpi_group;

typedef struct mpi_world {
    dh_comm_world base;
    MPI_Comm all;  /* all ranks: creation of groups */
    MPI_Comm told; /* all ranks: news of failures */
    dh_comm rank;  /* the only one in this process */
    bool attached;

    pthread_mutex_t lock;
    atomic_bool failed; /* written under lock, after news */
    mpi_news news;
    MPI_Request *telling; /* [size] sends of our own news */

    /* mpi_ask.c; guarded by lock */
    mpi_group *waiting;     /* groups whose calls have waited for long, newest first */
    mpi_answer *answers;    /* [size] to each rank that asked; they stay while they travel */
    MPI_Request *answering; /* [size] MPI_REQUEST_NULL: it has left */
    MPI_Request *questions; /* [size] */
    bool asking;            /* one of our threads asks the others */
    int32_t n_asked;        /* questions so far */
} mpi_world;

/* One message under way, for checking and for reports. */
typedef struct mpi_message {
    int peer, n_bytes;
    bool is_recv;
} mpi_message;

/* Calls that were compared: their hashes, or 0 in places that are free. */
typedef struct mpi_known {
    uint64_t *table; /* [cap] */
    size_t n, cap;
} mpi_known;

struct mpi_group {
    dh_comm_group base;
    MPI_Comm comm;
    MPI_Request *requests; /* requests of the call under way */
    mpi_message *messages; /* the same, index by index */
    MPI_Status *statuses;
    int n_requests, cap_requests;
    mpi_known known;

    /* Of a call that has waited for long; guarded by mpi_world.lock. */
    mpi_group *next_waiting;
    bool is_waiting;
    bool *awaited; /* [n] */
    char waiting_in[DH_COMM_CALL_TEXT_BYTES];
};

/* Fail the call and stop all ranks. `call` is MPI's function, rc what it returned. */
dh_status mpi_fail_call(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, const char *call,
                        int rc);
dh_status mpi_fail_here(dh_ctx *ctx, mpi_group *g, const char *message);
/* The same for want of a rank that is silent or gone. */
dh_status mpi_fail_lost(dh_ctx *ctx, mpi_group *g, const char *message);
dh_status mpi_fail_stopped(dh_ctx *ctx, const mpi_group *g, const dh_comm_head *head);
/* Has somebody stopped the world? Receives the news, and answers questions. */
bool mpi_look_for_news(mpi_world *world);

/* mpi_wait.c: issue messages (in parts where large, one empty message where n_bytes
 * is 0), then wait for all of them. Peers are group indices. */
dh_status mpi_isend(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, int peer, int tag,
                    const char *buf, int64_t n_bytes);
dh_status mpi_irecv(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, int peer, int tag,
                    char *buf, int64_t n_bytes);
/* After a failure nothing is under way, except buffers that are left to MPI. head NULL: the group
 * is being created. */
dh_status mpi_wait(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head);
/* Give up what is under way. */
void mpi_drop_requests(mpi_group *g);
/* MPI may go on with a message that was given up: its buffer is freed before MPI ends. From here
 * on nothing may make MPI progress once the failure has been reported. */
void mpi_leave_buffers(void);

/* mpi_ask.c: ranks that wait say for whom, and answer who asks. */
/* Make a waiting call known, with the messages that have not come yet; again now and then. */
void mpi_publish_wait(mpi_group *g, const dh_comm_head *head);
void mpi_withdraw_wait(mpi_group *g); /* it has ended; does nothing where it was not published */
/* Answer the questions that have come. Any thread that waits. */
void mpi_answer_questions(mpi_world *world);
/* Ask all ranks what they do, and follow whom they wait for: "rank 0 waited ...; did not come:
 * rank 2 (...), for want of rank 3 (...)". False, and nothing printed, when the call's messages
 * came meanwhile, the world has failed, or another thread of this rank asks. */
bool mpi_ask_culprit(mpi_group *g, const dh_comm_head *head, dh_str *out);
/* Give up answers under way. */
void mpi_drop_answers(mpi_world *world);

/* mpi_check.c: with config.check, that all members make this call. tag: of the headers. */
dh_status mpi_check_call(dh_ctx *ctx, mpi_group *g, const dh_comm_call *call, int tag);

/* mpi_ops.c */
dh_status mpi_collective(dh_ctx *ctx, dh_comm_group *group, const dh_comm_call *call);
dh_status mpi_transfer(dh_ctx *ctx, dh_comm_group *group, const dh_comm_head *head,
                       const dh_comm_xfer *xfers, size_t n);

#endif
