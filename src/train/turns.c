/* A semaphore whose count is seen to under a lock. */
#include "train/turns.h"

void dh_turns_init(dh_turns *turns, int n)
{
    turns->n_free = n;
    pthread_mutex_init(&turns->lock, NULL);
    pthread_cond_init(&turns->next, NULL);
}

void dh_turns_fini(dh_turns *turns)
{
    pthread_cond_destroy(&turns->next);
    pthread_mutex_destroy(&turns->lock);
}

void dh_turns_take(dh_turns *turns)
{
    if (!turns) return;
    pthread_mutex_lock(&turns->lock);
    while (turns->n_free == 0) pthread_cond_wait(&turns->next, &turns->lock);
    turns->n_free--;
    pthread_mutex_unlock(&turns->lock);
}

void dh_turns_give(dh_turns *turns)
{
    if (!turns) return;
    pthread_mutex_lock(&turns->lock);
    turns->n_free++;
    pthread_cond_signal(&turns->next);
    pthread_mutex_unlock(&turns->lock);
}
