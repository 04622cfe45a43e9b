/* A trie over a vocabulary's normal pieces: which tokens begin at a place of a text. */
#ifndef DH_DATA_TRIE_H
#define DH_DATA_TRIE_H

#include "data/vocab.h"

typedef struct dh_trie_node {
    uint32_t children; /* the first; they lie together, by byte */
    uint32_t id;       /* the token that ends here, or DH_NO_ID */
    uint16_t n_children;
    unsigned char byte;
} dh_trie_node;

typedef struct dh_trie {
    DH_VEC(dh_trie_node) nodes; /* 0: the root */
} dh_trie;

/* A longer one would be walked along from every place of a text. */
enum { DH_MOST_TRIE_BYTES = 1024 };

/* errors    DH_EUNSUPPORTED a longer piece; DH_ENOMEM */
dh_status dh_trie_build(dh_ctx *ctx, const dh_vocab *v, dh_trie *trie);
void dh_trie_fini(dh_trie *trie);

/* The node behind `byte`, or DH_NONE. */
static inline uint32_t dh_trie_step(const dh_trie *trie, uint32_t node, unsigned char byte)
{
    const dh_trie_node *at = &trie->nodes.at[node];
    uint32_t low = at->children, high = low + at->n_children;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (trie->nodes.at[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < at->children + at->n_children && trie->nodes.at[low].byte == byte ? low : DH_NONE;
}

#endif
