#include "gpu_memory.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keep.h"

static const size_t ROOM = (size_t)256 << 20, STACK = (size_t)8 << 20, ALIGNMENT = 64;

static unsigned char *room;
static size_t used, n_live;

static void check(cudaError_t error, const char *doing)
{
    char message[512];
    if (error == cudaSuccess) return;
    snprintf(message, sizeof message, "CUDA: %s %s(%s): %s (%s)", doing, keep_called(),
             keep_arguments(), cudaGetErrorName(error), cudaGetErrorString(error));
    fprintf(stderr, "%s\n", message);
    if (keep_begin(message)) keep_end();
    exit(1);
}

/* What tests take they give back: the heap begins anew once all of it is. */
void *gpu_malloc(size_t n_bytes)
{
    const size_t n = (n_bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    if (n > ROOM - used) {
        fprintf(stderr, "gpu_memory: %zu bytes more than the %zu of pinned memory\n", n, ROOM);
        exit(1);
    }
    void *at = room + used;
    used += n;
    n_live++;
    return at;
}

void *gpu_calloc(size_t n, size_t size)
{
    return memset(gpu_malloc(n * size), 0, n * size);
}

void gpu_free(void *at)
{
    const unsigned char *p = at;
    if (p < room || p >= room + ROOM)
        free(at);
    else if (--n_live == 0)
        used = STACK;
}

void gpu_await(void)
{
    check(cudaGetLastError(), "launching");
    check(cudaStreamSynchronize(NULL), "running");
}

static int result;

static void *call(void *arg)
{
    result = (*(int (**)(void))arg)();
    return NULL;
}

int gpu_run_pinned(int (*run)(void))
{
    pthread_t thread;
    pthread_attr_t attr;
    check(cudaHostAlloc((void **)&room, ROOM, cudaHostAllocDefault), "pinning memory for");
    used = STACK;
    pthread_attr_init(&attr);
    if (pthread_attr_setstack(&attr, room, STACK) != 0 ||
        pthread_create(&thread, &attr, call, &run) != 0) {
        fprintf(stderr, "gpu_memory: no thread on a stack of pinned memory\n");
        exit(1);
    }
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    cudaFreeHost(room);
    return result;
}
