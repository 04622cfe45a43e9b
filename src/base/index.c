#include "base/index.h"

#include <stdlib.h>
#include <string.h>

enum { FEWEST_PLACES = 16 };

static void put(dh_index *index, dh_index_place place)
{
    size_t at = (size_t)place.hash & (index->n_places - 1);
    while (index->places[at].number1) at = (at + 1) & (index->n_places - 1);
    index->places[at] = place;
}

static bool grow(dh_index *index)
{
    dh_index bigger = {.n = index->n, .n_places = DH_MAX(2 * index->n_places, FEWEST_PLACES)};
    bigger.places = calloc(bigger.n_places, sizeof *bigger.places);
    if (!bigger.places) return false;
    for (size_t i = 0; i < index->n_places; i++)
        if (index->places[i].number1) put(&bigger, index->places[i]);
    free(index->places);
    *index = bigger;
    return true;
}

bool dh_index_add(dh_index *index, uint64_t hash, uint32_t number)
{
    if (2 * (index->n + 1) > index->n_places && !grow(index)) return false;
    put(index, (dh_index_place){hash, number + 1});
    index->n++;
    return true;
}

void dh_index_clear(dh_index *index)
{
    if (index->n) memset(index->places, 0, index->n_places * sizeof *index->places);
    index->n = 0;
}

void dh_index_fini(dh_index *index)
{
    free(index->places);
    *index = (dh_index){0};
}
