/* So many at a time: what ranks that are threads do one after another because all at once would
 * take more memory, and no less time. */
#ifndef DH_TRAIN_TURNS_H
#define DH_TRAIN_TURNS_H

#include <pthread.h>

typedef struct dh_turns {
    pthread_mutex_t lock;
    pthread_cond_t next;
    int n_free;
} dh_turns;

void dh_turns_init(dh_turns *turns, int n);
void dh_turns_fini(dh_turns *turns);
/* Waits for one; NULL: nobody waits. */
void dh_turns_take(dh_turns *turns);
void dh_turns_give(dh_turns *turns);

#endif
